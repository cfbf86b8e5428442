"""What a network is: links, traces, hosts and routers, changes over time. Pure; the lab and the simulator read it."""

from gradwire.link.draw import to_svg
from gradwire.link.file import load_network, parse_network
from gradwire.link.network import Change, CrossTraffic, Host, Link, Network
from gradwire.link.presets import PRESETS, preset
from gradwire.link.route import Routes, routes
from gradwire.link.spec import Burst, LinkSpec
from gradwire.link.trace import RateTrace, load_trace

__all__ = [
    "PRESETS",
    "Burst",
    "Change",
    "CrossTraffic",
    "Host",
    "Link",
    "LinkSpec",
    "Network",
    "RateTrace",
    "Routes",
    "load_network",
    "load_trace",
    "parse_network",
    "preset",
    "routes",
    "to_svg",
]

"""Network: hosts, routers, links, rate traces and changes over time. Pure; used by the lab and the simulator."""

from gradwire.network.dilate import dilated
from gradwire.network.draw import to_svg
from gradwire.network.file import load_network, parse_network
from gradwire.network.link_spec import Burst, LinkSpec
from gradwire.network.nat import Nat
from gradwire.network.network import Change, CrossTraffic, Host, Link, Network
from gradwire.network.presets import PRESETS, preset
from gradwire.network.rate_trace import RateTrace, load_trace
from gradwire.network.route import Routes, routes

__all__ = [
    "PRESETS",
    "Burst",
    "Change",
    "CrossTraffic",
    "Host",
    "Link",
    "LinkSpec",
    "Nat",
    "Network",
    "RateTrace",
    "Routes",
    "dilated",
    "load_network",
    "load_trace",
    "parse_network",
    "preset",
    "routes",
    "to_svg",
]

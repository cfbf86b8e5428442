"""Network files: all fields are read, and each error names its position and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire.network import Nat, load_network, parse_network
from gradwire.units import Seconds

GOOD = """
about = "Two offices."
congestion = "bbr"
seed = 7
routers = ["r"]
[[host]]
name = "a"
[[host]]
name = "b"
congestion = "cubic"
[[link]]
between = ["a", "r"]
rate = "100mbit"
delay = "5ms"
jitter = "1ms"
forward = { loss = "1%", queue = "64KiB" }
backward = { rate = "20mbit" }
[[link]]
between = ["r", "b"]
mtu = 1400
burst = { enter = 0.01, leave = 0.2 }
[[change]]
at = "10s"
link = "a-r"
rate = "50mbit"
[[cross]]
from = "a"
to = "b"
start = "2s"
stop = "4s"
flows = 3
congestion = "cubic"
"""


def test_everything_a_file_may_say_is_read() -> None:
    network = parse_network(GOOD, "offices")
    specs = {link.name: link.spec for link in network.links}
    assert network.name == "offices"
    assert network.congestion_of(network.hosts[1]) == "cubic"
    assert specs["a->r"].rate.mbit == pytest.approx(100)
    assert specs["a->r"].loss == pytest.approx(0.01)
    assert specs["a->r"].queue == 65536
    assert specs["r->a"].rate.mbit == pytest.approx(20)
    assert specs["r->a"].loss == 0
    assert specs["r->a"].delay == pytest.approx(0.005)
    assert specs["r->b"].mtu == 1400
    assert specs["b->r"].burst is not None
    assert network.changes[0].rate is not None
    assert network.cross[0].flows == 3


def test_reordering_and_duplication_are_read_for_links_and_changes() -> None:
    network = parse_network(
        """
        hosts = 2
        access = { reorder = "1%", reorder_by = "2ms", duplicate = "0.5%", up = { reorder = 0 } }
        [[change]]
        at = "1s"
        link = "*"
        duplicate = 0.1
        """
    )
    up, down = network.links[0].spec, network.links[1].spec
    assert (up.reorder, down.reorder, down.reorder_by, down.duplicate) == (0, 0.01, Seconds(0.002), 0.005)
    assert network.changes[0].applied(down).duplicate == 0.1
    assert network.changes[0].applied(down).reorder == 0.01


def test_addresses_of_hosts_are_read() -> None:
    text = '[[host]]\nname = "a"\nnat = { kind = "symmetric", timeout = "5s", forward = [80, "90-92"] }\n'
    text += '[[host]]\nname = "b"\nnat = {}\n[[host]]\nname = "c"\n[access]\nrate = "10mbit"\n'
    hosts = parse_network(text).hosts
    assert [host.nat for host in hosts] == [Nat("symmetric", Seconds(5), (80, 90, 91, 92)), Nat(), None]
    assert not parse_network(STAR).ipv6
    assert parse_network("ipv6 = true\n" + STAR).ipv6


def test_a_star_with_slow_uplinks() -> None:
    network = parse_network('hosts = 3\n[access]\nrate = "100mbit"\nup = { rate = "10mbit" }')
    specs = {link.name: link.spec for link in network.links}
    assert specs["h1->switch"].rate.mbit == pytest.approx(10)
    assert specs["switch->h1"].rate.mbit == pytest.approx(100)
    assert len(parse_network('hosts = 3\n[access]\nrate = "1mbit"', hosts=5).ranks) == 5


def test_a_matrix_has_its_own_values_for_each_direction() -> None:
    text = 'hosts = ["a", "b"]\n[matrix]\nrtt_ms = [[0, 20], [30, 0]]\nrate_mbit = [[0, 100], [50, 0]]'
    specs = {link.name: link.spec for link in parse_network(text).links}
    assert specs["a->b"].delay == pytest.approx(0.010)
    assert specs["b->a"].rate.mbit == pytest.approx(50)


def test_a_trace_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "slow.txt").write_text("0\t8\n1\t4\n")
    (tmp_path / "net.toml").write_text('hosts = 2\n[access]\ntrace = "slow.txt"\n')
    network = load_network(str(tmp_path / "net.toml"))
    assert network.links[0].spec.mean_rate.mbit == pytest.approx(6)


def test_a_wrong_trace_is_named_with_its_setting_and_file(tmp_path: Path) -> None:
    (tmp_path / "back.txt").write_text("0\t8\n2\t4\n1\t4\n")
    with pytest.raises(ConfigError, match=r"net.access.trace: .*back.txt: times must start at 0 and increase"):
        parse_network('hosts = 2\n[access]\ntrace = "back.txt"\n', "net", tmp_path)


NAT = '[[host]]\nname = "a"\nnat = {{ {} }}\n'
STAR = 'hosts = 2\n[access]\nrate = "10mbit"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hosts = ", "not valid TOML"),
        ("", r"hosts: write a number"),
        ("hosts = 0\n", r"hosts: must be in 1..1000, but it is 0"),
        ("hosts = 2\n", "'h1' cannot be reached from 'h0'"),
        ('hosts = 2\n[access]\nrat = "10mbit"', r"net.access.rat: unknown field; did you mean 'rate'"),
        ('hosts = 2\nfoo = 1\n[access]\nrate = "10mbit"', r"net.foo: unknown field"),
        ('hosts = 2\n[access]\nrate = "0mbit"', r"net.access.rate: must be above 0, but it is 0"),
        ('hosts = 2\n[access]\nrate = "10 bananas"', r"net.access.rate: unit 'bananas'"),
        ('hosts = 2\n[access]\nrate = "-5mbit"', r"net.access.rate"),
        ("hosts = 2\n[access]\nloss = -0.1", r"net.access.loss: -0.1 lies outside"),
        ('hosts = 2\n[access]\nup = { los = "1%" }', r"net.access.up.los: unknown field"),
        ("hosts = 2\n[access]\nmtu = true", r"net.access.mtu: must be of type int, but it is True"),
        ('hosts = 2\n[access]\ntrace = "nowhere"', r"net.access.trace: cannot read"),
        ("hosts = 2\n[access]\nburst = { enter = 0.1 }", r"net.access.burst.leave: is missing"),
        (STAR + '[[change]]\nat = "1s"\nlink = "h9-switch"\nrate = 1', "matches no link"),
        (
            STAR + '[[change]]\nat = "1s"\nlink = "*"\nrate = "0mbit"',
            r"change\[0\]: rate: must be above 0, but it is 0",
        ),
        (STAR + '[[cross]]\nfrom = "h0"\n', r"cross\[0\].to: is missing"),
        (STAR + '[[cross]]\nfrom = "h0"\nto = "h1"\nprotocol = "sctp"', r"protocol: 'sctp' is not one of"),
        ('hosts = ["a", "b"]\n[matrix]\nrtt_ms = [[0]]\nrate_mbit = [[0]]', r"matrix.rtt_ms: needs 2 rows of 2"),
        ('hosts = ["a"]\n[[host]]\nname = "b"', "not both"),
        ('hosts = ["a", "b"]\n[[link]]\nbetween = ["a"]', r"between: must name two ends"),
        ("hosts = 2\nlink = 3\n", r"link: must be a list of tables"),
        ("hosts = 2\nrouters = 3\n", r"net.routers: must be a list of names, but it is 3"),
        (
            NAT.format('kind = "cone"'),
            r"host\[0\].nat.kind: 'cone' is not one of full-cone, port-restricted, symmetric",
        ),
        (NAT.format('timeout = "0s"'), r"host\[0\].nat: nat.timeout: must be positive"),
        (NAT.format("forward = [0]"), r"nat.forward: 0 is not a port"),
        (NAT.format("forward = 29500"), r"nat.forward: must be a list of ports, but it is 29500"),
        (NAT.format('forward = ["9-8"]'), r"nat.forward: '9-8' is neither a port nor a range"),
        (NAT.format('forward = ["1-2000"]'), r"nat.forward: 2000 ports are too many"),
        (NAT.format("ports = []"), r"host\[0\].nat.ports: unknown field"),
        ("ipv6 = true\n" + NAT.format(""), "host a: nat translates IPv4 only; leave out nat or ipv6"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_network(text, "net")


def test_a_number_of_hosts_cannot_replace_named_hosts() -> None:
    with pytest.raises(ConfigError, match="lists its hosts by name"):
        parse_network('hosts = ["a", "b"]\n[access]\nrate = 1', hosts=4)


def test_what_is_neither_preset_nor_file_lists_the_presets() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'lan10'; use one of lan1g, lan100"):
        load_network("lan10")
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/x.toml"):
        load_network("/nowhere/x.toml")


def test_a_file_in_another_encoding_is_named_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_bytes('about = "Zürich"'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"old\.toml is not valid TOML: .*; save it as UTF-8"):
        load_network(str(path))

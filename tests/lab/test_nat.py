"""Hosts behind NATs: what each kind does to packets, and how ranks behind them reach each other."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire.lab import Lab
from gradwire.network import Nat, Network
from gradwire.network.nat import NatKind
from gradwire.units import Seconds
from tests.lab.conftest import pair
from tests.lab.test_udp_blocked import TRAIN

# The host behind the NAT sends from port 5000 to two ports of the other one, which prints where the packets came from
# and answers the first of them from both ports, and from a third one.
KINDS = """
import os, socket, sys
def bound(port):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("", port))
    one.settimeout(10)
    return one
if os.environ["RANK"] == "0":
    first, second, third = bound(7000), bound(7001), bound(7002)
    (_, seen), (_, other) = first.recvfrom(9), second.recvfrom(9)
    print(seen[0], seen[1] == 5000, seen[1] == other[1])
    third.sendto(b"third", seen)
    second.sendto(b"second", seen)
    first.sendto(b"first", seen)
else:
    own = bound(5000)
    got = set()
    while not got:  # the other one may not listen yet
        for port in (7000, 7001):
            own.sendto(b"x", (sys.argv[1], port))
        own.settimeout(0.5)
        try:
            while True:
                got.add(own.recv(9).decode())
        except TimeoutError:
            pass
    print(*sorted(got))
"""

# Rank 1 is quiet for longer than its NAT remembers it, then sends. Rank 0 counts how often it followed.
QUIET = """
import os, time
from datetime import timedelta
from torch.distributed import TCPStore
from gradwire.transport.bootstrap.rendezvous import rendezvous
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.wires.ltp import Endpoint, LtpConfig
rank = int(os.environ["RANK"])
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0, timedelta(seconds=30))
exchange = StoreExchange.open(store, "job", rank, 2, 60)
wire = rendezvous(exchange, lambda host, port: Endpoint(rank, b"k" * 16, LtpConfig(host, port, keepalive=5)))
exchange.barrier("connected")
for turn in range(3):
    time.sleep(1.2)
    inbound = bytearray(200_000)
    posted = wire.post(1 - rank, inbound, turn)
    sent = wire.send(1 - rank, bytes([turn + rank]) * 200_000, tag=turn)
    assert posted.wait(20).complete and sent.wait(20).complete
    assert inbound == bytes([turn + 1 - rank]) * 200_000
if rank == 0:
    print("followed", wire.counters()["moves"], flush=True)
time.sleep(1)
wire.close()
os._exit(0)  # without a word to the store: a restarted router has cut that connection
"""

AUTO = """
import logging, torch, torch.distributed as dist, gradwire
from torch.nn.parallel import DistributedDataParallel
logging.basicConfig(level=logging.INFO, format="%(message)s")
torch.manual_seed(0)
dist.init_process_group("gloo")
net = torch.nn.Linear(120, 120)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
handle = gradwire.attach(model, optimizer=optimizer)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 120)).square().mean().backward()
    optimizer.step()
print("steps", handle.step)
print(handle.summary())
handle.close()
dist.destroy_process_group()
"""

PORTS = tuple(range(29600, 29610))
RECIPE = f"GRADWIRE_ADVERTISE=$GRADWIRE_HOST GRADWIRE_PORTS={PORTS[0]}-{PORTS[-1]}"


def behind(a: Nat | None, b: Nat | None, delay_ms: float = 5) -> Network:
    network = pair(100, delay_ms)
    return replace(
        network, hosts=tuple(replace(host, nat=nat) for host, nat in zip(network.hosts, (a, b), strict=True))
    )


@pytest.mark.parametrize(
    ("kind", "outside", "heard"),
    [
        ("full-cone", "10.77.0.2 True True", "first second third"),
        ("port-restricted", "10.77.0.2 True True", "first second"),
        ("symmetric", "10.77.0.2 False False", "first"),
    ],
)
def test_each_kind_maps_and_filters_as_it_is_named(kind: NatKind, outside: str, heard: str) -> None:
    with Lab(behind(None, Nat(kind))) as lab:
        result = lab.run([sys.executable, "-c", KINDS, lab.address("a")], timeout=30)
    assert [host.output for host in result.hosts] == [outside, heard]
    assert result.stats.nat_drops >= 3 - len(heard.split())


@pytest.mark.parametrize("transport", ["ltp", "tcp"])
def test_ranks_behind_two_symmetric_nats_train_with_forwarded_ports(transport: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace('"gloo"', '"gradwire"'))
    settings = f"GRADWIRE_WIRE={transport} GRADWIRE_LEVEL=int8 {RECIPE}"
    job = f"exec env {settings} {sys.executable} -m gradwire.run {script}"
    nat = Nat("symmetric", forward=(29500, *PORTS))
    with Lab(behind(nat, nat)) as lab:
        result = lab.run(["sh", "-c", job], timeout=90)
    for host in result.hosts:
        assert "equal True" in host.output
    assert "int8" in result.hosts[0].output  # the announcement of gradwire.run


def test_without_the_recipe_the_error_names_the_rank_and_the_recipe() -> None:
    job = "import torch.distributed as dist; dist.init_process_group('gradwire')"
    environment = {"GRADWIRE_WIRE": "ltp", "GRADWIRE_TRANSPORT_CONNECT": "2"}
    network = behind(Nat("port-restricted", forward=(29500,)), Nat("port-restricted"))
    with Lab(network) as lab:
        output = lab.run([sys.executable, "-c", job], environment, timeout=90).hosts[0].output
    assert "rank 0 at 192.168.1.2" in output
    assert "rank 1 at 192.168.2.2" in output
    assert "if rank 1 (192.168.2.2) is behind a NAT, forward that range of TCP and UDP ports to it" in output
    assert "GRADWIRE_ADVERTISE" in output


@pytest.mark.parametrize("hidden", [0, 1])
def test_one_rank_behind_a_nat_needs_no_setting_for_ltp(hidden: int) -> None:
    nats = [None, None]
    nats[hidden] = Nat("symmetric", forward=(29500,))
    script = "import torch, torch.distributed as dist\ndist.init_process_group('gradwire')\n"
    script += "ones = torch.ones(1000)\ndist.all_reduce(ones)\nprint(ones.sum().item())\ndist.destroy_process_group()\n"
    with Lab(behind(*nats)) as lab:
        result = lab.run([sys.executable, "-c", script], {"GRADWIRE_WIRE": "ltp"}, timeout=60)
    assert [host.output.splitlines()[-1] for host in result.hosts] == ["2000.0"] * 2


def test_a_nat_that_forgets_a_quiet_rank_is_followed_to_its_new_port() -> None:
    with Lab(behind(None, Nat("symmetric", timeout=Seconds(0.6)))) as lab:
        result = lab.run([sys.executable, "-c", QUIET], timeout=90)
    assert result.code == 0, result.hosts[0].output
    assert "followed 3" in result.hosts[0].output


def test_a_restarted_router_is_followed() -> None:
    with Lab(behind(None, Nat("symmetric", timeout=Seconds(300)))) as lab:
        restarted: list[str] = []

        def on_line(host: str, line: str) -> None:
            if (host, line) == ("b", "turn 2"):
                restarted.append(host)
                lab.forget_mappings("b")

        script = QUIET.replace("    time.sleep(1.2)", '    print("turn", turn, flush=True)\n    time.sleep(1.2)')
        result = lab.run([sys.executable, "-c", script], timeout=90, on_line=on_line)
    assert restarted == ["b"]
    assert "followed 1" in result.hosts[0].output


def test_a_nat_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="host b: nat translates IPv4 only; leave out nat or ipv6"):
        replace(behind(None, Nat()), ipv6=True)
    with Lab(behind(None, Nat())) as lab, pytest.raises(ConfigError, match="nat: a is behind none"):
        lab.forget_mappings("a")


def test_auto_stays_with_the_group_where_no_wire_gets_through() -> None:
    # gloo's connection is made by the rank behind the NAT; gradwire's TCP is opened towards it, and UDP is blocked.
    network = behind(None, Nat(), delay_ms=20)
    links = tuple(replace(link, spec=replace(link.spec, loss=0.01)) for link in network.links)
    job = f"ip rule add ipproto udp blackhole && exec env GRADWIRE_TRANSPORT_CONNECT=2 {sys.executable} -c '{AUTO}'"
    with Lab(replace(network, links=links)) as lab:
        result = lab.run(["sh", "-c", job], timeout=120)
    first = result.hosts[0].output
    assert result.code == 0, first
    assert "could not be opened, gradients stay where they are" in first
    assert "steps 60" in first

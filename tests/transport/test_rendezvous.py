"""Rendezvous through a real store, with real endpoints: every rank gets a wire, or every rank the same error."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, Store

from gradwire.errors import ConfigError, LinkError, NoAnswerError
from gradwire.transport.bootstrap.address import interface_address, own_address, port_range, published_address, route_to
from gradwire.transport.bootstrap.rendezvous import RankAddress, _advice, rendezvous
from gradwire.transport.bootstrap.secret import (
    given_secret,
    job_secret,
    one_machine,
    shared_file,
    shared_secret,
    stretched,
)
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.wires.ltp import Endpoint, LtpConfig

LOCAL = {"MASTER_ADDR": "127.0.0.1"}
SECRET = b"0123456789abcdef"


def together(world: int, job: Callable[[int], Any]) -> list[Any]:
    """Run the job for every rank in a thread; results or errors, by rank."""
    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(job, rank) for rank in range(world)]
        return [future.exception(60) or future.result() for future in futures]


def wire(store: Store, rank: int, world: int, environment: dict[str, str], **settings: Any) -> Endpoint:
    exchange = StoreExchange.open(store, "job", rank, world, 20)
    config = {"connect_timeout": 5.0, **settings}
    secret = config.pop("secret", None) or job_secret(exchange, environment)
    return rendezvous(exchange, lambda host, port: Endpoint(rank, secret, LtpConfig(host, port, **config)), environment)


def test_ranks_connect_and_exchange_data() -> None:
    store = HashStore()
    ends = together(3, lambda rank: wire(store, rank, 3, LOCAL))
    try:
        buffer = bytearray(1000)
        inbound = ends[2].post(0, buffer)
        ends[0].send(2, b"x" * 1000).wait(20)
        assert inbound.wait(20).complete
        assert buffer == b"x" * 1000
    finally:
        for end in ends:
            end.close()


def test_a_second_rendezvous_of_the_same_group_does_not_read_the_firsts_values() -> None:
    store = HashStore()
    first = together(2, lambda rank: wire(store, rank, 2, LOCAL))
    second = together(2, lambda rank: wire(store, rank, 2, LOCAL))
    for end in first + second:
        assert isinstance(end, Endpoint)
        end.close()


def test_ports_come_from_the_range() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        low = min(taken.getsockname()[1], 65000)
        environment = {**LOCAL, "GRADWIRE_PORTS": f"{low}-{low + 40}"}
        store = HashStore()
        ends = together(2, lambda rank: wire(store, rank, 2, environment))
        for end in ends:
            assert low < end.port <= low + 40
            end.close()


def test_no_free_port_is_an_error_on_every_rank() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        store = HashStore()
        environments = [LOCAL, {**LOCAL, "GRADWIRE_PORTS": str(port)}]
        errors = together(2, lambda rank: wire(store, rank, 2, environments[rank]))
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "rank 1 cannot listen" in str(error)


def test_a_failed_pair_fails_every_rank_and_says_who_could_not_reach_whom() -> None:
    store = HashStore()
    secrets = [SECRET, SECRET, b"fedcba9876543210"]
    errors = together(3, lambda rank: wire(store, rank, 3, LOCAL, secret=secrets[rank], connect_timeout=1.0))
    for error in errors:
        assert isinstance(error, LinkError)
        assert "cannot reach a peer" in str(error)
        assert "127.0.0.1" in str(error)
        assert "GRADWIRE_SECRET differs" in str(error)


class Unreachable(Endpoint):
    """Publishes the port of a socket that nobody reads, and reaches nobody: like behind a firewall that drops UDP."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unread = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.unread.bind(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        return int(self.unread.getsockname()[1])

    def connect(self, peers: Any, timeout: float | None = None) -> None:
        super().connect(dict.fromkeys(peers, ("127.0.0.1", self.port)), timeout)

    def close(self) -> None:
        super().close()
        self.unread.close()


def test_a_missing_answer_is_distinguished_from_every_other_failure() -> None:
    store = HashStore()

    def connect(rank: int) -> Endpoint:
        kind = Unreachable if rank == 1 else Endpoint
        exchange = StoreExchange.open(store, "job", rank, 3, 20)
        return rendezvous(exchange, lambda host, port: kind(rank, SECRET, LtpConfig(connect_timeout=0.5)), LOCAL)

    for error in together(3, connect):
        assert isinstance(error, NoAnswerError)
        assert "does not answer" in str(error)


def test_a_rank_that_never_publishes_its_address_is_named() -> None:
    exchange = StoreExchange.open(HashStore(), "job", 0, 2, timeout=0.2)
    with pytest.raises(LinkError, match="address of rank 1"):
        rendezvous(exchange, lambda host, port: Endpoint(0, SECRET, LtpConfig(host, port)), LOCAL)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\x80\x04K\x01.", "cannot be read"),
        (b'{"address": "evil.example", "port": 5}', "no address"),
        (b'{"address": "127.0.0.1", "port": 70000}', "no port"),
        (b'{"address": "127.0.0.1", "port": "5"}', "cannot be read"),
    ],
)
def test_published_values_are_hostile_until_parsed(value: bytes, message: str) -> None:
    store = HashStore()
    PrefixStore("gradwire/job/1", store).set("address/1", value.decode("latin1"))
    exchange = StoreExchange.open(store, "job", 0, 2, timeout=5)
    with pytest.raises(LinkError, match=message):
        rendezvous(exchange, lambda host, port: Endpoint(0, SECRET, LtpConfig(host, port)), LOCAL)


def test_rank_0_draws_a_secret_when_none_is_given() -> None:
    store = HashStore()
    drawn = together(3, lambda rank: job_secret(StoreExchange.open(store, "job", rank, 3, 20), {}))
    assert len(set(drawn)) == 1
    assert len(drawn[0]) == 32


def test_a_secret_on_some_ranks_only_is_named() -> None:
    store = HashStore()
    given = [{}, {"GRADWIRE_SECRET": "0123456789abcdef"}]
    for error in together(2, lambda rank: job_secret(StoreExchange.open(store, "job", rank, 2, 20), given[rank])):
        assert isinstance(error, ConfigError)
        assert "set on rank 1 but not on rank 0" in str(error)


def test_secrets_are_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("a secret of sufficient length\n")
    assert given_secret({}) is None
    assert given_secret({"GRADWIRE_SECRET": "a secret of sufficient length"}) == stretched(path.read_bytes().strip())
    assert given_secret({"GRADWIRE_SECRET_FILE": str(path)}) == stretched(b"a secret of sufficient length")
    with pytest.raises(ConfigError, match="too few"):
        given_secret({"GRADWIRE_SECRET": "short"})
    with pytest.raises(ConfigError, match="No such file"):
        given_secret({"GRADWIRE_SECRET_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="both set"):
        given_secret({"GRADWIRE_SECRET": "x", "GRADWIRE_SECRET_FILE": "y"})


def test_typed_text_is_stretched_and_random_digits_are_not() -> None:
    digits = "0f" * 32
    assert given_secret({"GRADWIRE_SECRET": digits}) == bytes.fromhex(digits)
    typed = given_secret({"GRADWIRE_SECRET": "correct horse battery"})
    expected = hashlib.scrypt(b"correct horse battery", salt=b"gradwire job secret", n=2**14, r=8, p=1, dklen=32)
    assert typed == expected
    assert given_secret({"GRADWIRE_SECRET": digits[:-1]}) == stretched(digits[:-1].encode()) != bytes.fromhex(digits)


def test_ranks_of_one_launcher_share_a_secret_that_nobody_else_can_read(tmp_path: Path) -> None:
    path = tmp_path / "job.secret"
    drawn = together(8, lambda _: shared_secret(path))
    assert len(set(drawn)) == 1
    assert len(bytes.fromhex(drawn[0])) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by other users"):
        shared_secret(path)


def test_a_planted_secret_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "planted").write_text("somebody else's")
    (tmp_path / "job.secret").symlink_to(tmp_path / "planted")
    with pytest.raises(ConfigError, match="set GRADWIRE_SECRET instead"):
        shared_secret(tmp_path / "job.secret")


def test_another_launcher_port_or_attempt_has_another_secret() -> None:
    environment = {"MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0"}
    others = [{**environment, "MASTER_PORT": "29501"}, {**environment, "TORCHELASTIC_RESTART_COUNT": "1"}]
    paths = {shared_file(environment, 10), shared_file(environment, 11), *(shared_file(e, 10) for e in others)}
    assert len(paths) == 4
    assert one_machine({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"})
    assert not one_machine({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"})
    assert not one_machine({})


def test_the_named_interface_wins_over_the_route() -> None:
    assert interface_address("lo") == "127.0.0.1"
    assert own_address({"GRADWIRE_IFNAME": "nonesuch,lo", "GLOO_SOCKET_IFNAME": "nonesuch"}) == "127.0.0.1"
    assert own_address({"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "192.0.2.7"}) == "127.0.0.1"
    with pytest.raises(ConfigError, match="this host has"):
        own_address({"GRADWIRE_IFNAME": "nonesuch"})


def test_without_an_interface_the_route_to_the_master_decides() -> None:
    assert own_address({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    assert own_address({"MASTER_ADDR": "::1"}) == "::1"
    spread = {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}
    assert own_address(spread) == (route_to("192.0.2.1") or route_to("2001:db8::1") or "127.0.0.1")


def test_an_advertised_address_is_published_and_not_listened_on() -> None:
    store = HashStore()
    environment = {**LOCAL, "GRADWIRE_ADVERTISE": "127.0.0.2"}
    ends = together(2, lambda rank: wire(store, rank, 2, environment if rank else LOCAL, connect_timeout=0.5))
    # Nobody listens at 127.0.0.2, and rank 1 asks from where it does listen: rank 0 answers there.
    try:
        assert ends[0].addresses[1][0] == "127.0.0.2"
        assert ends[0].connection_state(1) == "connected"
    finally:
        for end in ends:
            end.close()


@pytest.mark.parametrize("text", ["no such name", "::1", "127.0.0.1:29600"])
def test_a_wrong_advertised_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"GRADWIRE_ADVERTISE: .* the public address of this host's router"):
        published_address({**LOCAL, "GRADWIRE_ADVERTISE": text})


def test_a_private_address_without_an_answer_may_be_behind_a_nat() -> None:
    own, far = RankAddress("203.0.113.9", 29600), RankAddress("192.168.1.2", 29600)
    said = _advice(own, [own, far, RankAddress("198.51.100.7", 29600)])
    assert "if rank 1 (192.168.1.2) is behind a NAT, forward that range of TCP and UDP ports to it" in said
    assert "NAT" not in _advice(far, [own, far])


@pytest.mark.parametrize("text", ["high", "0-5", "9-5", "5-70000", "-"])
def test_a_wrong_range_of_ports_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="GRADWIRE_PORTS"):
        port_range({"GRADWIRE_PORTS": text})

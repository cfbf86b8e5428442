"""Lost rank: finds out which rank is gone, when a collective failed and its own error does not say.

In: the error of a failed operation. Out: the same kind of error, with the rank and host that are gone.

    1. at attach every rank listens on a TCP port and reads from torch's store where the others listen
    2. when an operation fails, the first rank to notice connects to all others: the kernel of a live process accepts
       without the process's help, the port of a dead process is refused, a dead host does not answer
    3. it sends the result to those that accepted; they read it when they fail themselves, which may happen only because
       the first ranks have stopped meanwhile

No thread, no traffic while nothing fails, and no need for a store that may have died with rank 0. Messages carry a
token that only the job's ranks know; messages without it are dropped, and reading has a deadline, however many other
processes connect. What is read is only used in the text of an error.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gradwire.errors import ConfigError, LinkError
from gradwire.fork import void_in_child
from gradwire.transport.bootstrap.address import own_address, port_range, published_address
from gradwire.transport.bootstrap.store_exchange import StoreExchange

# A live host answers within a round trip, and a lost first packet is sent again after one second.
PROBE_TIMEOUT: Final = 3.0
# A process that is being killed loses its connections before its port, or after it: if every rank answers, probe again
# after this many seconds.
SECOND_PROBE: Final = 0.5
# A rank sends as soon as it is connected: a peer that has sent nothing after this many seconds is not one of the job.
MESSAGE_TIMEOUT: Final = 0.3
# Most bytes of another rank's message; ranks are numbers.
MESSAGE_BYTES: Final = 4096
# What a kernel answers where no process listens; any other error means that there is no route.
REFUSALS: Final = (errno.ECONNREFUSED, errno.ECONNRESET)


class ListenAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rank listens and the name of its host; port 0 where it does not listen."""

    host: str
    address: str = ""
    port: int = 0


class PublishedAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rank 0 publishes: where each rank listens, and the token of this job's messages."""

    addresses: list[ListenAddress]
    token: str


class ProbeResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks whose port refused the connection, and ranks that did not answer at all."""

    refused: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


class ProbeMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank sends to those it reached."""

    token: str
    found: ProbeResult


@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """Where every rank listens; `rank` is this process."""

    rank: int
    by_rank: dict[int, ListenAddress]
    token: str = ""

    def format_ranks(self, ranks: Iterable[int]) -> str:
        """ "rank 1 on alpha", "ranks 1 on alpha and 3 on beta"."""
        each = [f"{rank} on {self.by_rank[rank].host}" for rank in sorted(ranks)]
        return f"rank {each[0]}" if len(each) == 1 else f"ranks {', '.join(each[:-1])} and {each[-1]}"

    def describe(self, found: ProbeResult) -> str:
        """The result in one sentence; empty where every rank answered."""
        others = self.by_rank.keys() - {self.rank}
        gone = {rank for rank in found.refused if rank in others}
        silent = {rank for rank in found.silent if rank in others}
        if len(others) > 1 and gone | silent == others and not (gone and silent):
            all_others = self.format_ranks(others)
            return f"none of the other ranks answers: {all_others} stopped, or the network of this host did"
        if gone:
            are = "is" if len(gone) == 1 else "are"
            return f"{self.format_ranks(gone)} {are} gone: the process ended, or it closed gradwire"
        if silent:
            do = "does" if len(silent) == 1 else "do"
            return f"{self.format_ranks(silent)} {do} not answer: the host or the network to it is down"
        return ""


class LostRankFinder:
    """This rank's listening socket and the addresses of the others. `explained` may be called from any thread."""

    def __init__(self) -> None:
        self._peers = PeerAddresses(-1, {})
        self._listener: socket.socket | None = None
        self._found: ProbeResult | None = None
        self._lock = threading.Lock()

    def open(self, exchange: StoreExchange, host: str) -> None:
        """Every rank calls this at the same point."""
        own = ListenAddress(host)
        if (listening := _listen()) is not None:
            self._listener, address = listening
            weakref.finalize(self, self._listener.close)
            void_in_child(self, LostRankFinder.close)
            own = ListenAddress(host, address, self._listener.getsockname()[1])
        exchange.publish("lost-rank", own)
        if exchange.rank == 0:
            addresses = exchange.read_all("lost-rank", ListenAddress)
            exchange.publish("addresses", PublishedAddresses(addresses, secrets.token_hex(16)))
        published = exchange.read("addresses", 0, PublishedAddresses)
        self._peers = PeerAddresses(exchange.rank, dict(enumerate(published.addresses)), published.token)

    def forget(self, rank: int) -> None:
        """A new process runs as this rank: where it listens is not known."""
        self._peers.by_rank.pop(rank, None)

    def probe_ranks(self, ranks: Sequence[int]) -> tuple[set[int], set[int]]:
        """Of these ranks: those whose port refuses, and those whose port accepts."""
        known = {rank: self._peers.by_rank[rank] for rank in ranks if rank in self._peers.by_rank}
        addresses = {rank: (at.address, at.port) for rank, at in known.items() if at.port}
        found, reached = probe(addresses)
        for connection in reached:
            connection.close()
        return set(found.refused), addresses.keys() - {*found.refused, *found.silent}

    def explained(self, error: BaseException) -> BaseException:
        """A LinkError that begins with the ranks that are gone, where a probe finds any; any other error unchanged."""
        if not isinstance(error, LinkError):
            return error
        sentence = self._peers.describe(self._find())
        if not sentence or sentence in str(error):
            return error
        better = LinkError(f"{sentence} ({error})")
        better.__cause__ = error.__cause__ or error
        return better

    def close(self) -> None:
        """Also called in forked children (DataLoader workers): none may keep the port of a dead process open."""
        if self._listener is not None:
            self._listener.close()

    def _find(self) -> ProbeResult:
        """Probed once: a later probe would also find ranks that stopped because of the first failure."""
        with self._lock:
            if self._found is None:
                received = None if self._listener is None else _received(self._listener, self._peers.token)
                self._found = received or self._probe()
            return self._found

    def _probe(self) -> ProbeResult:
        others = {rank: at for rank, at in self._peers.by_rank.items() if at.port and rank != self._peers.rank}
        addresses = {rank: (at.address, at.port) for rank, at in others.items()}
        found, reached = probe(addresses)
        if found == ProbeResult():
            for connection in reached:
                connection.close()
            time.sleep(SECOND_PROBE)
            found, reached = probe(addresses)
        text = msgspec.json.encode(ProbeMessage(self._peers.token, found))
        for connection in reached:
            with contextlib.suppress(OSError):
                connection.send(text)
            connection.close()
        return found


def probe(addresses: Mapping[int, tuple[str, int]]) -> tuple[ProbeResult, list[socket.socket]]:
    """Connect to all at once: which refused, which did not answer, and the connections that were made."""
    waiting: dict[socket.socket, int] = {}
    refused: list[int] = []
    silent: list[int] = []
    reached: list[socket.socket] = []

    def ended(connection: socket.socket, rank: int, failed: int) -> None:
        if not failed:
            reached.append(connection)
            return
        (refused if failed in REFUSALS else silent).append(rank)
        connection.close()

    with selectors.DefaultSelector() as selector:
        for rank, (address, port) in addresses.items():
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            connection.setblocking(False)
            result = connection.connect_ex((address, port))
            if result != errno.EINPROGRESS:  # failed here; SO_ERROR does not report it
                ended(connection, rank, result)
                continue
            waiting[connection] = rank
            selector.register(connection, selectors.EVENT_WRITE)
        deadline = time.monotonic() + PROBE_TIMEOUT
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                connection = key.fileobj  # type: ignore[assignment]
                selector.unregister(connection)
                ended(connection, waiting.pop(connection), connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    for connection in waiting:
        connection.close()
    return ProbeResult(tuple(sorted(refused)), tuple(sorted([*silent, *waiting.values()]))), reached


def _received(listener: socket.socket, token: str) -> ProbeResult | None:
    """The result that another rank sent to this one; None where none did. The kernel kept the message."""
    deadline = time.monotonic() + PROBE_TIMEOUT
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection, _ = listener.accept()
        except OSError:
            return None
        with connection, contextlib.suppress(OSError, msgspec.MsgspecError):
            connection.settimeout(min(left, MESSAGE_TIMEOUT))
            message = msgspec.json.decode(connection.recv(MESSAGE_BYTES), type=ProbeMessage)
            known = hmac.compare_digest(message.token.encode(), token.encode())
            if known and (message.found.refused or message.found.silent):
                return message.found
    return None


def _listen() -> tuple[socket.socket, str] | None:
    """A socket whose connections the kernel accepts, and the address at which the others reach it.

    None where no port is free: then no probe reaches this rank.
    """
    try:
        address, published, ports = own_address(), published_address(), port_range()
    except ConfigError:
        return None
    for port in ports:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            listener.bind((address, port))
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            continue
        listener.setblocking(False)
        return listener, published
    return None

"""Presence: which rank is gone, when an operation of many ranks failed and its own error does not say.

In: an error that some collective ended with. Out: the same kind of error, with the rank and host that are gone.

    1. at attach every rank listens on a TCP port and learns, through torch's store, where the others listen
    2. when an operation fails, the first to notice connects to everybody: the kernel of a live process accepts without
       the process's help, a dead process's port is refused, a dead host does not answer
    3. it tells those who accepted what it found: they read it when they fail themselves, perhaps only because the ranks
       that noticed first have stopped meanwhile

No thread, no traffic while nothing fails, and no need for a store that may have died with rank 0. Messages carry a
token that rank 0 drew and only the job's ranks know; what is read without it is thrown away, and reading has a deadline
however many strangers connect. What is read only ever becomes part of an error's text.
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
from gradwire.transport.bootstrap.address import own_address, port_range
from gradwire.transport.bootstrap.store_exchange import StoreExchange

# A host that lives answers within a round trip, and a first packet that was lost is sent again after one second.
PATIENCE: Final = 3.0
# A process that is being killed loses its connections before its port, or after: who finds everybody there asks again
# after so many seconds.
AGAIN: Final = 0.5
# A rank sends at once when it is connected: who has sent nothing after so many seconds is a stranger.
STRANGER: Final = 0.3
# Most bytes of what another rank found; ranks are numbers.
MOST: Final = 4096
# What a kernel says where nobody listens; anything else is a network that does not lead there.
REFUSALS: Final = (errno.ECONNREFUSED, errno.ECONNRESET)


class Listening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rank listens and what its host is called; port 0 where it does not listen."""

    host: str
    address: str = ""
    port: int = 0


class Directory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rank 0 publishes: where each rank listens, and the token of this job's messages."""

    places: list[Listening]
    token: str


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks whose port refused, and ranks that did not answer at all."""

    refused: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank sends to those it reached."""

    token: str
    found: Found


@dataclass(frozen=True, slots=True)
class Roster:
    """Where everybody is; `rank` is this process."""

    rank: int
    places: dict[int, Listening]
    token: str = ""

    def named(self, ranks: Iterable[int]) -> str:
        """ "rank 1 on alpha", "ranks 1 on alpha and 3 on beta"."""
        each = [f"{rank} on {self.places[rank].host}" for rank in sorted(ranks)]
        return f"rank {each[0]}" if len(each) == 1 else f"ranks {', '.join(each[:-1])} and {each[-1]}"

    def sentence(self, found: Found) -> str:
        """What is known, in one sentence; empty where nothing is."""
        others = self.places.keys() - {self.rank}
        gone = {rank for rank in found.refused if rank in others}
        silent = {rank for rank in found.silent if rank in others}
        if len(others) > 1 and gone | silent == others and not (gone and silent):
            return f"none of the other ranks answers: {self.named(others)} stopped, or the network of this host did"
        if gone:
            are = "is" if len(gone) == 1 else "are"
            return f"{self.named(gone)} {are} gone: the process ended, or it closed gradwire"
        if silent:
            do = "does" if len(silent) == 1 else "do"
            return f"{self.named(silent)} {do} not answer: the host or the network to it is down"
        return ""


class Liveness:
    """This rank's listening socket and the roster. `explained` may be called from any thread."""

    def __init__(self) -> None:
        self._roster = Roster(-1, {})
        self._listener: socket.socket | None = None
        self._found: Found | None = None
        self._lock = threading.Lock()

    def open(self, exchange: StoreExchange, host: str) -> None:
        """Every rank calls this at the same point."""
        self._listener = _listen()
        place = Listening(host)
        if self._listener is not None:
            weakref.finalize(self, self._listener.close)
            void_in_child(self, Liveness.close)
            place = Listening(host, *self._listener.getsockname()[:2])
        exchange.publish("presence", place)
        if exchange.rank == 0:
            exchange.publish("roster", Directory(exchange.read_all("presence", Listening), secrets.token_hex(16)))
        directory = exchange.read("roster", 0, Directory)
        self._roster = Roster(exchange.rank, dict(enumerate(directory.places)), directory.token)

    def returned(self, rank: int) -> None:
        """A new process has this rank's place: where it listens is not known."""
        self._roster.places.pop(rank, None)

    def ask(self, ranks: Sequence[int]) -> tuple[set[int], set[int]]:
        """Of these ranks: those whose port is refused, and those whose port is there."""
        known = {rank: self._roster.places[rank] for rank in ranks if rank in self._roster.places}
        places = {rank: (place.address, place.port) for rank, place in known.items() if place.port}
        found, reached = probe(places)
        for connection in reached:
            connection.close()
        return set(found.refused), places.keys() - {*found.refused, *found.silent}

    def explained(self, error: BaseException) -> BaseException:
        """A LinkError that begins with who is gone, where that can be found out; anything else as it is."""
        if not isinstance(error, LinkError):
            return error
        sentence = self._roster.sentence(self._find())
        if not sentence or sentence in str(error):
            return error
        better = LinkError(f"{sentence} ({error})")
        better.__cause__ = error.__cause__ or error
        return better

    def close(self) -> None:
        """Also called in forked children (DataLoader workers): none may keep the port of a process that is dead."""
        if self._listener is not None:
            self._listener.close()

    def _find(self) -> Found:
        """Found once: what is seen later is also the work of those who stopped because of it."""
        with self._lock:
            if self._found is None:
                heard = None if self._listener is None else _heard(self._listener, self._roster.token)
                self._found = heard or self._asked()
            return self._found

    def _asked(self) -> Found:
        others = {rank: place for rank, place in self._roster.places.items() if place.port}
        others.pop(self._roster.rank, None)
        places = {rank: (place.address, place.port) for rank, place in others.items()}
        found, reached = probe(places)
        if found == Found():
            for connection in reached:
                connection.close()
            time.sleep(AGAIN)
            found, reached = probe(places)
        text = msgspec.json.encode(Message(self._roster.token, found))
        for connection in reached:
            with contextlib.suppress(OSError):
                connection.send(text)
            connection.close()
        return found


def probe(places: Mapping[int, tuple[str, int]], patience: float = PATIENCE) -> tuple[Found, list[socket.socket]]:
    """Connect to all at once: who refused, who did not answer, and the connections that were made."""
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
        for rank, (address, port) in places.items():
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            connection.setblocking(False)
            result = connection.connect_ex((address, port))
            if result != errno.EINPROGRESS:  # failed here, and SO_ERROR would not tell
                ended(connection, rank, result)
                continue
            waiting[connection] = rank
            selector.register(connection, selectors.EVENT_WRITE)
        deadline = time.monotonic() + patience
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                connection = key.fileobj  # type: ignore[assignment]
                selector.unregister(connection)
                ended(connection, waiting.pop(connection), connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    for connection in waiting:
        connection.close()
    return Found(tuple(sorted(refused)), tuple(sorted([*silent, *waiting.values()]))), reached


def _heard(listener: socket.socket, token: str) -> Found | None:
    """What the first rank that noticed sent to this one; None where nobody did. The kernel kept it."""
    deadline = time.monotonic() + PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection, _ = listener.accept()
        except OSError:
            return None
        with connection, contextlib.suppress(OSError, msgspec.MsgspecError):
            connection.settimeout(min(left, STRANGER))
            message = msgspec.json.decode(connection.recv(MOST), type=Message)
            known = hmac.compare_digest(message.token.encode(), token.encode())
            if known and (message.found.refused or message.found.silent):
                return message.found
    return None


def _listen() -> socket.socket | None:
    """A socket whose connections the kernel accepts; None where no port can be had: then nobody is told apart."""
    try:
        address, ports = own_address(), port_range()
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
        return listener
    return None

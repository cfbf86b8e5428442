"""Secret: the job secret, from which all keys of a wire are derived.

In: the environment and torch's store. Out: bytes, the same on every rank. GRADWIRE_SECRET or the file that
GRADWIRE_SECRET_FILE names comes first. Without either, ranks that one launcher started on one machine share a random
one through a private file (`shared_secret`, used by gradwire.run); other jobs get one from rank 0 through the store.

A secret from the store protects the job's packets from everybody who cannot read that store: other machines of the
network, other jobs, senders of stray or forged packets. It does not protect from those who can reach the store's port
(MASTER_PORT), because torch's store has no password. Where that matters, give every rank the same secret by the
environment or a file.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.bootstrap.store_exchange import StoreExchange

VARIABLE: Final = "GRADWIRE_SECRET"
FILE_VARIABLE: Final = "GRADWIRE_SECRET_FILE"
LEAST_BYTES: Final = 16
RANDOM_BYTES: Final = 32
_HOW: Final = "write at least 16 random characters, for example the output of: openssl rand -hex 32"


def given_secret(environment: Mapping[str, str] | None = None) -> bytes | None:
    """The secret the user gave, or None; ConfigError for one that is too short, unreadable or given twice."""
    environment = os.environ if environment is None else environment
    text, path = environment.get(VARIABLE), environment.get(FILE_VARIABLE)
    if text and path:
        raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one")
    if path:
        return _long_enough(_read(Path(path)), f"{FILE_VARIABLE}={path}")
    return _long_enough(text.encode(), VARIABLE) if text else None


def job_secret(exchange: StoreExchange, environment: Mapping[str, str] | None = None) -> bytes:
    """The secret of all ranks of this exchange: the given one, or a random one of rank 0. Every rank calls this."""
    given = given_secret(environment)
    present = exchange.gather("secret-given", given is not None, bool)
    odd = [rank for rank, has in enumerate(present) if has != present[0]]
    if odd:
        have, lack = (odd, [0]) if present[odd[0]] else ([0], odd)
        raise ConfigError(
            f"{VARIABLE}: set on rank {have[0]} but not on rank {lack[0]}; set the same one on every rank, or on none"
        )
    if given is not None:
        return given
    if exchange.rank == 0:
        exchange.publish("secret", secrets.token_hex(RANDOM_BYTES))
    try:
        drawn = bytes.fromhex(exchange.read("secret", 0, str))
    except ValueError as error:
        raise LinkError("the store holds no job secret of gradwire; does another program write to it?") from error
    return _long_enough(drawn, "the secret of rank 0")


def one_machine(environment: Mapping[str, str]) -> bool:
    """Whether torchrun's variables say that all ranks of the job run on this machine."""
    local, world = environment.get("LOCAL_WORLD_SIZE"), environment.get("WORLD_SIZE")
    return local is not None and local == world


def shared_file(environment: Mapping[str, str], launcher: int) -> Path:
    """The secret's file for the ranks that process `launcher` started; another name after each restart."""
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = f"gradwire-{os.getuid()}-{launcher}-{environment.get('MASTER_PORT', '0')}-{attempt}.secret"
    return Path(tempfile.gettempdir()) / name.replace("/", "_")


def shared_secret(path: Path) -> str:
    """The secret in `path`, written by the first rank. Only this user can read it; ConfigError if others could."""
    if not path.exists():
        descriptor, draft = tempfile.mkstemp(dir=path.parent)  # readable by this user alone
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(RANDOM_BYTES))
        # A link appears complete or not at all, and fails if one exists: all ranks read the same secret.
        with suppress(FileExistsError):
            os.link(draft, path)
        os.unlink(draft)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            status, text = os.fstat(file.fileno()), file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; set {VARIABLE} instead: {_HOW}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by other users, so it holds no secret; set {VARIABLE} instead: {_HOW}")
    return text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{FILE_VARIABLE}={path}: {error.strerror}; {_HOW}") from error


def _long_enough(secret: bytes, source: str) -> bytes:
    if len(secret) < LEAST_BYTES:
        raise ConfigError(f"{source}: {len(secret)} bytes are too few for a secret; {_HOW}")
    return secret

"""Secret: the job secret, from which all keys of a wire are derived.

In: the environment and torch's store. Out: bytes, the same on every rank. GRADWIRE_SECRET or the file that
GRADWIRE_SECRET_FILE names comes first. Without either, ranks that one launcher started on one machine share a random
one through a private file (`shared_secret`, used by gradwire.run); other jobs get one from rank 0, sealed for each rank
under keys that are agreed through the store (`secret_exchange`).

Text that a person typed is stretched by scrypt: whoever guesses it from a recorded packet pays for each guess.

A secret from the store protects the job from everybody who cannot write to that store: other machines of the network,
other jobs, senders of stray or forged packets, readers of the store's traffic. It does not protect from those who reach
the store's port (MASTER_PORT) while the job starts, because torch's store has no password. Where that matters, give
every rank the same secret by the environment or a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.bootstrap.secret_exchange import draw_key, open_secret, seal_secret
from gradwire.transport.bootstrap.store_exchange import StoreExchange

VARIABLE: Final = "GRADWIRE_SECRET"
FILE_VARIABLE: Final = "GRADWIRE_SECRET_FILE"
LEAST_BYTES: Final = 16
RANDOM_BYTES: Final = 32
# 16 MiB and about 50 ms for each guess. The salt separates gradwire from other programs only: ranks share nothing else
# that could be one.
_SCRYPT: Final = {"salt": b"gradwire job secret", "n": 2**14, "r": 8, "p": 1, "dklen": RANDOM_BYTES}
_HOW: Final = "write at least 16 random characters, for example the output of: openssl rand -hex 32"


def given_secret(environment: Mapping[str, str] | None = None) -> bytes | None:
    """The secret the user gave, or None; ConfigError for one that is too short, unreadable or given twice."""
    environment = os.environ if environment is None else environment
    text, path = environment.get(VARIABLE), environment.get(FILE_VARIABLE)
    if text and path:
        raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one")
    if path:
        return stretched(_long_enough(_read(Path(path)), f"{FILE_VARIABLE}={path}"))
    return stretched(_long_enough(text.encode(), VARIABLE)) if text else None


def stretched(text: bytes) -> bytes:
    """32 bytes: those that 64 hexadecimal digits stand for, which somebody drew; of any other text its scrypt hash."""
    if re.fullmatch(rb"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text.decode())
    return hashlib.scrypt(text, **_SCRYPT)  # type: ignore[arg-type]  # mypy joins the values' types


class SecretOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the user gave this rank a secret, and its public key for the case that nobody has one."""

    given: bool
    key: str


def job_secret(exchange: StoreExchange, environment: Mapping[str, str] | None = None) -> bytes:
    """The secret of all ranks of this exchange: the given one, or a random one of rank 0. Every rank calls this."""
    given = given_secret(environment)
    key = draw_key()
    offers = exchange.gather("secret-offer", SecretOffer(given is not None, key.public_key.hex()), SecretOffer)
    present = [offer.given for offer in offers]
    odd = [rank for rank, has in enumerate(present) if has != present[0]]
    if odd:
        have, lack = (odd, [0]) if present[odd[0]] else ([0], odd)
        raise ConfigError(
            f"{VARIABLE}: set on rank {have[0]} but not on rank {lack[0]}; set the same one on every rank, or on none"
        )
    if given is not None:
        return given
    if exchange.rank == 0:
        drawn = secrets.token_bytes(RANDOM_BYTES)
        try:
            exchange.publish("secret", [seal_secret(drawn, key, offer.key) for offer in offers[1:]])
        except ValueError as error:
            raise LinkError(
                f"a rank published no public key ({error}); does another program write to the store?"
            ) from error
        return drawn
    sealed = exchange.read("secret", 0, list[str])
    if len(sealed) != exchange.world_size - 1:
        raise LinkError(f"rank 0 sealed the job secret for {len(sealed)} ranks, not for {exchange.world_size - 1}")
    return open_secret(sealed[exchange.rank - 1], key, offers[0].key)


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

"""The job secret: what every member knows and nobody else should. All keys of a wire come from it.

In: the environment and torch's store. Out: bytes, the same on every rank. GRADWIRE_SECRET or the file that
GRADWIRE_SECRET_FILE names wins; without either, rank 0 draws 256 random bits and hands them out through the store.

A secret from the store protects the job's packets from everybody who cannot read that store: other machines of the
network, other jobs, whoever sends stray or forged packets. It does not protect from those who can reach the store's
port (MASTER_PORT), because torch's store asks nobody for a password. Where that matters, give every rank the same
secret by the environment or a file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.notes import Notes

VARIABLE: Final = "GRADWIRE_SECRET"
FILE_VARIABLE: Final = "GRADWIRE_SECRET_FILE"
LEAST: Final = 16
DRAWN: Final = 32
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


def job_secret(notes: Notes, environment: Mapping[str, str] | None = None) -> bytes:
    """The secret all ranks of this meeting use: the given one, or the one rank 0 draws. Every rank calls this."""
    given = given_secret(environment)
    told = notes.gather("secret-given", given is not None, bool)
    odd = [rank for rank, has in enumerate(told) if has != told[0]]
    if odd:
        have, lack = (odd, [0]) if told[odd[0]] else ([0], odd)
        raise ConfigError(
            f"{VARIABLE}: set on rank {have[0]} but not on rank {lack[0]}; set the same one on every rank, or on none"
        )
    if given is not None:
        return given
    if notes.rank == 0:
        notes.tell("secret", secrets.token_hex(DRAWN))
    try:
        drawn = bytes.fromhex(notes.hear("secret", 0, str))
    except ValueError as error:
        raise LinkError("the store holds no job secret of ours: does another program write to it?") from error
    return _long_enough(drawn, "the secret rank 0 drew")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{FILE_VARIABLE}={path}: {error.strerror}; {_HOW}") from error


def _long_enough(secret: bytes, source: str) -> bytes:
    if len(secret) < LEAST:
        raise ConfigError(f"{source}: {len(secret)} bytes are too few for a secret; {_HOW}")
    return secret

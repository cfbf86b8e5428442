"""Secret exchange: gives the job secret to other ranks through torch's store, which everybody may read.

In: a store and X25519 keys that each process draws for this purpose. Out: the same secret on every rank.

    1. each rank publishes a public key
    2. the holder seals the secret for a rank under the key that only the two can compute (`seal_secret`)
    3. that rank opens it (`open_secret`)

A process that joins later asks for it (`request_secret`), and members of the job answer (`SecretAnswers`).

Who only reads the store, then or later, learns nothing. Who can write to it can interpose: exchange the public keys, or
ask like a rank that joins later. The store has no password, so nothing that goes through it alone can prevent that;
GRADWIRE_SECRET does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from gradwire._native import EphemeralKey
from gradwire.errors import LinkError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SECRET_BYTES: Final = 32
# Calls of `SecretAnswers.answer`, a second apart, for which a request may stay unwritten, and new requests of one call.
PATIENCE: Final = 60
MOST_REQUESTS: Final = 64
_UNREADABLE: Final = "the store holds no job secret for this rank; does another program write to it?"


def draw_key() -> EphemeralKey:
    """A key pair of this exchange."""
    return EphemeralKey(secrets.token_bytes(32))


def seal_secret(secret: bytes, key: EphemeralKey, receiver: str) -> str:
    """`secret` for the holder of the private key of `receiver` (hex). A pair of keys seals once in each direction: the
    mask is used for nothing else."""
    mask, tag_key = _keys(key, receiver, sender=key.public_key.hex(), receiver=receiver)
    masked = bytes(a ^ b for a, b in zip(secret, mask, strict=True))
    return (masked + _mac(tag_key, masked)).hex()


def open_secret(sealed: str, key: EphemeralKey, sender: str) -> bytes:
    """What `seal_secret` of the holder of `sender` (hex) returned; LinkError where it was changed."""
    try:
        mask, tag_key = _keys(key, sender, sender=sender, receiver=key.public_key.hex())
        data = bytes.fromhex(sealed)
    except ValueError as error:
        raise LinkError(_UNREADABLE) from error
    masked, tag = data[:SECRET_BYTES], data[SECRET_BYTES:]
    if len(masked) != SECRET_BYTES or not hmac.compare_digest(tag, _mac(tag_key, masked)):
        raise LinkError(_UNREADABLE)
    return bytes(a ^ b for a, b in zip(masked, mask, strict=True))


class SealedSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sealed secret, and the public key of who sealed it."""

    sender: str
    sealed: str


def request_secret(store: Store, timeout: float) -> bytes:
    """The secret of a running job, from any of its members; LinkError where none answers in time."""
    key = draw_key()
    number = store.add("secret/requests", 1)
    store.set(f"secret/request/{number}", key.public_key.hex())
    try:
        store.wait([f"secret/answer/{number}"], timedelta(seconds=timeout))
        answer = msgspec.json.decode(store.get(f"secret/answer/{number}"), type=SealedSecret)
    except RuntimeError as error:
        raise LinkError(
            f"no rank of the job answered the request for its secret within {timeout:g} s; set the job's "
            "GRADWIRE_SECRET for this rank, or restart the whole job from a checkpoint"
        ) from error
    except msgspec.DecodeError as error:
        raise LinkError(_UNREADABLE) from error
    return open_secret(answer.sealed, key, answer.sender)


class SecretAnswers:
    """Answers `request_secret` of processes that join later. Several members may answer: one answer is enough."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store, self._secret = store, secret
        self._seen = store.add("secret/requests", 0)
        self._unwritten: dict[int, int] = {}  # number of a request: calls of `answer` that still look for it

    def answer(self) -> None:
        """Answer what was asked since the last call; one round trip to the store where nothing was.

        A request is counted before it is written, and its process may die in between: others do not wait behind it."""
        last = min(self._store.add("secret/requests", 0), self._seen + MOST_REQUESTS)
        self._unwritten |= dict.fromkeys(range(self._seen + 1, last + 1), PATIENCE)
        self._seen = last
        for number, calls in list(self._unwritten.items()):
            if self._store.check([f"secret/request/{number}"]):
                del self._unwritten[number]
                self._answer(number, self._store.get(f"secret/request/{number}").decode("ascii", "replace"))
            elif calls > 1:
                self._unwritten[number] = calls - 1
            else:
                del self._unwritten[number]

    def _answer(self, number: int, receiver: str) -> None:
        key = draw_key()
        try:
            sealed = SealedSecret(key.public_key.hex(), seal_secret(self._secret, key, receiver))
        except ValueError:  # anybody can write to the store: what is no public key gets no answer
            return
        self._store.set(f"secret/answer/{number}", msgspec.json.encode(sealed).decode())


def _keys(key: EphemeralKey, other: str, *, sender: str, receiver: str) -> tuple[bytes, bytes]:
    """Mask and tag key of one direction between two public keys; ValueError for what is no key or a weak one."""
    shared = key.agree(bytes.fromhex(other))
    root = _mac(b"gradwire secret exchange", shared)
    context = bytes.fromhex(sender) + bytes.fromhex(receiver)
    return _mac(root, b"mask" + context), _mac(root, b"tag" + context)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hashlib.sha256)

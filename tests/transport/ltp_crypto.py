"""Keys and seals of docs/ltp.md, sections 3 and 6, from Python's hashlib and OpenSSL's library: no code of gradwire."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Final

_X25519: Final = 1034  # NID_X25519
_SET_TAG, _GET_TAG = 0x11, 0x10


def _library() -> Any:
    crypto = ctypes.CDLL(ctypes.util.find_library("crypto") or "libcrypto.so.3")
    for name in ("EVP_PKEY_new_raw_private_key", "EVP_PKEY_new_raw_public_key", "EVP_PKEY_CTX_new"):
        getattr(crypto, name).restype = ctypes.c_void_p
    for name in ("EVP_CIPHER_CTX_new", "EVP_aes_128_gcm"):
        getattr(crypto, name).restype = ctypes.c_void_p
    return crypto


_CRYPTO: Final = _library()


def extract(salt: bytes, secret: bytes) -> bytes:
    """HKDF-Extract of RFC 5869."""
    return hmac.digest(salt, secret, hashlib.sha256)


def expand(key: bytes, label: str, context: bytes = b"", size: int = 32) -> bytes:
    """HKDF-Expand, of which one block is enough."""
    return hmac.digest(key, label.encode() + context + b"\x01", hashlib.sha256)[:size]


def tag(handshake_key: bytes, body: bytes, context: bytes = b"") -> bytes:
    return hmac.digest(handshake_key, body + context, hashlib.sha256)[:16]


def public_key(private: bytes) -> bytes:
    base = bytes([9]) + bytes(31)  # the base point of RFC 7748
    return x25519(private, base)


def x25519(private: bytes, public: bytes) -> bytes:
    """The shared secret; ValueError for a public key of low order."""
    own = ctypes.c_void_p(_CRYPTO.EVP_PKEY_new_raw_private_key(_X25519, None, private, ctypes.c_size_t(32)))
    other = ctypes.c_void_p(_CRYPTO.EVP_PKEY_new_raw_public_key(_X25519, None, public, ctypes.c_size_t(32)))
    context = ctypes.c_void_p(_CRYPTO.EVP_PKEY_CTX_new(own, None))
    shared, size = ctypes.create_string_buffer(32), ctypes.c_size_t(32)
    done = (
        _CRYPTO.EVP_PKEY_derive_init(context) == 1
        and _CRYPTO.EVP_PKEY_derive_set_peer(context, other) == 1
        and _CRYPTO.EVP_PKEY_derive(context, shared, ctypes.byref(size)) == 1
    )
    _CRYPTO.EVP_PKEY_CTX_free(context)
    _CRYPTO.EVP_PKEY_free(own)
    _CRYPTO.EVP_PKEY_free(other)
    if not done or shared.raw == bytes(32):
        raise ValueError("a public key of low order")
    return shared.raw


def _gcm(key: bytes, iv: bytes, data: tuple[bytes, bytes], tag: bytes | None) -> tuple[bytes, bytes]:
    """AES-128-GCM of (associated data, text): encrypts without a tag, opens with one. Returns text and tag."""
    context = ctypes.c_void_p(_CRYPTO.EVP_CIPHER_CTX_new())
    cipher = ctypes.c_void_p(_CRYPTO.EVP_aes_128_gcm())
    associated, text = data
    out, made, written = ctypes.create_string_buffer(len(text) + 16), ctypes.create_string_buffer(16), ctypes.c_int()
    try:
        _CRYPTO.EVP_CipherInit_ex(context, cipher, None, key, iv, int(tag is None))
        _CRYPTO.EVP_CipherUpdate(context, None, ctypes.byref(written), associated, len(associated))
        if text:
            _CRYPTO.EVP_CipherUpdate(context, out, ctypes.byref(written), text, len(text))
        if tag is not None:
            _CRYPTO.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, 16, tag)
        if _CRYPTO.EVP_CipherFinal_ex(context, made, ctypes.byref(written)) != 1:
            raise ValueError("not authentic")
        _CRYPTO.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, 16, made)
    finally:
        _CRYPTO.EVP_CIPHER_CTX_free(context)
    return out.raw[: len(text)], made.raw


@dataclass(frozen=True, slots=True)
class PacketKey:
    """Key and iv of one direction and generation."""

    secret: bytes

    @property
    def key(self) -> bytes:
        return expand(self.secret, "ltp1 key", size=16)

    @property
    def iv(self) -> bytes:
        return expand(self.secret, "ltp1 iv", size=12)

    def following(self) -> PacketKey:
        return PacketKey(expand(self.secret, "ltp1 update"))

    def seal(self, number: int, header: bytes, frames: bytes, *, encrypt: bool = True) -> bytes:
        """The whole packet."""
        parts = (header, frames) if encrypt else (header + frames, b"")
        text, made = _gcm(self.key, self._nonce(number), parts, None)
        return header + (text if encrypt else frames) + made

    def open(self, number: int, packet: bytes, *, encrypt: bool = True) -> bytes:
        """The frames of a whole packet; ValueError where it is not authentic."""
        header, body, made = packet[:12], packet[12:-16], packet[-16:]
        parts = (header, body) if encrypt else (header + body, b"")
        text, _ = _gcm(self.key, self._nonce(number), parts, made)
        return text if encrypt else body

    def _nonce(self, number: int) -> bytes:
        return (int.from_bytes(self.iv) ^ number).to_bytes(12)


@dataclass(frozen=True, slots=True)
class JobKeys:
    """What the job secret alone gives."""

    job_secret: bytes

    @property
    def handshake_key(self) -> bytes:
        return extract(b"ltp1 handshake", self.job_secret)

    @property
    def job_key(self) -> bytes:
        return extract(b"ltp3 job", self.job_secret)

    def traffic(self, shared: bytes, hello: bytes, accept: bytes) -> tuple[bytes, bytes]:
        """secret_i and secret_r, of whole HELLO and ACCEPT packets."""
        transcript = hashlib.sha256(hello_core(hello) + accept[:-16]).digest()
        master = extract(self.job_key, shared)
        return expand(master, "ltp3 initiator", transcript), expand(master, "ltp3 responder", transcript)


def hello_core(hello: bytes) -> bytes:
    """HELLO's bytes 0..1183, the cookie zeroed."""
    return hello[:92] + bytes(24) + hello[116:1184]

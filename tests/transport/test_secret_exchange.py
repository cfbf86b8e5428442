"""The job secret reaches every rank through a store whose readers do not learn it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore

from gradwire._native import EphemeralKey
from gradwire.errors import LinkError
from gradwire.sites.address_book import AddressBook
from gradwire.transport.bootstrap.secret import job_secret
from gradwire.transport.bootstrap.secret_exchange import (
    PATIENCE,
    SecretAnswers,
    draw_key,
    open_secret,
    request_secret,
    seal_secret,
)
from gradwire.transport.bootstrap.store_exchange import StoreExchange

SECRET = bytes(range(100, 132))


class RecordingStore(HashStore):
    """Keeps everything that is written, as one who reads the store's traffic can."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.written[key] = value
        super().set(key, value)


def exchanged(store: HashStore, world: int) -> list[bytes]:
    exchanges = [StoreExchange(store, rank, world, 20) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda exchange: job_secret(exchange, {}), exchanges))


def test_a_reader_of_the_store_does_not_find_the_secret() -> None:
    store = RecordingStore()
    secrets = exchanged(store, 4)
    assert len(set(secrets)) == 1
    text = json.dumps(store.written).lower()
    assert len(store.written) == 5  # four offers, and what rank 0 sealed
    assert secrets[0].hex() not in text
    # Nor does anything that follows from what is public: each published value taken for the key opens nothing.
    sealed = json.loads(store.written["secret/0"])
    offers = [json.loads(store.written[f"secret-offer/{rank}"])["key"] for rank in range(4)]
    for each in sealed:
        with pytest.raises(LinkError):
            open_secret(each, EphemeralKey(bytes.fromhex(offers[0])), offers[0])
    assert len(set(sealed)) == 3


def test_every_job_has_another_secret() -> None:
    assert exchanged(HashStore(), 2)[0] != exchanged(HashStore(), 2)[0]


@pytest.mark.parametrize("position", [0, 31, 32, 63])
def test_a_changed_byte_is_noticed(position: int) -> None:
    holder, rank = draw_key(), draw_key()
    sealed = bytearray.fromhex(seal_secret(SECRET, holder, rank.public_key.hex()))
    assert open_secret(sealed.hex(), rank, holder.public_key.hex()) == SECRET
    sealed[position] ^= 1
    with pytest.raises(LinkError, match="another program"):
        open_secret(sealed.hex(), rank, holder.public_key.hex())


@pytest.mark.parametrize("sender", ["", "00" * 32, "zz", "00" * 31])
def test_what_is_no_public_key_is_an_error(sender: str) -> None:
    with pytest.raises(LinkError):
        open_secret("00" * 64, draw_key(), sender)


def test_a_weak_or_wrong_public_key_of_a_rank_is_an_error_on_rank_0() -> None:
    for key in ("00" * 32, "not a key"):
        store = HashStore()
        store.set("secret-offer/1", json.dumps({"given": False, "key": key}))
        with pytest.raises(LinkError, match="no public key"):
            job_secret(StoreExchange(store, 0, 2, 5), {})


def test_a_process_that_joins_later_gets_the_secret_from_any_member() -> None:
    store = RecordingStore()
    old = store.add("secret/requests", 1)  # of an earlier process: answered long ago, or never
    members = [SecretAnswers(store, SECRET) for _ in range(2)]
    stop = threading.Event()

    def answer() -> None:
        while not stop.wait(0.01):
            for member in members:
                member.answer()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert request_secret(store, 10.0) == SECRET
        assert request_secret(store, 10.0) == SECRET
    finally:
        stop.set()
        thread.join()
    assert SECRET.hex() not in json.dumps(store.written)
    assert f"secret/answer/{old}" not in store.written


def test_requests_that_are_no_keys_are_skipped_and_unwritten_ones_wait() -> None:
    store = RecordingStore()
    member = SecretAnswers(store, SECRET)
    first, second = store.add("secret/requests", 1), store.add("secret/requests", 1)
    member.answer()  # counted, not written
    store.set(f"secret/request/{first}", "\x00 no key")
    key = draw_key()
    store.set(f"secret/request/{second}", key.public_key.hex())
    member.answer()
    assert f"secret/answer/{first}" not in store.written
    answer: dict[str, Any] = json.loads(store.written[f"secret/answer/{second}"])
    assert open_secret(answer["sealed"], key, answer["sender"]) == SECRET


def test_a_request_that_is_never_written_does_not_keep_later_ones_waiting_and_is_forgotten() -> None:
    store = RecordingStore()
    member = SecretAnswers(store, SECRET)
    store.add("secret/requests", 1)  # its process died before it wrote the request
    second, key = store.add("secret/requests", 1), draw_key()
    store.set(f"secret/request/{second}", key.public_key.hex())
    member.answer()
    answer: dict[str, Any] = json.loads(store.written[f"secret/answer/{second}"])
    assert open_secret(answer["sealed"], key, answer["sender"]) == SECRET
    for _ in range(PATIENCE):
        member.answer()
    assert not member._unwritten


def test_without_a_member_that_answers_the_error_says_what_to_do() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    with pytest.raises(LinkError, match="GRADWIRE_SECRET"):
        request_secret(store, 0.1)


def test_the_address_book_answers_on_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.sites.address_book.POLL", 0.01)
    store = HashStore()
    here, there = AddressBook(store, "job"), AddressBook(store, "job")
    here.share_secret(SECRET)
    here.watch(list)
    try:
        assert there.request_secret(10.0) == SECRET
    finally:
        here.close()

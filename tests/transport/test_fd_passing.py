"""File descriptor passing: a process with the token gets the file, no other does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradwire.errors import LinkError
from gradwire.transport.wires.fd_passing import CREDENTIAL_BYTES, FdOffer, receive_fd


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(b"shared")
    opened = os.open(tmp_path / "file", os.O_RDONLY)
    yield opened
    os.close(opened)


def soon() -> float:
    return time.monotonic() + 20


def test_the_file_reaches_every_process_with_the_credential(file: int) -> None:
    with FdOffer(file) as offer, ThreadPoolExecutor(3) as pool:
        taken = [pool.submit(receive_fd, offer.credential, 20) for _ in range(3)]
        offer.serve(3, lambda: False, soon())
        for future in taken:
            assert os.pread(future.result(20), 6, 0) == b"shared"
            os.close(future.result())


def test_a_wrong_token_gets_nothing(file: int) -> None:
    with FdOffer(file) as offer, ThreadPoolExecutor(1) as pool:
        wrong = offer.credential[: CREDENTIAL_BYTES // 2] + bytes(CREDENTIAL_BYTES // 2)
        stranger = pool.submit(receive_fd, wrong, 20)
        offer.serve(1, stranger.done, soon())
        with pytest.raises(OSError, match="refused"):
            stranger.result(20)


def test_a_file_that_nobody_fetches_is_an_error_at_the_deadline(file: int) -> None:
    with FdOffer(file) as offer, pytest.raises(LinkError, match="fetched it in time"):
        offer.serve(1, lambda: False, time.monotonic() + 0.1)


def test_an_offer_that_ended_is_refused(file: int) -> None:
    with FdOffer(file) as offer:
        credential = offer.credential
    with pytest.raises(OSError, match="refused"):
        receive_fd(credential, 5)

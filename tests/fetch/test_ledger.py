from __future__ import annotations

import random
import threading

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.ledger import ByteLedger


def test_a_lease_is_given_back_when_its_owner_ends() -> None:
    ledger = ByteLedger(100)
    lease = ledger.lease(60, "request")

    def own() -> None:
        with lease:
            lease.grow(40)
            assert (ledger.used_bytes, lease.num_bytes) == (100, 100)
            assert ledger.leases() == [("request", 100)]
            raise KeyError

    with pytest.raises(KeyError):
        own()
    assert (ledger.used_bytes, ledger.leases(), lease.released) == (0, [], True)
    lease.release()
    assert ledger.used_bytes == 0


def test_over_budget_names_the_limit_and_takes_nothing() -> None:
    ledger = ByteLedger(100)
    with ledger.lease(70, "first") as lease:
        with pytest.raises(PyvlmError, match="100 bytes with 70 in use: no room for 31") as caught:
            ledger.lease(31, "second")
        assert (caught.value.code, caught.value.info.status) == ("queue_full", 429)
        assert ledger.leases() == [("first", 70)]
        lease.grow(30)


def test_what_is_too_much_alone_is_not_worth_another_try() -> None:
    ledger = ByteLedger(100)
    body = ledger.lease(70, "body")
    images = ledger.lease(0, "images", beside=body)
    images.grow(20)
    with ledger.lease(5, "another"):
        for num_bytes, code in ((8, "queue_full"), (11, "body_too_large")):
            with pytest.raises(PyvlmError) as caught:
                images.grow(num_bytes)
            assert caught.value.code == code
        with pytest.raises(PyvlmError, match="alone takes at least 101") as caught:
            ledger.lease(101, "third")
        assert caught.value.info.status == 413
    body.release()
    images.grow(80)
    assert ledger.used_bytes == 100


def test_misuse_is_an_error() -> None:
    with pytest.raises(PyvlmError, match="limit_bytes must be positive"):
        ByteLedger(0)
    ledger = ByteLedger(10)
    with pytest.raises(ValueError, match="num_bytes is -1"):
        ledger.lease(-1, "x")
    lease = ledger.lease(1, "x")
    lease.release()
    with pytest.raises(ValueError, match="was released"):
        lease.grow(1)
    assert ledger.used_bytes == 0


@pytest.mark.timeout(60)
def test_threads_never_hold_more_than_the_limit() -> None:
    ledger = ByteLedger(1000)
    held, peak, refused = [0], [0], [0]
    lock = threading.Lock()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(500):
            size = draw.randrange(1, 400)
            try:
                lease = ledger.lease(size, str(seed))
            except PyvlmError:
                with lock:
                    refused[0] += 1
                continue
            with lock:
                held[0] += size
                peak[0] = max(peak[0], held[0])
                held[0] -= size
            lease.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < peak[0] <= 1000
    assert (ledger.used_bytes, ledger.leases()) == (0, [])

"""Large requests and small ones beside each other: how long a small one waits, and a large one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import pytest

from pyvlm.media import pool_inline
from pyvlm.media.lease import PatchLease
from pyvlm.media.pool_lanes import MAX_PASSED
from pyvlm.media.preprocessor import Picture, Preprocessor
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import TILE_BYTES, WAIT_S, encoded, picture
from tests.pool.processes import stop, workers_of

pytestmark = pytest.mark.timeout(180)
SMALL = encoded(40, 30)
CELLS = 16  # of the slab; its quarter is the reserve
STAGES = [0, 1]  # workers


def large(count: int) -> list[Picture]:
    return [picture(SMALL, index) for index in range(count)]


def released(jobs: list[Future[PatchLease]]) -> None:
    for job in jobs:
        job.result(WAIT_S).release()


def fill_reserve(pool: Preprocessor, large_cells: int, eventually: Eventually) -> list[PatchLease]:
    """Small requests, beside large ones that have `large_cells`."""
    eventually(lambda: pool.stats().leased_bytes == large_cells * TILE_BYTES)
    return [pool.submit_all([picture(SMALL)])[0].result(WAIT_S) for _ in range(CELLS // 4)]


@contextmanager
def busy(workers: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever works on pictures finishes none meanwhile."""
    if workers:
        (worker,) = workers_of()
        stop(worker)
        try:
            yield
        finally:
            os.kill(worker, signal.SIGCONT)
        return
    go_on, decode = threading.Event(), pool_inline.decode_image

    def held(*given: object) -> object:
        go_on.wait(WAIT_S)
        return decode(*given)

    patch.setattr(pool_inline, "decode_image", held)
    try:
        yield
    finally:
        go_on.set()


@pytest.mark.parametrize("workers", STAGES)
def test_the_lanes_take_turns(
    make_pool: MakePool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The k-th small one has to see 2k pictures done at most, itself one of them, and what the
    worker has in hand when it comes."""
    pool = make_pool(num_workers=workers, slab_bytes=CELLS * TILE_BYTES)
    order: list[str] = []
    lock = threading.Lock()

    def note(name: str, jobs: list[Future[PatchLease]]) -> list[Future[PatchLease]]:
        def add(done: Future[PatchLease]) -> None:
            del done
            with lock:
                order.append(name)

        for job in jobs:
            job.add_done_callback(add)
        return jobs

    with busy(workers, monkeypatch):
        jobs = note("large", pool.submit_all(large(12)))
        for number in range(3):
            jobs += note(f"small {number}", pool.submit_all([picture(SMALL)]))
        assert not order
    wait(jobs, WAIT_S)
    for number in range(3):
        assert order.index(f"small {number}") + 1 <= 2 * (number + 1) + 1
    released(jobs)


@pytest.mark.parametrize("workers", STAGES)
def test_large_requests_leave_the_reserve(
    make_pool: MakePool, workers: int, eventually: Eventually
) -> None:
    """The second one would fit, but for the reserve. Small ones pass it as they like while they
    have no more than that, and beyond it no more of them than may."""
    pool = make_pool(num_workers=workers, slab_bytes=CELLS * TILE_BYTES)
    first = pool.submit_all(large(7))
    wait(first, WAIT_S)
    second = pool.submit_all(large(6))
    for _ in range(MAX_PASSED + 1):
        released(pool.submit_all([picture(SMALL)]))
    held = fill_reserve(pool, 7, eventually)
    for _ in range(MAX_PASSED):
        released(pool.submit_all([picture(SMALL)]))
    last = pool.submit_all([picture(SMALL)])
    done, _ = wait([*second, *last], 0.3)
    assert not done
    held.pop().release()
    released(last)
    assert not any(job.done() for job in second)
    released(first)
    released(second)
    for lease in held:
        lease.release()


@pytest.mark.parametrize("workers", STAGES)
def test_one_that_goes_away_counts_for_no_other(
    make_pool: MakePool, workers: int, eventually: Eventually
) -> None:
    """Those that passed a large request which left are not held against the next. No memory is
    free while it leaves, or what is still there of it would come in."""
    pool = make_pool(num_workers=workers, slab_bytes=CELLS * TILE_BYTES)
    first = pool.submit_all(large(11))
    wait(first, WAIT_S)
    second = pool.submit_all(large(6))
    held = fill_reserve(pool, 11, eventually)
    for _ in range(MAX_PASSED - 1):
        released(pool.submit_all([picture(SMALL)]))
    (passed,) = pool.submit_all([picture(SMALL)])
    passed.result(WAIT_S)
    for job in second:
        job.cancel()
    third = pool.submit_all(large(6))
    passed.result().release()
    for _ in range(MAX_PASSED):
        released(pool.submit_all([picture(SMALL)]))
    assert not any(job.done() for job in third)
    released(first)
    released(third)
    for lease in held:
        lease.release()


@pytest.mark.parametrize("workers", STAGES)
def test_one_that_needs_more_is_alone(make_pool, workers: int) -> None:
    """It takes what it needs; small ones have what is left, another large one waits."""
    pool = make_pool(num_workers=workers, slab_bytes=CELLS * TILE_BYTES)
    first = pool.submit_all(large(CELLS - 1))
    wait(first, WAIT_S)
    second = pool.submit_all(large(5))
    (small,) = pool.submit_all([picture(SMALL)])
    small.result(WAIT_S)
    assert not any(job.done() for job in second)
    released([*first, small])
    released(second)


@pytest.mark.parametrize("workers", STAGES)
def test_without_room_for_a_tile_there_is_no_reserve(make_pool, workers: int) -> None:
    pool = make_pool(num_workers=workers, slab_bytes=3 * TILE_BYTES)
    assert not pool.is_large(large(3))
    jobs = pool.submit_all(large(3))
    released(jobs)
    assert make_pool(num_workers=workers, slab_bytes=CELLS * TILE_BYTES).is_large(large(5))

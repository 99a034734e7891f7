"""Large requests and small ones beside each other: how long a small one waits, and a large one."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait

import pytest

from pyvlm.media.lease import PatchLease
from pyvlm.media.pool_lanes import MAX_PASSED
from pyvlm.media.preprocessor import Picture
from tests.pool.pictures import TILE_BYTES, WAIT_S, encoded, picture

pytestmark = pytest.mark.timeout(180)
SMALL = encoded(40, 30)
CELLS = 16  # of the slab; its quarter is the reserve
STAGES = [0, 1]  # workers


def large(count: int) -> list[Picture]:
    return [picture(SMALL, index) for index in range(count)]


def released(jobs: list[Future[PatchLease]]) -> None:
    for job in jobs:
        job.result(WAIT_S).release()


@pytest.mark.parametrize("workers", STAGES)
def test_the_lanes_take_turns(make_pool, workers: int) -> None:
    """From when it comes, the k-th small one has to see 2k pictures done at most, itself one of
    them, and what the worker has in hand."""
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

    jobs = note("large", pool.submit_all(large(12)))
    with lock:
        before = len(order)
    for number in range(3):
        jobs += note(f"small {number}", pool.submit_all([picture(SMALL)]))
    wait(jobs, WAIT_S)
    for number in range(3):
        assert order.index(f"small {number}") + 1 - before <= 2 * (number + 1) + 1
    released(jobs)


@pytest.mark.parametrize("workers", STAGES)
def test_large_requests_leave_the_reserve(make_pool, workers: int) -> None:
    """The second one would fit, but for the reserve. Small ones pass it, no more than may."""
    pool = make_pool(num_workers=workers, slab_bytes=CELLS * TILE_BYTES)
    first = pool.submit_all(large(7))
    wait(first, WAIT_S)
    second = pool.submit_all(large(6))
    for _ in range(MAX_PASSED):
        released(pool.submit_all([picture(SMALL)]))
    last = pool.submit_all([picture(SMALL)])
    done, _ = wait([*second, *last], 0.3)
    assert not done
    released(first)
    released(second)
    released(last)


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

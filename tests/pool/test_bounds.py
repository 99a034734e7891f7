"""What the pool refuses, what waits, in which order, and what a cancelled job gives back.

A stopped worker stands for one that is busy for as long as the test likes.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import CancelledError, Future

import numpy as np
import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.lease import PatchLease
from pyvlm.media.preprocessor import PoolOptions
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import TILE_BYTES, TINY, WAIT_S, encoded, in_process, picture, submit
from tests.pool.processes import stop, workers_of

SMALL = encoded(40, 40)


def states(pool) -> list[str]:
    return [info.state for info in pool.leases()]


def is_running(pool) -> bool:
    return pool.stats().num_running == 1


def test_more_jobs_than_the_bound(make_pool: MakePool, eventually: Eventually) -> None:
    pool = make_pool(max_jobs=3)
    (worker,) = workers_of()
    stop(worker)
    jobs = [submit(pool, SMALL) for _ in range(3)]
    eventually(lambda: is_running(pool))
    with pytest.raises(PyvlmError, match="max_jobs is 3, 3 are taken") as error:
        submit(pool, SMALL)
    assert error.value.info.status == 429
    jobs[2].cancel()
    eventually(lambda: pool.stats().num_queued == 1)  # it had its memory already
    with pytest.raises(PyvlmError, match="2 were asked"):
        pool.submit_all([picture(SMALL), picture(SMALL)])
    jobs.append(submit(pool, SMALL))
    os.kill(worker, signal.SIGCONT)
    for job in (jobs[0], jobs[1], jobs[3]):
        job.result(WAIT_S).release()
    assert pool.stats().num_refused == 2


def test_more_bytes_than_the_bound(make_pool: MakePool, eventually: Eventually) -> None:
    pool = make_pool(max_queued_bytes=2 * len(SMALL))
    (worker,) = workers_of()
    stop(worker)
    jobs = [submit(pool, SMALL)]
    eventually(lambda: pool.stats().queued_bytes == 0)  # the worker has it
    jobs += [submit(pool, SMALL), submit(pool, SMALL)]
    assert pool.stats().queued_bytes == 2 * len(SMALL)
    with pytest.raises(PyvlmError, match="max_queued_bytes") as error:
        submit(pool, SMALL)
    assert error.value.code == "queue_full"
    jobs[1].cancel()
    eventually(lambda: pool.stats().queued_bytes == len(SMALL))
    jobs.append(submit(pool, SMALL))
    os.kill(worker, signal.SIGCONT)
    for job in (jobs[0], jobs[2], jobs[3]):
        job.result(WAIT_S).release()
    assert pool.stats().queued_bytes == 0


@pytest.mark.parametrize("num_workers", [1, 0])
@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"slab_bytes": 2 * TILE_BYTES}, "--slab-bytes is 221184, the request takes 331776"),
        ({"max_jobs": 2}, "max_jobs is 2, the request takes 3 images"),
        ({"max_queued_bytes": 2 * len(SMALL)}, "max_queued_bytes"),
    ],
)
def test_a_request_that_could_never_fit_is_refused(
    make_pool: MakePool, num_workers: int, options: dict[str, int], flag: str
) -> None:
    pool = make_pool(num_workers=num_workers, **options)
    with pytest.raises(PyvlmError, match=flag) as error:
        pool.submit_all([picture(SMALL, index) for index in range(3)])
    assert error.value.code == "media_policy_violation"
    assert pool.stats().num_queued == 0
    for job in pool.submit_all([picture(SMALL), picture(SMALL)]):
        job.result(WAIT_S).release()


@pytest.mark.parametrize("num_workers", [1, 0])
def test_memory_is_waited_for_in_order(make_pool: MakePool, num_workers: int) -> None:
    """The second request needs more than there is; the third would fit but waits its turn."""
    pool = make_pool(num_workers=num_workers, slab_bytes=3 * TILE_BYTES)
    first = submit(pool, SMALL).result(WAIT_S)
    other = submit(pool, SMALL).result(WAIT_S)
    second = pool.submit_all([picture(SMALL, 0), picture(SMALL, 1)])
    third = submit(pool, encoded(30, 60))
    time.sleep(0.1)
    assert [job.done() for job in [*second, third]] == [False] * 3
    assert pool.stats().leased_bytes == 2 * TILE_BYTES
    first.release()
    leases = [job.result(WAIT_S) for job in second]
    assert not third.done()
    other.release()
    with third.result(WAIT_S) as lease:
        expected = in_process(encoded(30, 60), pool.transform)
        np.testing.assert_array_equal(lease.patches.patches, expected)
    for lease in leases:
        lease.release()


def test_cancelling_a_waiting_job(make_pool: MakePool, eventually: Eventually) -> None:
    """Gone at once, memory included, though the worker does not move."""
    pool = make_pool()
    (worker,) = workers_of()
    stop(worker)
    running, waiting = submit(pool, SMALL), submit(pool, SMALL)
    eventually(lambda: sorted(states(pool)) == ["queued", "running"])
    assert waiting.cancel()
    eventually(lambda: states(pool) == ["running"])
    assert pool.stats().num_queued == 0
    os.kill(worker, signal.SIGCONT)
    running.result(WAIT_S).release()
    assert pool.stats().num_cancelled == 1


def test_cancelling_a_job_that_waits_for_memory(make_pool: MakePool) -> None:
    pool = make_pool(slab_bytes=2 * TILE_BYTES)
    held = [submit(pool, SMALL).result(WAIT_S) for _ in range(2)]
    waiting = pool.submit_all([picture(SMALL, 0), picture(SMALL, 1)])
    last = submit(pool, SMALL)
    assert pool.stats().num_queued == 3
    for job in waiting:
        assert job.cancel()
    stats = pool.stats()
    assert (stats.num_queued, stats.queued_bytes) == (1, len(SMALL))
    held[0].release()
    last.result(WAIT_S).release()


@pytest.mark.parametrize("num_workers", [1, 0])
def test_the_next_one_goes_on_when_the_first_is_cancelled(
    make_pool: MakePool, num_workers: int
) -> None:
    """The first waits for more memory than there is, the next would fit: nothing else wakes it."""
    pool = make_pool(num_workers=num_workers, slab_bytes=3 * TILE_BYTES)
    held = [submit(pool, SMALL).result(WAIT_S) for _ in range(2)]
    waiting = pool.submit_all([picture(SMALL, 0), picture(SMALL, 1)])
    last = submit(pool, SMALL)
    time.sleep(0.2)  # until the thread sleeps
    for job in waiting:
        assert job.cancel()
    last.result(WAIT_S).release()
    for lease in held:
        lease.release()


def test_cancelling_a_running_job(make_pool: MakePool, eventually: Eventually) -> None:
    """Nobody waits for it; it ends as it would have, and its memory is free then."""
    pool = make_pool()
    (worker,) = workers_of()
    stop(worker)
    job = submit(pool, SMALL)
    eventually(lambda: states(pool) == ["running"])
    assert job.cancel()
    with pytest.raises(CancelledError):
        job.result(0)
    os.kill(worker, signal.SIGCONT)
    eventually(lambda: pool.leases() == [])
    assert workers_of() == [worker]
    assert pool.stats().num_cancelled == 1


def test_a_cancelled_job_that_hangs_is_ended_at_its_deadline(
    make_pool: MakePool, eventually: Eventually
) -> None:
    pool = make_pool(job_timeout_s=0.5)
    (worker,) = workers_of()
    stop(worker)
    job = submit(pool, SMALL)
    eventually(lambda: states(pool) == ["running"])
    job.cancel()
    eventually(lambda: pool.leases() == [])
    assert worker not in workers_of()
    submit(pool, SMALL).result(WAIT_S).release()
    assert pool.stats().num_failed == {}


def test_a_lease_that_nobody_takes(make_pool: MakePool, eventually: Eventually) -> None:
    """Cancelled between the worker's answer and the caller's look: the result is there."""
    pool = make_pool()
    job: Future[PatchLease] = submit(pool, SMALL)
    eventually(job.done)
    assert not job.cancel()
    job.result().release()
    eventually(lambda: pool.leases() == [])


@pytest.mark.parametrize("what", ["memory", "worker"])
def test_the_deadline_of_a_waiting_job(
    make_pool: MakePool, eventually: Eventually, what: str
) -> None:
    pool = make_pool(slab_bytes=TILE_BYTES if what == "memory" else 8 * TILE_BYTES)
    held = submit(pool, SMALL).result(WAIT_S) if what == "memory" else None
    (worker,) = workers_of()
    stop(worker)
    running = None if held else submit(pool, SMALL)
    late = submit(pool, SMALL, 4, deadline_s=0.2)
    with pytest.raises(PyvlmError, match=r"image 4: .* the request's deadline passed") as error:
        late.result(WAIT_S)
    assert error.value.info.status == 504
    assert len(pool.leases()) == 1
    os.kill(worker, signal.SIGCONT)
    (held or running.result(WAIT_S)).release()
    eventually(lambda: pool.leases() == [])
    assert pool.stats().num_failed == {"deadline": 1}
    assert workers_of() == [worker]


def test_the_deadline_of_a_waiting_job_inline(make_pool: MakePool) -> None:
    pool = make_pool(num_workers=0, slab_bytes=TILE_BYTES)
    with submit(pool, SMALL).result(WAIT_S):
        with pytest.raises(PyvlmError) as error:
            submit(pool, SMALL, deadline_s=0.1).result(WAIT_S)
        assert error.value.code == "deadline"
        assert pool.stats().num_queued == 0


@pytest.mark.parametrize("num_workers", [1, 0])
def test_closing_fails_what_waits(make_pool: MakePool, num_workers: int) -> None:
    pool = make_pool(num_workers=num_workers, slab_bytes=TILE_BYTES)
    with submit(pool, SMALL).result(WAIT_S):
        waiting = [submit(pool, SMALL) for _ in range(3)]
        pool.close()
        for job in waiting:
            with pytest.raises(PyvlmError) as error:
                job.result(0)
            assert error.value.code == "draining"


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": -1},
        {"slab_bytes": 0},
        {"max_jobs": True},
        {"max_queued_bytes": -5},
        {"job_timeout_s": float("nan")},
        {"job_timeout_s": 0.0},
        {"worker_memory_bytes": 1.5},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(PyvlmError) as error:
        PoolOptions(**wrong)
    assert error.value.code == "invalid_parameter"
    assert error.value.param == next(iter(wrong))


def test_the_transform_is_the_checkpoints(make_pool: MakePool) -> None:
    assert make_pool(TINY).transform.tile_size == 96

"""Workers that hang, crash, are killed or run out of memory: only their job fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.lease import JobTimes
from pyvlm.media.pool_seat import LONGEST_PAUSE_S, Seat
from pyvlm.media.pool_thread import _times as times_of
from pyvlm.media.preprocessor import MIB
from pyvlm.media.worker_process import failure_from
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import WAIT_S, checkpoint, encoded, in_process, picture, submit
from tests.pool.processes import stop, workers_of

SMALL = encoded(40, 40)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_fails_only_its_job(
    make_pool: MakePool, eventually: Eventually, signum: int
) -> None:
    pool = make_pool()
    (worker,) = workers_of()
    stop(worker)
    held, *others = pool.submit_all([picture(encoded(40, 40, seed=i), i) for i in range(4)])
    eventually(lambda: pool.stats().num_running == 1)
    os.kill(worker, signum)
    os.kill(worker, signal.SIGCONT)
    with pytest.raises(PyvlmError, match="image 0: the preprocessing worker ended") as error:
        held.result(WAIT_S)
    assert error.value.code == "engine_failed"
    for seed, job in enumerate(others, start=1):
        with job.result(WAIT_S) as lease:
            expected = in_process(encoded(40, 40, seed=seed), pool.transform)
            np.testing.assert_array_equal(lease.patches.patches, expected)
    assert worker not in workers_of()
    assert len(workers_of()) == 1
    stats = pool.stats()
    assert (stats.num_restarts, stats.num_failed, stats.num_done) == (1, {"engine_failed": 1}, 3)
    eventually(lambda: pool.leases() == [])


def test_an_idle_worker_that_is_killed_costs_nothing(
    make_pool: MakePool, eventually: Eventually
) -> None:
    pool = make_pool()
    (worker,) = workers_of()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: pool.stats().num_restarts == 1)
    submit(pool, SMALL).result(WAIT_S).release()
    assert pool.stats().num_failed == {}


def test_a_hung_worker_is_ended_at_the_jobs_deadline(
    make_pool: MakePool, eventually: Eventually
) -> None:
    pool = make_pool(job_timeout_s=0.5)
    (worker,) = workers_of()
    stop(worker)
    hung, other = pool.submit_all([picture(SMALL, 0), picture(SMALL, 1)])
    with pytest.raises(PyvlmError, match=r"preprocess_timeout_s is 0\.5") as error:
        hung.result(WAIT_S)
    assert (error.value.code, error.value.param) == ("deadline", "images[0]")
    eventually(lambda: worker not in workers_of())
    other.result(WAIT_S).release()
    assert pool.stats().num_failed == {"deadline": 1}
    eventually(lambda: pool.leases() == [])


def test_killing_under_load(make_pool: MakePool, eventually: Eventually) -> None:
    """Each kill costs at most the job that its worker held; all others are right."""
    pool = make_pool(num_workers=2)
    data = [encoded(300, 200, seed=seed) for seed in range(4)]
    expected = [in_process(one, pool.transform) for one in data]
    jobs = [(seed % 4, submit(pool, data[seed % 4])) for seed in range(48)]
    kills = 3
    for kill in range(kills):
        eventually(lambda kill=kill: pool.stats().num_done > 8 * kill)
        os.kill(workers_of()[0], signal.SIGKILL)
        eventually(lambda kill=kill: pool.stats().num_restarts > kill)
    lost = 0
    for seed, job in jobs:
        if (error := job.exception(WAIT_S)) is not None:
            assert isinstance(error, PyvlmError)
            assert error.code == "engine_failed"
            lost += 1
            continue
        with job.result() as lease:
            np.testing.assert_array_equal(lease.patches.patches, expected[seed])
    assert lost <= kills
    eventually(lambda: pool.leases() == [])
    assert pool.stats().leased_bytes == 0


def test_the_memory_of_a_worker_is_bounded(make_pool: MakePool) -> None:
    """36 megapixels need about 110 MB as RGB; the same worker goes on with the next picture."""
    pool = make_pool(worker_memory_bytes=100 * MIB, slab_bytes=64 * MIB)
    workers = workers_of()
    with pytest.raises(PyvlmError, match="preprocess_worker_bytes is 104857600") as error:
        submit(pool, encoded_flat(6000, 6000), 2).result(WAIT_S)
    assert (error.value.code, error.value.param) == ("image_decode_failed", "images[2]")
    with submit(pool, SMALL).result(WAIT_S) as lease:
        np.testing.assert_array_equal(lease.patches.patches, in_process(SMALL, pool.transform))
    assert workers_of() == workers


def encoded_flat(width: int, height: int) -> bytes:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(out, "PNG")
    return out.getvalue()


def test_the_pauses_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def __init__(self, setup: object) -> None: ...

        def reap(self) -> int:
            return -9

    monkeypatch.setattr("pyvlm.media.pool_seat.WorkerProcess", Dead)
    monkeypatch.setattr("pyvlm.media.pool_seat.time.monotonic", lambda: 0.0)
    seat, pauses = Seat(), []
    for _ in range(12):
        seat.fill(None)
        assert seat.empty() == (-9, None)
        pauses.append(seat.timer)
    assert pauses[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == LONGEST_PAUSE_S
    seat.fill(None)
    seat.ready()
    seat.answered()
    seat.empty()
    assert seat.timer == 0.0


def test_a_replacement_that_cannot_start(
    make_pool: MakePool, tmp_path: Path, eventually: Eventually
) -> None:
    """It is tried again until it can; jobs wait meanwhile."""
    folder = checkpoint(tmp_path / "model")
    pool = make_pool(folder)
    settings = folder / "preprocessor_config.json"
    settings.rename(tmp_path / "aside")
    os.kill(workers_of()[0], signal.SIGKILL)
    eventually(lambda: pool.stats().num_restarts >= 2)
    job = submit(pool, SMALL)
    (tmp_path / "aside").rename(settings)
    job.result(WAIT_S).release()


@pytest.mark.parametrize("given", [float("nan"), float("inf"), -1.0, 1, "1", None])
def test_times_of_a_worker_are_not_trusted(given: object) -> None:
    task = SimpleNamespace(started_at=2.0, job=SimpleNamespace(submitted_at=1.0))
    assert times_of({"decode_ms": 3.0, "transform_ms": 4.0}, task) == JobTimes(1e3, 3.0, 4.0)
    assert times_of({"decode_ms": given, "transform_ms": 4.0}, task) is None
    assert times_of({"decode_ms": 3.0, "transform_ms": given}, task) is None


@pytest.mark.parametrize(
    "fields",
    [None, [], ["no_such_code", "text"], ["deadline"], ["deadline", 5], {"a": 1}, [[], []]],
)
def test_what_a_worker_says_is_not_trusted(fields: object) -> None:
    error = failure_from(fields)
    assert error.code == "engine_failed"
    assert "broken answer" in error.message


def test_a_workers_text_is_bounded() -> None:
    error = failure_from(["image_decode_failed", "x" * 10_000, ["images"]])
    assert len(error.message) == 2000
    assert error.param is None


@pytest.mark.parametrize(("workers", "place"), [(1, "_give"), (1, "_lease_cells"), (0, "_expire")])
def test_a_stage_that_stops_by_a_fault_of_its_own(
    make_pool: MakePool, eventually: Eventually, monkeypatch: pytest.MonkeyPatch,
    workers: int, place: str,
) -> None:  # fmt: skip
    """Jobs that are anywhere in it fail at once, later ones are refused, and it says so."""
    pool = make_pool(num_workers=workers)
    submit(pool, SMALL).result(WAIT_S).release()
    assert pool.is_alive
    thread = "pool_thread.PoolThread" if workers else "pool_inline.InlinePreprocessor"
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise KeyError("a slip of ours")

    monkeypatch.setattr(f"pyvlm.media.{thread}.{place}", fail)
    jobs = pool.submit_all([picture(SMALL, 0), picture(SMALL, 1)])
    for job in jobs:
        error = job.exception(WAIT_S)
        assert isinstance(error, PyvlmError)
        assert error.code == "engine_dead"
    eventually(lambda: not pool.is_alive)
    with pytest.raises(PyvlmError) as caught:
        submit(pool, SMALL)
    assert caught.value.code == "engine_dead"
    assert len(calls) == 1
    pool.close()

"""The twin without processes: what goes wrong in its one thread stays with its job."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.lease import PatchLease
from pyvlm.media.transform import ImageTransform
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import WAIT_S, encoded, submit

SMALL = encoded(40, 40)


def test_an_unexpected_exception_fails_only_its_job(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(num_workers=0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("/a/path")

    with monkeypatch.context() as patch:
        patch.setattr(ImageTransform, "apply", broken)
        with pytest.raises(PyvlmError) as caught:
            submit(pool, SMALL, 3).result(WAIT_S)
    assert caught.value.code == "engine_failed"
    assert caught.value.message == "image 3: preprocessing it failed (ZeroDivisionError)"
    submit(pool, SMALL).result(WAIT_S).release()
    assert pool.leases() == []


@pytest.mark.parametrize("end", ["cancelled", "too late"])
def test_what_a_failed_job_had_is_free_without_the_collector(
    make_pool: MakePool, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It ends when its patches are there already; the error, which is kept, keeps none of them."""
    pool = make_pool(num_workers=0, job_timeout_s=60.0 if end == "cancelled" else 0.05)
    jobs: list[Future[PatchLease]] = []
    submitted, apply = threading.Event(), ImageTransform.apply

    def slow(*given: object) -> object:
        done = apply(*given)  # type: ignore[arg-type]
        assert submitted.wait(WAIT_S)
        if end == "cancelled":
            jobs[0].cancel()
        else:
            threading.Event().wait(0.06)
        return done

    monkeypatch.setattr(ImageTransform, "apply", slow)
    gc.disable()
    try:
        jobs.append(submit(pool, SMALL))
        submitted.set()
        eventually(lambda: pool.stats().num_failed == {"deadline": 1} or jobs[0].cancelled())
        eventually(lambda: pool.stats().num_running == 0 and pool.leases() == [], 10.0)
    finally:
        gc.enable()

"""The pool's twin without processes: one thread of this process, patches on the heap.

Same bounds, same futures, same leases; slab_bytes bounds what is lent out, nothing is reserved.
What it lacks: a picture that crashes the decoder takes the process with it, and a running job
cannot be ended: one that takes too long fails when it is through.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from pyvlm.errors import PyvlmError
from pyvlm.files import read_if_any
from pyvlm.media.decode import decode_image
from pyvlm.media.lease import JobTimes, LeaseInfo, LeaseTag, PatchLease, patches_over
from pyvlm.media.pool_jobs import (
    Job,
    JobQueue,
    closed_error,
    make_jobs,
    needed_bytes,
    stopped_error,
    too_late,
)
from pyvlm.media.pool_lanes import Lanes, Reserve, Taken
from pyvlm.media.preprocessor import Picture, PoolOptions, PoolStats
from pyvlm.media.settings import load_transform
from pyvlm.media.transform import ImageTransform
from pyvlm.models.config import VisionConfig

_log = logging.getLogger("pyvlm.media.pool")


class _Lent(NamedTuple):
    tag: LeaseTag
    num_bytes: int
    since: float
    is_large: bool  # the request that it is of


class InlinePreprocessor:
    """A `Preprocessor`."""

    def __init__(self, checkpoint: Path, vision: VisionConfig, options: PoolOptions) -> None:
        self._checkpoint, self._vision, self._options = checkpoint, vision, options
        self._transform: ImageTransform | None = None
        self._leases: dict[int, _Lent] = {}
        self._ready: Lanes[Job] = Lanes()  # their memory is set aside; this thread's alone
        self._ids = itertools.count(1)
        self._wake = SimpleQueue[None]()  # whose put may interrupt anything
        self._reserve = Reserve.of(options.slab_bytes, vision)
        self._queue = JobQueue(options, self._reserve, partial(self._wake.put, None))
        self._closing = False
        self._num_running = 0
        self._num_done = self._num_abandoned = 0
        self._num_failed: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="pyvlm-preprocess", daemon=True)

    @property
    def transform(self) -> ImageTransform:
        if self._transform is None:
            raise RuntimeError("the preprocessor was not started")
        return self._transform

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        if self._closing:
            raise closed_error()
        self._transform = load_transform(partial(read_if_any, self._checkpoint), self._vision)
        self._thread.start()

    def submit_all(
        self, pictures: Sequence[Picture], *, deadline_s: float | None = None, owner: str = ""
    ) -> list[Future[PatchLease]]:
        jobs = make_jobs(pictures, self.transform, self._ids, deadline_s=deadline_s, owner=owner)
        return self._queue.submit(jobs)

    def is_large(self, pictures: Sequence[Picture]) -> bool:
        return self._reserve.is_large(needed_bytes(pictures, self.transform))

    def leases(self) -> list[LeaseInfo]:
        now = time.monotonic()
        return [
            LeaseInfo(lease_id, lent.tag.owner, lent.tag.state, 0, lent.num_bytes, now - lent.since)
            for lease_id, lent in list(self._leases.items())
        ]

    def stats(self) -> PoolStats:
        queue = self._queue
        return PoolStats(
            num_queued=max(0, queue.num_jobs - self._num_running),
            num_running=self._num_running,
            queued_bytes=queue.num_bytes,
            slab_bytes=0,
            leased_bytes=self._leased_bytes,
            num_workers=0,
            num_done=self._num_done,
            num_cancelled=self._num_abandoned + queue.num_cancelled,
            num_restarts=0,
            num_failed=dict(self._num_failed),
            num_refused=queue.num_refused,
        )

    @property
    def _leased_bytes(self) -> int:
        return sum(lent.num_bytes for lent in list(self._leases.values()))

    @property
    def _taken(self) -> Taken:
        by_lane = [0, 0]
        for lent in list(self._leases.values()):
            by_lane[lent.is_large] += lent.num_bytes
        for job in self._ready:
            by_lane[job.is_large] += job.patch_bytes
        return Taken(*by_lane)

    def close(self) -> None:
        """Waits for the picture that is being decoded."""
        self._queue.close(closed_error())
        self._closing = True
        self._wake.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            # Nobody answers jobs any more, so nobody may wait for one.
            _log.exception("the preprocessing stage stops")
            self._finish_all(stopped_error())
            self._queue.fail_open(stopped_error())
        finally:
            self._finish_all(closed_error())

    def _finish_all(self, error: PyvlmError) -> None:
        self._queue.close(error)
        for job in self._ready:
            self._queue.handed_over(len(job.data))
            self._settle(job, error)
        self._ready.clear()
        for job in self._queue.waiting():
            if self._queue.discard(job.job_id):
                self._settle(job, error)

    def _turn(self) -> None:
        """No name of this thread outlives it: a job's future keeps the lease."""
        self._expire()
        for group in self._queue.heads(self._taken):
            self._take_memory(group)
        if self._ready:
            self._work(self._ready.pop())
        else:
            self._wait()

    def _expire(self) -> None:
        now = time.monotonic()
        for job in self._queue.waiting():
            if job.expires_at <= now and self._queue.discard(job.job_id):
                self._settle(job, too_late(job, now, self._options))

    def _take_memory(self, group: Sequence[Job]) -> None:
        """For a request at once, and not before all pictures of its lane have been worked on."""
        if any(job.is_large == group[0].is_large for job in self._ready):
            return
        need, taken = sum(job.patch_bytes for job in group), self._taken
        if group[0].is_large and not self._reserve.is_kept(need, taken.large):
            return
        if taken.small + taken.large + need > self._options.slab_bytes:
            return
        for job in self._queue.pop(group, taken):
            self._ready.add(job, large=job.is_large)

    def _wait(self) -> None:
        """Not longer than until something else is to be done."""
        timers = [job.expires_at for job in self._queue.waiting()]
        wait = min(timers, default=math.inf) - time.monotonic()
        with contextlib.suppress(Empty):
            self._wake.get(timeout=None if math.isinf(wait) else max(0.0, wait))

    def _work(self, job: Job) -> None:
        self._queue.handed_over(len(job.data))
        self._num_running = 1
        result: PatchLease | PyvlmError
        try:
            result = closed_error() if self._closing else self._lease(job)
        except PyvlmError as error:
            result = error.with_traceback(None)  # whose frames hold the patches
        except MemoryError:
            result = _failed(job, "out_of_memory", "needs more memory than there is")
        except Exception as error:  # as in a worker: it ends this job, not the thread of all
            result = _failed(job, "engine_failed", f"failed ({type(error).__name__})")
        job.data = b""
        self._num_running = 0
        self._settle(job, result)

    def _lease(self, job: Job) -> PatchLease:
        start = time.monotonic()
        self._check_time(job, start, start)
        picture = decode_image(job.data, job.header, job.index)
        decoded = time.monotonic()
        base = np.empty(job.patch_bytes // 4, np.float32)
        tag = LeaseTag(job.owner, "held")
        self._leases[job.job_id] = _Lent(tag, job.patch_bytes, start, job.is_large)
        dropped = partial(self._drop, job.job_id)
        patches = patches_over(base, self.transform, job.grid, dropped)
        self.transform.apply(picture, patches.patches)
        end = time.monotonic()
        self._check_time(job, start, end)
        times = (start - job.submitted_at, decoded - start, end - decoded)
        return PatchLease(patches, JobTimes(*(t * 1e3 for t in times)), tag)

    def _drop(self, job_id: int) -> None:
        """In whichever thread the last view died."""
        self._leases.pop(job_id)
        self._wake.put(None)

    def _check_time(self, job: Job, start: float, now: float) -> None:
        if now >= min(job.expires_at, start + self._options.job_timeout_s):
            raise too_late(job, now, self._options)
        if job.future.cancelled():
            raise PyvlmError("cancelled", code="draining")  # nobody will see it

    def _settle(self, job: Job, result: PatchLease | PyvlmError) -> None:
        self._queue.finished()
        if not job.future.set_running_or_notify_cancel():
            self._num_abandoned += 1
        elif isinstance(result, PyvlmError):
            self._num_failed[result.code] += 1
            job.future.set_exception(result)
        else:
            self._num_done += 1
            job.future.set_result(result)


def _failed(job: Job, code: str, what: str) -> PyvlmError:
    text = f"image {job.index}: preprocessing it {what}"
    return PyvlmError(text, code=code, param=f"images[{job.index}]")

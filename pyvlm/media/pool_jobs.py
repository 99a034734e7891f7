"""Jobs of the pool, and the bounded FIFOs in which they wait for memory."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pyvlm.errors import PyvlmError
from pyvlm.media.header import ImageHeader
from pyvlm.media.lease import PatchLease, patches_shape
from pyvlm.media.pool_lanes import MAX_PASSED, Reserve, Taken
from pyvlm.media.preprocessor import Picture, PoolOptions
from pyvlm.media.slab_ranges import PAGE, whole_pages
from pyvlm.media.transform import ImageTransform, TileGrid


@dataclass(eq=False, slots=True)
class Job:
    """One picture. After the queue it belongs to the pool's thread."""

    job_id: int
    data: bytes
    header: ImageHeader
    index: int
    grid: TileGrid
    patch_bytes: int
    cell_bytes: int
    owner: str
    submitted_at: float
    expires_at: float  # the request's deadline; inf for none
    is_large: bool = False  # the request that it is of
    future: Future[PatchLease] = field(default_factory=Future)


class JobQueue:
    """Groups of jobs, in each lane in the order of their arrival; a group gets its memory at once.

    Bounds: jobs from submission until they are done, encoded bytes until a worker has them.
    Thread-safe. `wake` is called, without the lock, when the head may have changed.
    """

    def __init__(self, options: PoolOptions, reserve: Reserve, wake: Callable[[], None]) -> None:
        self._options = options
        self._reserve = reserve
        self._wake = wake
        self._lock = threading.Lock()
        self._lanes: tuple[deque[list[Job]], deque[list[Job]]] = deque(), deque()  # small, large
        self._num_passed = 0  # small groups that passed the first large one, see `_passes`
        self._num_jobs = 0
        self._num_bytes = 0
        self._open: set[Future[PatchLease]] = set()
        self._end: PyvlmError | None = None  # what later submissions raise
        self.num_refused = 0
        self.num_cancelled = 0  # while they waited here

    @property
    def num_jobs(self) -> int:
        """Unfinished ones, wherever they are."""
        return self._num_jobs

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def submit(self, group: Sequence[Job]) -> list[Future[PatchLease]]:
        """All or none; raises queue_full, what it was closed with, or a violation for what could
        never fit."""
        check_fit(group, self._options)
        large = self._reserve.is_large(cells_bytes(group))
        for job in group:
            job.is_large = large
        if group:
            self._push(group)
        for job in group:
            self._open.add(job.future)
            job.future.add_done_callback(partial(self._on_done, job.job_id))
        self._wake()
        return [job.future for job in group]

    def _push(self, group: Sequence[Job]) -> None:
        num_bytes = sum(len(job.data) for job in group)
        options = self._options
        with self._lock:
            if self._end is not None:
                raise self._end.with_traceback(None)
            if self._num_jobs + len(group) > options.max_jobs:
                self.num_refused += 1
                raise _full("max_jobs", options.max_jobs, self._num_jobs, len(group))
            if self._num_bytes + num_bytes > options.max_queued_bytes:
                self.num_refused += 1
                limit = options.max_queued_bytes
                raise _full("max_queued_bytes", limit, self._num_bytes, num_bytes)
            self._num_jobs += len(group)
            self._num_bytes += num_bytes
            self._lanes[group[0].is_large].append(list(group))

    def heads(self, taken: Taken) -> list[list[Job]]:
        """The groups that may take memory now, if it is there: in this order."""
        small, _ = self._lanes
        with self._lock:
            heads = [list(lane[0]) for lane in self._lanes if lane]
            may_pass = self._num_passed < MAX_PASSED or not (
                small and self._passes(small[0], taken)
            )
        heads.sort(key=lambda group: group[0].job_id)
        if len(heads) == 2 and heads[0][0].is_large and may_pass:
            return heads
        return heads[:1]

    def pop(self, group: Sequence[Job], taken: Taken) -> list[Job]:
        """Takes a head: what has not been discarded of it meanwhile. They still count. `taken`:
        before it took its memory."""
        small, large = self._lanes
        lane = large if group[0].is_large else small
        with self._lock:
            left = [job for job in group if lane and job in lane[0]]
            if not left:
                return left
            if len(left) == len(lane[0]):
                lane.popleft()
            if lane is large:
                self._num_passed = 0
            elif self._passes(group, taken):
                self._num_passed += 1
            return left

    def _passes(self, small: Sequence[Job], taken: Taken) -> bool:
        """Whether it takes memory that the first large group could have, which came earlier."""
        _, large = self._lanes
        if not large or large[0][0].job_id > small[0].job_id:
            return False
        return not self._reserve.is_spare(cells_bytes(small), taken, cells_bytes(large[0]))

    def discard(self, job_id: int) -> bool:
        """Takes a waiting job out, wherever it stands; False if it waits no more. It still
        counts."""
        with self._lock:
            for lane in self._lanes:
                for group in lane:
                    for job in group:
                        if job.job_id == job_id:
                            self._take_out(lane, group, job)
                            return True
        return False

    def _on_done(self, job_id: int, future: Future[PatchLease]) -> None:
        """In the thread that cancels it: a waiting job gives its place back at once."""
        self._open.discard(future)
        if not future.cancelled():
            return
        if self.discard(job_id):
            with self._lock:
                self._num_jobs -= 1
                self.num_cancelled += 1
        self._wake()

    def _take_out(self, lane: deque[list[Job]], group: list[Job], job: Job) -> None:
        group.remove(job)
        if not group:
            if lane is self._lanes[True] and lane[0] is group:
                self._num_passed = 0
            lane.remove(group)
        self._num_bytes -= len(job.data)

    def waiting(self) -> list[Job]:
        with self._lock:
            return [job for lane in self._lanes for group in lane for job in group]

    def handed_over(self, num_bytes: int) -> None:
        """The encoded bytes of a job are no longer kept for it."""
        with self._lock:
            self._num_bytes -= num_bytes

    def finished(self) -> None:
        with self._lock:
            self._num_jobs -= 1

    def close(self, error: PyvlmError) -> None:
        """Every later submission raises `error`."""
        with self._lock:
            self._end = self._end or error

    def fail_open(self, error: PyvlmError) -> None:
        """Those too that were lost on their way from here to a worker."""
        for future in list(self._open):
            if future.set_running_or_notify_cancel():
                future.set_exception(error)


class PictureSize(NamedTuple):
    grid: TileGrid
    patch_bytes: int
    cell_bytes: int  # of the slab, in whole pages: the encoded bytes lie where the patches will


def size_of(picture: Picture, transform: ImageTransform) -> PictureSize:
    grid = transform.grid(*picture.header.upright)
    patch_bytes = 4 * math.prod(patches_shape(transform, grid))
    return PictureSize(grid, patch_bytes, whole_pages(max(patch_bytes, len(picture.data))))


def needed_bytes(pictures: Sequence[Picture], transform: ImageTransform) -> int:
    """Of the slab."""
    return sum(size_of(picture, transform).cell_bytes for picture in pictures)


def make_jobs(
    pictures: Sequence[Picture],
    transform: ImageTransform,
    ids: Iterator[int],
    *,
    deadline_s: float | None,
    owner: str,
) -> list[Job]:
    """The pictures of one request, submitted now."""
    now = time.monotonic()
    jobs = []
    for picture in pictures:
        size = size_of(picture, transform)
        jobs.append(
            Job(
                job_id=next(ids),
                data=bytes(picture.data),
                header=picture.header,
                index=picture.index,
                grid=size.grid,
                patch_bytes=size.patch_bytes,
                cell_bytes=size.cell_bytes,
                owner=owner,
                submitted_at=now,
                expires_at=math.inf if deadline_s is None else now + deadline_s,
            )
        )
    return jobs


def cells_bytes(jobs: Sequence[Job]) -> int:
    return sum(job.cell_bytes for job in jobs)


def check_fit(jobs: Sequence[Job], options: PoolOptions) -> None:
    """Refuses what would not fit if nothing else were there."""
    cells = cells_bytes(jobs)
    encoded = sum(len(job.data) for job in jobs)
    limits = (
        ("--slab-bytes", options.slab_bytes // PAGE * PAGE, cells, "bytes of prepared images"),
        ("max_jobs", options.max_jobs, len(jobs), "images"),
        ("max_queued_bytes", options.max_queued_bytes, encoded, "bytes of images"),
    )
    for flag, limit, seen, what in limits:
        if seen > limit:
            raise PyvlmError(
                f"{flag} is {limit}, the request takes {seen} {what}",
                code="media_policy_violation",
                param="images",
            )


def too_late(job: Job, now: float, options: PoolOptions) -> PyvlmError:
    what = "the request's deadline passed"
    if job.expires_at > now:
        what = f"preprocess_timeout_s is {options.job_timeout_s:g}"
    return PyvlmError(
        f"image {job.index}: preprocessing it took too long: {what}",
        code="deadline",
        param=f"images[{job.index}]",
    )


def closed_error() -> PyvlmError:
    return PyvlmError("the preprocessing stage is shut down", code="draining")


def stopped_error() -> PyvlmError:
    return PyvlmError("the preprocessing stage has stopped", code="engine_dead")


def _full(flag: str, limit: int, seen: int, more: int) -> PyvlmError:
    return PyvlmError(
        f"the preprocessing queue is full: {flag} is {limit}, {seen} are taken, {more} were asked",
        code="queue_full",
    )

"""Preprocessing in worker processes that write patches straight into shared memory.

The bounded queue and everything a caller touches is here; the work is ordered by one thread
(`pool_thread.py`), done by processes (`worker.py`), and what they write is lent out as leases
(`lease.py`) of the slab's cells (`pool_cells.py`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from pyvlm.files import read_if_any
from pyvlm.media.lease import LeaseInfo, PatchLease
from pyvlm.media.pool_cells import CellTable
from pyvlm.media.pool_inline import InlinePreprocessor
from pyvlm.media.pool_jobs import JobQueue, closed_error, make_jobs, needed_bytes
from pyvlm.media.pool_lanes import Reserve
from pyvlm.media.pool_seat import State
from pyvlm.media.pool_thread import PoolThread
from pyvlm.media.pool_wake import Wake
from pyvlm.media.preprocessor import Picture, PoolOptions, PoolStats, Preprocessor
from pyvlm.media.settings import load_transform
from pyvlm.media.slab import Slab
from pyvlm.media.transform import ImageTransform
from pyvlm.media.worker_process import WorkerSetup
from pyvlm.models.config import VisionConfig


class PreprocessPool:
    """A `Preprocessor`. Close it before the interpreter ends, after the engine."""

    def __init__(self, checkpoint: Path, vision: VisionConfig, options: PoolOptions) -> None:
        self._checkpoint, self._vision, self._options = checkpoint, vision, options
        self._reserve = Reserve.of(options.slab_bytes, vision)
        self._queue = JobQueue(options, self._reserve, self._wake)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # of start against close
        self._is_closed = False
        self._parts: _Parts | None = None

    @property
    def transform(self) -> ImageTransform:
        return self._running.transform

    @property
    def is_alive(self) -> bool:
        return self._parts is not None and self._parts.thread.is_alive()

    def start(self) -> None:
        with self._lock:
            if self._parts is not None:
                raise RuntimeError("the pool was started before")
            if self._is_closed:
                raise closed_error()
            self._parts = _Parts(
                self._checkpoint, self._vision, self._options, self._reserve, self._queue
            )
            thread = self._parts.thread
            thread.start()
        try:
            thread.started.wait()
        except BaseException:  # Ctrl-C, say
            self.close()
            raise
        if thread.start_error is not None:
            self.close()
            raise thread.start_error

    def submit_all(
        self, pictures: Sequence[Picture], *, deadline_s: float | None = None, owner: str = ""
    ) -> list[Future[PatchLease]]:
        parts = self._running
        jobs = make_jobs(pictures, parts.transform, self._ids, deadline_s=deadline_s, owner=owner)
        return self._queue.submit(jobs)

    def is_large(self, pictures: Sequence[Picture]) -> bool:
        return self._reserve.is_large(needed_bytes(pictures, self.transform))

    def leases(self) -> list[LeaseInfo]:
        """The table of live leases, those of jobs that wait or run included."""
        return self._running.cells.infos()

    def stats(self) -> PoolStats:
        parts, queue = self._running, self._queue
        thread = parts.thread
        num_running = thread.num_seats(State.BUSY)
        return PoolStats(
            num_queued=max(0, queue.num_jobs - num_running),
            num_running=num_running,
            queued_bytes=queue.num_bytes,
            slab_bytes=parts.slab.num_bytes,
            leased_bytes=parts.cells.used_bytes,
            num_workers=thread.num_seats(State.IDLE, State.BUSY),
            num_done=thread.num_done,
            num_cancelled=thread.num_abandoned + queue.num_cancelled,
            num_restarts=thread.num_restarts,
            num_failed=dict(thread.num_failed),
            num_refused=queue.num_refused,
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._parts is not None:
                self._parts.close()

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the pool was not started")
        return self._parts

    def _wake(self) -> None:
        self._running.wake.set()


class _Parts:
    """What exists between start and close."""

    def __init__(
        self,
        checkpoint: Path,
        vision: VisionConfig,
        options: PoolOptions,
        reserve: Reserve,
        queue: JobQueue,
    ) -> None:
        self.transform = load_transform(partial(read_if_any, checkpoint), vision)
        self.slab = Slab(options.slab_bytes)
        self.wake = Wake()
        self.cells = CellTable(self.slab, reserve, self.wake)
        setup = WorkerSetup(
            checkpoint, vision, self.slab.fd, self.slab.num_bytes, options.worker_memory_bytes
        )
        self.thread = PoolThread(setup, self.transform, options, queue, self.cells, self.wake)

    def close(self) -> None:
        self.thread.closing = True
        self.wake.set()
        self.thread.join()
        self.wake.close()
        self.slab.close()


def make_preprocessor(
    checkpoint: Path, vision: VisionConfig, options: PoolOptions | None = None
) -> Preprocessor:
    """Workers, or with num_workers 0 a thread of this process. Not started yet."""
    options = options or PoolOptions()
    if options.num_workers == 0:
        return InlinePreprocessor(checkpoint, vision, options)
    return PreprocessPool(checkpoint, vision, options)

"""The pool's one thread: leases cells, gives jobs to workers, ends and replaces workers.

Each turn of the loop: hear the workers, free cells, end what is past its deadline, fill empty
seats, lease cells to the head of the queue, hand out jobs. Futures are completed here, without a
lock held.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import signal
import threading
import time
from collections import Counter

from pyvlm.errors import PyvlmError
from pyvlm.media.lease import JobTimes, PatchLease, patches_shape
from pyvlm.media.pool_cells import Cell, CellTable
from pyvlm.media.pool_jobs import Job, JobQueue, closed_error, stopped_error, too_late
from pyvlm.media.pool_lanes import Lanes
from pyvlm.media.pool_seat import Seat, State, Task
from pyvlm.media.pool_wake import Wake
from pyvlm.media.preprocessor import PoolOptions
from pyvlm.media.transform import ImageTransform
from pyvlm.media.worker_process import WorkerSetup, failure_from
from pyvlm.media.worker_wire import Message, header_fields

_log = logging.getLogger("pyvlm.media.pool")


class PoolThread(threading.Thread):
    """`started` is set when all workers are ready, or `start_error` says why they will not be."""

    def __init__(
        self,
        setup: WorkerSetup,
        transform: ImageTransform,
        options: PoolOptions,
        queue: JobQueue,
        cells: CellTable,
        wake: Wake,
    ) -> None:
        super().__init__(name="pyvlm-preprocess", daemon=True)
        self._setup, self._transform, self._options = setup, transform, options
        self._queue, self._cells, self._wake = queue, cells, wake
        self._selector = selectors.DefaultSelector()
        self._seats = [Seat() for _ in range(options.num_workers)]
        self._leased: Lanes[tuple[Job, Cell]] = Lanes()
        self.closing = False
        self.started = threading.Event()
        self.start_error: PyvlmError | None = None
        self.num_done = self.num_abandoned = self.num_restarts = 0
        self.num_failed: Counter[str] = Counter()

    def num_seats(self, *states: State) -> int:
        return sum(seat.state in states for seat in self._seats)

    def run(self) -> None:
        # Workers inherit the mask: no signal reaches one before it has chosen what to ignore.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        try:
            while not self.closing and (self.started.is_set() or self.start_error is None):
                self._turn()
        except Exception:
            # Nobody answers jobs any more, so nobody may wait for one.
            _log.exception("the preprocessing stage stops")
            self._finish_all(stopped_error())
            self._queue.fail_open(stopped_error())
        finally:
            self._finish_all(closed_error())
            self.started.set()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._timeout()):
            if key.data is None:
                self._wake.clear()
            else:
                self._hear(key.data)
        self._cells.reclaim()
        now = time.monotonic()
        self._expire(now)
        self._fill_seats(now)
        self._lease_cells()
        self._hand_out(now)

    def _timeout(self) -> float | None:
        timers = [seat.timer for seat in self._seats]
        timers += [job.expires_at for job in self._queue.waiting()]
        timers += [job.expires_at for job, _ in self._leased]
        wait = min(timers) - time.monotonic()
        return None if wait == float("inf") else max(0.0, wait)

    # --- workers ----------------------------------------------------------------------------------

    def _fill_seats(self, now: float) -> None:
        for seat in self._seats:
            if seat.state is State.EMPTY and seat.timer <= now:
                try:
                    seat.fill(self._setup)
                except OSError as error:
                    self._not_started(f"the system refuses to start it ({error.strerror})")
                else:
                    self._selector.register(seat.worker, selectors.EVENT_READ, seat)

    def _hear(self, seat: Seat) -> None:
        message = seat.worker.receive()
        if message is None:
            self._bury(seat)
        elif seat.state is State.STARTING:
            self._hear_start(seat, message)
        elif seat.state is State.BUSY:
            self._hear_answer(seat, message)
        else:
            seat.end()

    def _hear_start(self, seat: Seat, message: Message) -> None:
        if message.get("ready") == repr(self._transform):
            seat.ready()
            if self.num_seats(State.IDLE) == len(self._seats):
                self.started.set()
            return
        if "failed" in message:
            error = failure_from(message["failed"])
        else:
            error = PyvlmError(
                "preprocessor_config.json has changed since the start", code="model_invalid"
            )
        self._not_started(error.message, error)
        seat.end()

    def _not_started(self, reason: str, error: PyvlmError | None = None) -> None:
        if self.started.is_set():
            _log.warning("a preprocessing worker did not start: %s", reason)
        elif self.start_error is None:
            text = f"a preprocessing worker did not start: {reason}"
            self.start_error = error or PyvlmError(text, code="runtime_missing")

    def _hear_answer(self, seat: Seat, message: Message) -> None:
        task = seat.task
        assert task is not None
        times = _times(message, task)
        if message.get("job") != task.cell.lease_id or (times is None and "error" not in message):
            seat.end()  # what it wrote is not to be trusted either
            return
        seat.answered()
        if times is not None and not task.job.future.cancelled():
            self._complete(task.job, self._cells.lend(task.cell, task.job, self._transform, times))
            return
        self._cells.free(task.cell)
        self._fail(task.job, failure_from(message.get("error")))

    def _bury(self, seat: Seat) -> None:
        """Its worker has ended, killed by us or not."""
        self._selector.unregister(seat.worker)
        was, pid = seat.state, seat.worker.pid
        status, task = seat.empty()
        if was is State.STARTING:
            self._not_started(f"it ended with status {status}")
        if self.started.is_set():
            self.num_restarts += 1
            _log.warning("preprocessing worker %d ended with status %d", pid, status)
        if task is not None:
            self._cells.free(task.cell)
            if not task.failed:
                self._fail(task.job, _worker_ended(task.job))

    # --- jobs -------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        for seat in self._seats:
            if seat.timer > now:
                continue
            if seat.state is State.STARTING:
                self._not_started("it was not ready in time")
                seat.end()
            elif seat.state is State.BUSY and seat.task is not None:
                seat.task.failed = True
                self._fail(seat.task.job, too_late(seat.task.job, now, self._options))
                seat.end()
        for job in self._queue.waiting():
            if job.expires_at <= now and self._queue.discard(job.job_id):
                self._fail(job, too_late(job, now, self._options))
        for job, cell in list(self._leased):
            if job.expires_at <= now or job.future.cancelled():
                self._leased.remove((job, cell))
                self._cells.free(cell)
                self._queue.handed_over(len(job.data))
                self._fail(job, too_late(job, now, self._options))

    def _lease_cells(self) -> None:
        while any(map(self._lease_group, self._queue.heads(self._cells.taken))):
            pass

    def _lease_group(self, group: list[Job]) -> bool:
        taken = self._cells.taken
        cells = self._cells.take(group)
        if cells is None:
            return False
        left = self._queue.pop(group, taken)
        for job, cell in zip(group, cells, strict=True):
            if job in left:
                self._leased.add((job, cell), large=job.is_large)
            else:
                self._cells.free(cell)
        return True

    def _hand_out(self, now: float) -> None:
        for seat in self._seats:
            if not self._leased:
                return
            if seat.state is State.IDLE:
                job, cell = self._leased.pop()
                self._give(seat, job, cell, now)

    def _give(self, seat: Seat, job: Job, cell: Cell, now: float) -> None:
        size = len(job.data)
        self._cells.fill(cell, job.data)
        job.data = b""
        self._queue.handed_over(size)
        cell.tag.state = "running"
        seat.take(Task(job, cell, now), min(now + self._options.job_timeout_s, job.expires_at))
        seat.worker.send(
            {
                "job": cell.lease_id,
                "offset": cell.range.offset,
                "num_bytes": size,
                "shape": patches_shape(self._transform, job.grid),
                "header": header_fields(job.header),
                "index": job.index,
            }
        )

    def _complete(self, job: Job, lease: PatchLease) -> None:
        self._queue.finished()
        if job.future.set_running_or_notify_cancel():
            self.num_done += 1
            job.future.set_result(lease)
        else:
            self.num_abandoned += 1
            lease.release()

    def _fail(self, job: Job, error: PyvlmError) -> None:
        self._queue.finished()
        if job.future.set_running_or_notify_cancel():
            self.num_failed[error.code] += 1
            job.future.set_exception(error)
        else:
            self.num_abandoned += 1

    # --- the end ----------------------------------------------------------------------------------

    def _finish_all(self, error: PyvlmError) -> None:
        self._queue.close(error)
        for seat in self._seats:
            if seat.state is not State.EMPTY:
                _, task = seat.empty()
                if task is not None:
                    self._cells.free(task.cell)
                    if not task.failed:
                        self._fail(task.job, error)
        for job, cell in self._leased:
            self._cells.free(cell)
            self._fail(job, error)
        self._leased.clear()
        for job in self._queue.waiting():
            if self._queue.discard(job.job_id):
                self._fail(job, error)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._wake)
        self._selector.close()


def _times(message: Message, task: Task) -> JobTimes | None:
    decode, transform = _duration(message.get("decode_ms")), _duration(message.get("transform_ms"))
    if decode is None or transform is None:
        return None
    return JobTimes((task.started_at - task.job.submitted_at) * 1e3, decode, transform)


def _duration(given: object) -> float | None:
    return given if isinstance(given, float) and 0 <= given < math.inf else None


def _worker_ended(job: Job) -> PyvlmError:
    return PyvlmError(
        f"image {job.index}: the preprocessing worker ended",
        code="engine_failed",
        param=f"images[{job.index}]",
    )

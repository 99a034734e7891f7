"""A place for one worker: filled, and filled again with growing pauses when its worker ends."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import Enum

from pyvlm.media.pool_cells import Cell
from pyvlm.media.pool_jobs import Job
from pyvlm.media.worker_process import WorkerProcess, WorkerSetup

START_TIMEOUT_S = 60.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class State(Enum):
    EMPTY = "empty"
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    ENDING = "ending"  # killed; its memory is in use until it is reaped


@dataclass(eq=False, slots=True)
class Task:
    """What a busy worker works on. `failed`: nobody waits for the job any more."""

    job: Job
    cell: Cell
    started_at: float
    failed: bool = False


class Seat:
    def __init__(self) -> None:
        self.state = State.EMPTY
        self.task: Task | None = None
        self.timer = 0.0  # when something is to be done about it
        self._failures = 0  # ends of workers since one finished a job
        self._worker: WorkerProcess | None = None

    @property
    def worker(self) -> WorkerProcess:
        if self._worker is None:
            raise RuntimeError("the seat is empty")
        return self._worker

    def fill(self, setup: WorkerSetup) -> None:
        self.timer = time.monotonic() + self._pause()  # should it fail to start at all
        self._failures += 1
        self._worker = WorkerProcess(setup)
        self._failures -= 1
        self.state, self.timer = State.STARTING, time.monotonic() + START_TIMEOUT_S

    def ready(self) -> None:
        self.state, self.timer = State.IDLE, math.inf

    def take(self, task: Task, deadline: float) -> None:
        self.state, self.task, self.timer = State.BUSY, task, deadline

    def answered(self) -> Task | None:
        self._failures = 0
        task, self.task = self.task, None
        self.ready()
        return task

    def end(self) -> None:
        self.state, self.timer = State.ENDING, math.inf
        self.worker.kill()

    def empty(self) -> tuple[int, Task | None]:
        """Reaps the worker: its exit status, and the task that ends with it."""
        status = self.worker.reap()
        self._worker = None
        task, self.task = self.task, None
        self.state, self.timer = State.EMPTY, time.monotonic() + self._pause()
        self._failures += 1
        return status, task

    def _pause(self) -> float:
        """None after the first end, then doubling."""
        if self._failures == 0:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))

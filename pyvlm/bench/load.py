"""Sends the requests of a run at the times of its schedule."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import aiohttp
import numpy as np

from pyvlm.bench.client import open_session, send
from pyvlm.bench.options import Schedule, Target
from pyvlm.bench.record import RequestRecord
from pyvlm.bench.workload import LoadRequest


class LoadRun:
    """Records appear as requests end, so what an interrupted run has learnt is not lost."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.num_running = 0
        self.max_running = 0
        self.duration = 0.0
        self._zero = 0.0

    async def warm_up(self, target: Target, requests: Sequence[LoadRequest]) -> None:
        """One after the other; not recorded."""
        async with open_session(target) as session:
            for request in requests:
                await send(session, target, request, 0.0, time.perf_counter())

    async def run(
        self,
        target: Target,
        requests: Sequence[LoadRequest],
        due: Sequence[float],
        max_concurrency: int | None,
        on_end: Callable[[LoadRun], None],
    ) -> None:
        """`due`: seconds from the start at which each request is to be sent."""
        gate: contextlib.AbstractAsyncContextManager[object]
        gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
        self._zero = time.perf_counter()
        try:
            async with open_session(target) as session, asyncio.TaskGroup() as group:
                for request, at in zip(requests, due, strict=True):
                    await asyncio.sleep(max(0.0, self._zero + at - time.perf_counter()))
                    group.create_task(self._one(session, target, request, at, gate, on_end))
        finally:
            self.duration = time.perf_counter() - self._zero

    async def _one(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        request: LoadRequest,
        due: float,
        gate: contextlib.AbstractAsyncContextManager[object],
        on_end: Callable[[LoadRun], None],
    ) -> None:
        async with gate:
            self.num_running += 1
            self.max_running = max(self.max_running, self.num_running)
            try:
                record = await send(session, target, request, due, self._zero)
            finally:
                self.num_running -= 1
        self.records.append(record)
        on_end(self)


def due_times(schedule: Schedule, count: int, seed: int) -> list[float]:
    """Gaps are gamma distributed with the given mean; burstiness 1 makes a Poisson process."""
    if schedule.request_rate == float("inf"):
        return [0.0] * count
    rng = np.random.default_rng((seed, 7))
    scale = 1.0 / (schedule.request_rate * schedule.burstiness)
    gaps = rng.gamma(schedule.burstiness, scale, size=count)
    gaps[0] = 0.0
    return [float(at) for at in np.cumsum(gaps)]

"""The way into the engine: bounds, planning, pictures, order of arrival, submission.

Stages of a request: planned in the one thread of `_executor`; its pictures preprocessed; its turn
among the image requests; built and submitted in the thread. At each of them it may be cancelled,
run into its deadline or see the engine close, and `close` gives back whatever it holds then.

Event loop's thread only, where not said otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyvlm import _core
from pyvlm.engine_options import EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.frontend import Frontend
from pyvlm.image_key import ImageKeys
from pyvlm.media.preprocessor import Preprocessor
from pyvlm.ordering import TicketGate
from pyvlm.outputs import Timings
from pyvlm.pictures import Pictures
from pyvlm.preparation import RequestPlan, deadline_error, plan_request, prefill_of
from pyvlm.request import GenerationRequest
from pyvlm.routing import Channel, OutputRouter

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Arrival:
    """One request inside. `channel` is None if no engine has to see it."""

    request: GenerationRequest
    pictures: Pictures
    arrived: float  # monotonic clock, as the deadline
    deadline: float | None
    ticket: int | None  # of image requests
    channel: Channel | None = None
    seq_id: int | None = None
    timings: Timings = field(default_factory=Timings)
    is_submitting: bool = False
    is_closed: bool = False


class Intake:
    """One engine's, on one loop. Whoever opened an arrival closes it."""

    def __init__(
        self,
        native: _core.Engine,
        frontend: Frontend,
        preprocessor: Preprocessor | None,
        keys: ImageKeys | None,
        options: EngineOptions,
        executor: ThreadPoolExecutor,
    ) -> None:
        self._native = native
        self._frontend = frontend
        self._preprocessor = preprocessor
        self._keys = keys
        self._options = options
        self._executor = executor
        self._max_open = native.stats().num_slots + options.max_queued
        self._gate = TicketGate()
        self._preparing: set[Arrival] = set()
        self.queued_bytes = 0  # of the encoded pictures of those
        self._refusal: PyvlmError | None = None
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.router = OutputRouter(native, self._check_idle)

    @property
    def num_open(self) -> int:
        return len(self._preparing) + self.router.num_open

    @property
    def num_preparing(self) -> int:
        return len(self._preparing)

    @property
    def num_in_order(self) -> int:
        return len(self._gate)

    @property
    def is_draining(self) -> bool:
        return self._refusal is not None

    def open(self, request: GenerationRequest) -> Arrival:
        """Raises draining or queue_full; nothing is kept then."""
        if self._refusal is not None:
            raise self._refusal
        self._check_room(request)
        now = time.monotonic()
        ticket = self._gate.take() if request.images else None
        arrival = Arrival(
            request=request,
            pictures=Pictures(self._native, self._preprocessor, f"image request {ticket}"),
            arrived=now,
            deadline=None if request.deadline_s is None else now + request.deadline_s,
            ticket=ticket,
        )
        self._preparing.add(arrival)
        self.queued_bytes += request.image_bytes
        self._idle.clear()
        return arrival

    async def admit(self, arrival: Arrival) -> RequestPlan:
        """Until the engine has it, or needs not have it: then `channel` is None."""
        deadline = arrival.deadline
        try:
            # Where the loop's clock is another one, only the difference counts.
            left = None if deadline is None else deadline - time.monotonic()
            async with asyncio.timeout(left):
                return await self._admit(arrival)
        except TimeoutError:
            raise deadline_error() from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._refusal is not None and self._is_closed and not (task and task.cancelling()):
                raise self._refusal from None  # a job was cancelled, not this task
            raise

    def close(self, arrival: Arrival) -> None:
        """Gives back everything that the arrival holds; cancels its sequence. Idempotent."""
        arrival.is_closed = True
        arrival.pictures.close()
        self._gate.leave(arrival.ticket)
        if arrival.seq_id is not None:
            self._native.cancel(arrival.seq_id)
        elif not arrival.is_submitting:
            self._forget(arrival)

    def refuse(self, error: PyvlmError) -> None:
        """Every later `open` raises `error`."""
        self._refusal = self._refusal or error

    def abort(self) -> None:
        """Ends all that are not submitted yet."""
        assert self._refusal is not None
        self._is_closed = True
        self._gate.close(self._refusal)
        for arrival in self._preparing:
            arrival.pictures.abandon()

    async def idle(self) -> None:
        """Returns when no request is open."""
        await self._idle.wait()

    async def _admit(self, arrival: Arrival) -> RequestPlan:
        request, capacity = arrival.request, self._native.capacity
        frontend, keys = self._frontend, self._keys
        plan = await self._in_thread(lambda: plan_request(frontend, request, capacity, keys))
        if request.sampling.max_tokens == 0:
            self._check_open()
            return plan
        if arrival.ticket is not None:
            await self._prepare_pictures(arrival, plan, arrival.ticket)
        await self._submit(arrival, plan)
        return plan

    async def _prepare_pictures(self, arrival: Arrival, plan: RequestPlan, ticket: int) -> None:
        """After them, it is the arrival's turn."""
        self._check_open()
        left = None if arrival.deadline is None else arrival.deadline - time.monotonic()
        await arrival.pictures.prepare(plan, left)
        before = time.monotonic()
        await self._gate.turn(ticket)
        arrival.timings = replace(arrival.pictures.timings, queue=time.monotonic() - before)

    async def _submit(self, arrival: Arrival, plan: RequestPlan) -> None:
        images, stop_ids = arrival.pictures.inputs, self._frontend.stop_token_ids

        def submit() -> int:
            return self._native.submit(prefill_of(plan, images, stop_ids, arrival.deadline))

        self._check_open()
        future = self._in_thread(submit)
        arrival.is_submitting = True
        # Runs even if nobody waits any more: an id that was given out is never lost.
        future.add_done_callback(lambda done: self._submitted(arrival, done))
        await asyncio.shield(future)
        arrival.pictures.close()  # the engine keeps what it reads
        self._gate.leave(arrival.ticket)

    def _submitted(self, arrival: Arrival, done: asyncio.Future[int]) -> None:
        arrival.is_submitting = False
        if done.cancelled() or done.exception() is not None:
            self._forget(arrival)
            return
        arrival.seq_id = done.result()
        arrival.channel = self.router.open(arrival.seq_id)
        self._forget(arrival)
        if arrival.is_closed:
            self._native.cancel(arrival.seq_id)

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._executor, work)
        except RuntimeError:  # ended from another thread, which told no loop
            raise PyvlmError("the engine was shut down", code="draining") from None

    def _check_open(self) -> None:
        if self._is_closed and self._refusal is not None:
            raise self._refusal

    def _check_room(self, request: GenerationRequest) -> None:
        if self.num_open >= self._max_open:
            raise PyvlmError(
                f"max_queued is {self._options.max_queued}, and {self.num_open} requests are "
                "unfinished",
                code="queue_full",
            )
        limit, queued = self._options.max_queued_bytes, self.queued_bytes
        if queued + request.image_bytes > limit:
            raise PyvlmError(
                f"max_queued_bytes is {limit}; {queued} bytes of images are queued and this "
                f"request has {request.image_bytes}",
                code="queue_full",
                param="images",
            )

    def _forget(self, arrival: Arrival) -> None:
        if arrival in self._preparing:
            self._preparing.remove(arrival)
            self.queued_bytes -= arrival.request.image_bytes
        self._check_idle()

    def _check_idle(self) -> None:
        if self.num_open == 0:
            self._idle.set()

"""The way into the engine: bounds, planning, pictures, order of arrival, submission.

Stages of a request: planned in the one thread of `_executor`; its pictures preprocessed, once for
all its choices; its turn among the image requests; built and submitted in the thread. At each of
them it may be cancelled, run into its deadline or see the engine close, and `close` gives back
whatever it holds then.

Event loop's thread only, where not said otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
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
from pyvlm.preparation import (
    PicturePlan,
    RequestPlan,
    deadline_error,
    plan_pictures,
    plan_request,
    prefill_of,
)
from pyvlm.request import Embeddings, GenerationRequest
from pyvlm.routing import Channel, OutputRouter

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PictureGroup:
    """The pictures that the choices of a request share, and what their bytes tell."""

    pictures: Pictures
    images: Sequence[bytes | Embeddings]
    plan: PicturePlan | None = None  # set by the thread that plans, one request at a time


@dataclass(slots=True, eq=False)
class Arrival:
    """One request inside. `channel` is None if no engine has to see it."""

    request: GenerationRequest
    group: PictureGroup | None  # None: it has no pictures
    arrived: float  # monotonic clock, as the deadline
    deadline: float | None
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
        self._groups: dict[int, PictureGroup] = {}  # that more choices may join, by their images
        self.queued_bytes = 0  # encoded pictures of image requests that are not submitted yet
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
        """Raises draining, queue_full, or a violation for what could never come in; nothing is kept
        then."""
        if self._refusal is not None:
            raise self._refusal
        group = self._groups.get(id(request.images))
        self._check_room(0 if group else request.image_bytes)
        if group is None and request.images:
            group = self._new_group(request)
        now = time.monotonic()
        arrival = Arrival(
            request=request,
            group=group,
            arrived=now,
            deadline=None if request.deadline_s is None else now + request.deadline_s,
        )
        if group is not None:
            group.pictures.join(arrival)
        self._preparing.add(arrival)
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
        if arrival.group is not None:
            arrival.group.pictures.left(arrival)
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
            if arrival.group is not None:
                arrival.group.pictures.abandon()

    async def idle(self) -> None:
        """Returns when no request is open."""
        await self._idle.wait()

    async def _admit(self, arrival: Arrival) -> RequestPlan:
        plan = await self._in_thread(lambda: self._plan(arrival))
        if arrival.request.sampling.max_tokens == 0:
            self._check_open()
            if arrival.group is not None:
                arrival.group.pictures.left(arrival)  # nobody has to wait until it is closed
            return plan
        if arrival.group is not None:
            await self._wait_for_pictures(arrival, arrival.group)
        await self._submit(arrival, plan)
        return plan

    def _plan(self, arrival: Arrival) -> RequestPlan:
        """In the thread."""
        group, request = arrival.group, arrival.request
        if group is not None and group.plan is None:
            group.plan = plan_pictures(self._frontend, request.images, self._keys)
        pictures = PicturePlan() if group is None or group.plan is None else group.plan
        return plan_request(self._frontend, request, self._native.capacity, pictures)

    async def _wait_for_pictures(self, arrival: Arrival, group: PictureGroup) -> None:
        """After that, it is the arrival's turn."""
        self._check_open()
        assert group.plan is not None
        self._close_group(group)
        arrival.timings = await group.pictures.turn(arrival, group.plan)

    async def _submit(self, arrival: Arrival, plan: RequestPlan) -> None:
        pictures = None if arrival.group is None else arrival.group.pictures
        images = [] if pictures is None else pictures.inputs
        stop_ids = self._frontend.stop_token_ids

        def submit() -> int:
            return self._native.submit(prefill_of(plan, images, stop_ids, arrival.deadline))

        self._check_open()
        future = self._in_thread(submit)
        arrival.is_submitting = True
        # Runs even if nobody waits any more: an id that was given out is never lost.
        future.add_done_callback(lambda done: self._submitted(arrival, done))
        await asyncio.shield(future)
        if pictures is not None:
            pictures.entered(arrival)

    def _submitted(self, arrival: Arrival, done: asyncio.Future[int]) -> None:
        arrival.is_submitting = False
        if done.cancelled() or done.exception() is not None:
            self._forget(arrival)
            return
        arrival.seq_id = done.result()
        group = arrival.group
        on_first = None if group is None else partial(group.pictures.first_output, arrival)
        arrival.channel = self.router.open(arrival.seq_id, on_first)
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

    def _new_group(self, request: GenerationRequest) -> PictureGroup:
        images, num_bytes = request.images, request.image_bytes

        def end() -> None:
            self._close_group(group)
            self.queued_bytes -= num_bytes

        pictures = Pictures(self._native, self._preprocessor, self._gate, end)
        group = self._groups[id(images)] = PictureGroup(pictures, images)
        self.queued_bytes += num_bytes
        return group

    def _close_group(self, group: PictureGroup) -> None:
        """To more choices. Idempotent; later requests may have made another with its images."""
        if self._groups.get(id(group.images)) is group:
            del self._groups[id(group.images)]

    def _check_room(self, num_bytes: int) -> None:
        limit, queued = self._options.max_queued_bytes, self.queued_bytes
        if num_bytes > limit:
            raise PyvlmError(
                f"max_queued_bytes is {limit}; this request alone has {num_bytes} bytes of images",
                code="media_policy_violation",
                param="images",
            )
        if self.num_open >= self._max_open:
            raise PyvlmError(
                f"max_queued is {self._options.max_queued}, and {self.num_open} requests are "
                "unfinished",
                code="queue_full",
            )
        if queued + num_bytes > limit:
            raise PyvlmError(
                f"max_queued_bytes is {limit}; {queued} bytes of images are queued and this "
                f"request has {num_bytes}",
                code="queue_full",
                param="images",
            )

    def _forget(self, arrival: Arrival) -> None:
        self._preparing.discard(arrival)
        self._check_idle()

    def _check_idle(self) -> None:
        if self.num_open == 0:
            self._idle.set()

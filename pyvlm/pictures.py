"""The pictures of a request, from encoded bytes to what the engine takes.

The choices of a request are generations that come together with one tuple of pictures. They share
the work: each picture is decoded and transformed once, and encoded once. For that the generation
that enters first brings the pixels and makes the engine keep their rows; the others enter after
its first output and take the rows. Where rows are gone by then (other pictures needed the room),
they bring the pixels, which are kept as long as somebody may need them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from pyvlm import _core
from pyvlm.media.lease import PatchLease
from pyvlm.media.preprocessor import Picture, Preprocessor
from pyvlm.ordering import TicketGate
from pyvlm.outputs import Timings
from pyvlm.preparation import PicturePlan
from pyvlm.request import Embeddings


class Member(Protocol):
    """A generation, by its identity. `deadline` is on the monotonic clock."""

    deadline: float | None


class Pictures:
    """Owns tickets, jobs and leases until its last member has entered or left.

    Members join until the first of them asks for its turn. Each takes a ticket of its own: the
    one that asks first need not have come first, and the order of the tickets has to be that in
    which pictures are given to the preprocessor. Event loop's thread only.
    """

    def __init__(
        self,
        native: _core.Engine,
        preprocessor: Preprocessor | None,
        gate: TicketGate,
        on_end: Callable[[], None],
    ) -> None:
        """`preprocessor` is None where the model takes no pictures. `on_end` is called when the
        last member has entered or left."""
        self._native = native
        self._preprocessor = preprocessor
        self._gate = gate
        self._on_end = on_end
        self._members: dict[Member, int] = {}  # with their tickets
        self._ticket = 0  # of the member that asked first, and all the others'; 0: none has
        self._jobs: dict[int, Future[PatchLease]] = {}  # by the first place of each picture
        self._places: list[int] = []  # per picture of the request the first place of its equals
        self._keys: dict[int, bytes] = {}  # of pixels, under which the engine keeps their rows
        self._task: asyncio.Task[Timings] | None = None
        self._encoder: Member | None = None  # for whose first output the others wait
        self._is_encoded = False
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Emptied in the end, so that no frame of a kept traceback can hold on to a picture.
        self.inputs: list[_core.ImageInput] = []

    def join(self, member: Member) -> None:
        """Takes its place in the order of arrival."""
        self._members[member] = self._gate.take()

    async def turn(self, member: Member, plan: PicturePlan) -> Timings:
        """Returns when the member may be submitted with `inputs`. A picture that fails ends all
        members. They all have the same plan."""
        if self._task is None:
            self._ticket = self._members[member]
            for ticket in self._members.values():
                if ticket != self._ticket:
                    self._gate.leave(ticket)
            self._task = asyncio.create_task(self._prepare(plan))
        timings = await asyncio.shield(self._task)
        before = time.monotonic()
        while self._encoder is not None:
            await asyncio.shield(self._changed)
        if self._keys and not self._is_encoded:
            self._encoder = member
        return replace(timings, queue=timings.queue + time.monotonic() - before)

    def first_output(self, member: Member, output: _core.TokenOutput | None) -> None:
        """The engine has encoded the member's pictures, or never will."""
        if self._encoder is not member:
            return
        if output is not None and output.finish_reason not in ("error", "cancelled"):
            self._take_rows()
        self._pass_on()

    def entered(self, member: Member) -> None:
        """It was submitted; the engine keeps what it reads."""
        self._gate.leave(self._ticket)
        self._drop(member)

    def left(self, member: Member) -> None:
        """It has ended, submitted or not. Idempotent."""
        if self._encoder is member:
            self._pass_on()
        self._drop(member)

    def abandon(self) -> None:
        """Cancels the preparation; whoever waits here is cancelled with it."""
        if self._task is not None:
            self._task.cancel()
        self._changed.cancel()

    def _pass_on(self) -> None:
        self._encoder = None
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        if not changed.done():
            changed.set_result(None)

    def _drop(self, member: Member) -> None:
        ticket = self._members.pop(member, None)
        if ticket is None:
            return
        if ticket != self._ticket:
            self._gate.leave(ticket)
        if self._members:
            return
        if self._task is not None:
            self._task.cancel()
        for job in self._jobs.values():
            _let_go(job)
        self._jobs.clear()
        self.inputs.clear()
        self._gate.leave(self._ticket)
        self._on_end()

    async def _prepare(self, plan: PicturePlan) -> Timings:
        """Fills `inputs`, in the order of the request; then waits for the request's turn."""
        timings = await self._fill(plan)
        before = time.monotonic()
        await self._gate.turn(self._ticket)
        return replace(timings, queue=time.monotonic() - before)

    async def _fill(self, plan: PicturePlan) -> Timings:
        found = self._ready(plan)
        leases = await self._leases(plan, found)
        self._keys = self._keys_of(plan, leases)
        found |= {i: _pixels(lease, self._keys.get(i, b"")) for i, lease in leases.items()}
        self._places += plan.first_same
        self.inputs += [found[place] for place in self._places]
        return _timings(leases.values())

    def _ready(self, plan: PicturePlan) -> dict[int, _core.ImageInput]:
        """Rows that the caller gave, or that the engine has still."""
        found = {}
        for index in sorted(set(plan.first_same)):
            image = plan.images[index]
            if isinstance(image, Embeddings):
                found[index] = _core.ImageInput.embeddings(image.rows)
            elif plan.cache_keys:
                rows = self._native.cached_image(plan.cache_keys[index])
                if rows is not None:
                    found[index] = rows
        return found

    async def _leases(self, plan: PicturePlan, ready: Collection[int]) -> Mapping[int, PatchLease]:
        todo = [
            Picture(image, header, index)
            for index, (image, header) in enumerate(zip(plan.images, plan.headers, strict=True))
            if header is not None
            and not isinstance(image, Embeddings)
            and plan.first_same[index] == index
            and index not in ready
        ]
        if not todo:
            self._gate.tell_lane(self._ticket, is_large=False)
            return {}
        assert self._preprocessor is not None  # the capability implies it
        self._gate.tell_lane(self._ticket, is_large=self._preprocessor.is_large(todo))
        jobs = self._preprocessor.submit_all(
            todo, deadline_s=self._deadline_s(), owner=f"image request {self._ticket}"
        )
        self._jobs = {picture.index: job for picture, job in zip(todo, jobs, strict=True)}
        leases = await asyncio.gather(*map(asyncio.wrap_future, self._jobs.values()))
        return dict(zip(self._jobs, leases, strict=True))

    def _deadline_s(self) -> float | None:
        """The latest: each member watches over its own."""
        deadlines = [member.deadline for member in self._members]
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(known) - time.monotonic() if len(known) == len(deadlines) else None

    def _keys_of(self, plan: PicturePlan, prepared: Collection[int]) -> dict[int, bytes]:
        """Without an image cache those of one request are names that no other can have."""
        if plan.cache_keys:
            return {index: plan.cache_keys[index] for index in prepared}
        if len(self._members) < 2:
            return {}
        return {index: secrets.token_bytes(32) for index in prepared}

    def _take_rows(self) -> None:
        """From now on rows stand for the pixels, whose memory others may have."""
        self._is_encoded = True
        if not self._members:
            return
        for index, key in self._keys.items():
            rows = self._native.cached_image(key)
            if rows is None:
                continue
            self.inputs[:] = [
                rows if place == index else given
                for place, given in zip(self._places, self.inputs, strict=True)
            ]
            _let_go(self._jobs.pop(index))


def _pixels(lease: PatchLease, cache_key: bytes) -> _core.ImageInput:
    patches = lease.patches
    return _core.ImageInput.pixels(patches.patches, patches.valid, cache_key=cache_key)


def _timings(leases: Collection[PatchLease]) -> Timings:
    times = [lease.times for lease in leases]
    return Timings(
        preprocess_wait=max((t.wait_ms for t in times), default=0.0) / 1e3,
        decode_image=sum(t.decode_ms for t in times) / 1e3,
        transform=sum(t.transform_ms for t in times) / 1e3,
    )


def _let_go(job: Future[PatchLease]) -> None:
    """Cancels what is not done, releases what is: the engine keeps what it still reads."""
    if not job.cancel():
        job.add_done_callback(_release)


def _release(job: Future[PatchLease]) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().release()

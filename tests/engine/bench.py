"""What the tests of the engine share: pictures, requests, a preprocessor under control, counts."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from PIL import Image, ImageDraw

from pyvlm.chat import user_message
from pyvlm.engine import AsyncEngine
from pyvlm.media.lease import PatchLease
from pyvlm.media.preprocessor import Picture, Preprocessor
from pyvlm.outputs import Delta
from pyvlm.request import GenerationRequest
from pyvlm.sampling import SamplingParams

QUESTION = "What colour is the shape?"
GUARD_S = 120.0  # no test waits longer for anything

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def guarded() -> T:
        return await asyncio.wait_for(work, GUARD_S)

    return asyncio.run(guarded())


@cache
def picture(colour: str) -> bytes:
    """Blue is a square, any other colour a circle."""
    image = Image.new("RGB", (192, 192), "white")
    draw = ImageDraw.Draw(image)
    shape = draw.rectangle if colour == "blue" else draw.ellipse
    shape((40, 40, 150, 150), fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def torn(colour: str) -> bytes:
    """A good header; the pixels cannot be decoded."""
    return picture(colour)[:120]


def ask(*colours: str, prompt: str = QUESTION, **sampling: object) -> GenerationRequest:
    images = [picture(colour) for colour in colours]
    message = user_message(prompt, len(colours))
    return GenerationRequest([message], images, SamplingParams(**sampling))


def endless(engine: AsyncEngine, *colours: str, **sampling: object) -> GenerationRequest:
    """Runs until the capacity: no id ends it."""
    bias = dict.fromkeys(engine.frontend.stop_token_ids, -100.0)
    return ask(*colours, logit_bias=bias, **sampling)


def choices(count: int, images: Sequence[bytes], **sampling: object) -> list[GenerationRequest]:
    """As the server makes them: one tuple of pictures, a seed for each."""
    shared = tuple(images)
    options = {"temperature": 4.0, "max_tokens": 12, **sampling}
    return [
        GenerationRequest(
            [user_message(QUESTION, len(shared))],
            shared,
            SamplingParams(seed=7 + index, **options),
        )
        for index in range(count)
    ]


def alone(request: GenerationRequest) -> GenerationRequest:
    return replace(request, images=list(request.images))


async def all_ids(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[object]:
    return await asyncio.gather(*(ids_of(engine, r) for r in requests), return_exceptions=True)


async def collect(engine: AsyncEngine, request: GenerationRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(request)]


async def ids_of(engine: AsyncEngine, request: GenerationRequest) -> tuple[int, ...]:
    return tuple(i for delta in await collect(engine, request) for i in delta.token_ids)


async def text_of(engine: AsyncEngine, request: GenerationRequest) -> str:
    return "".join(delta.text for delta in await collect(engine, request))


async def until(condition: Callable[[], bool]) -> None:
    """The tests' own wait for what another thread does; `run` bounds it."""
    while not condition():
        await asyncio.sleep(0.005)


async def settled(engine: AsyncEngine) -> None:
    """Returns when nothing of any request is left anywhere."""
    await until(lambda: is_clean(engine))


def is_clean(engine: AsyncEngine) -> bool:
    gc.collect()
    now = engine.stats()
    native = now.native
    leases = () if engine._preprocessor is None else engine._preprocessor.leases()
    return (
        now.num_open == now.num_preparing == now.num_in_order == now.queued_bytes == 0
        and native.num_waiting == native.num_running == native.num_leases == 0
        and native.num_cached == 0
        and engine._native.num_owners == 0
        and not leases
        and (now.pool is None or now.pool.num_queued == now.pool.num_running == 0)
    )


def process_resources() -> tuple[int, int]:
    """Python threads and open descriptors."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class HeldPreprocessor:
    """A real preprocessor behind a gate: each request's pictures go on when a test says so."""

    def __init__(self, inner: Preprocessor) -> None:
        self._inner = inner
        self._held: list[tuple[list[Picture], list[Future[PatchLease]]]] = []
        self.is_holding = True

    @property
    def num_held(self) -> int:
        return len(self._held)

    def submit_all(
        self, pictures: Sequence[Picture], *, deadline_s: float | None = None, owner: str = ""
    ) -> list[Future[PatchLease]]:
        if not self.is_holding:
            return self._inner.submit_all(pictures, deadline_s=deadline_s, owner=owner)
        futures: list[Future[PatchLease]] = [Future() for _ in pictures]
        self._held.append((list(pictures), futures))
        return futures

    def let_go(self, index: int = 0) -> None:
        """The pictures of the request that has been held at place `index`."""
        pictures, futures = self._held.pop(index)
        for job, future in zip(self._inner.submit_all(pictures), futures, strict=True):
            job.add_done_callback(lambda done, future=future: _pass_on(done, future))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _pass_on(done: Future[PatchLease], future: Future[PatchLease]) -> None:
    if not future.set_running_or_notify_cancel():
        if done.exception() is None:
            done.result().release()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


Work = Callable[[AsyncEngine], Awaitable[T]]

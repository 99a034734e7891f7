"""The choices of one request: as many generations, their deltas in the order of their coming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from pyvlm.engine import AsyncEngine
from pyvlm.outputs import Delta
from pyvlm.request import GenerationRequest

_Queue: TypeAlias = "asyncio.Queue[tuple[int, Delta | Exception | None]]"
_MAX_WAITING = 64  # deltas that a slow reader leaves lying about


async def run_choices(
    engine: AsyncEngine, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[tuple[int, Delta], None]:
    """(index, delta). The first error ends all of them; so does leaving the iteration."""
    if len(requests) == 1:
        async with aclosing(engine.generate(requests[0])) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    queue: _Queue = asyncio.Queue(_MAX_WAITING)
    tasks = [
        asyncio.create_task(_forward(engine, request, index, queue))
        for index, request in enumerate(requests)
    ]
    try:
        num_open = len(tasks)
        while num_open:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    engine: AsyncEngine, request: GenerationRequest, index: int, queue: _Queue
) -> None:
    """The deltas, then None or what ended them."""
    try:
        async with aclosing(engine.generate(request)) as deltas:
            async for delta in deltas:
                await queue.put((index, delta))
    except Exception as error:
        await queue.put((index, error))
    else:
        await queue.put((index, None))

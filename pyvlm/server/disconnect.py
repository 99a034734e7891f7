"""Work for a client ends when the client does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_Result = TypeVar("_Result")


class ClientGoneError(Exception):
    """Nobody is left to answer to."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`, which is cancelled if the client leaves first.

    `receive` must have given the whole body. `work` must not send the end of the response, which
    looks like a disconnect too.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

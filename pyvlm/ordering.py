"""Image requests enter the engine in the order of their arrival, whichever is prepared first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from pyvlm.errors import PyvlmError


class TicketGate:
    """One event loop's thread only. A ticket is open from `take` to `leave`.

    Invariant: a ticket's turn comes when every ticket taken before it has left, and not before.
    Whoever takes a ticket must let it leave, however the request ends; so nobody waits longer than
    the earlier requests live.
    """

    def __init__(self) -> None:
        self._last = 0
        self._open: OrderedDict[int, asyncio.Future[None] | None] = OrderedDict()
        self._closed: PyvlmError | None = None

    def __len__(self) -> int:
        return len(self._open)

    def take(self) -> int:
        self._last += 1
        self._open[self._last] = None
        return self._last

    async def turn(self, ticket: int) -> None:
        """Returns when the ticket is the first of those open. Leaving it is the caller's part."""
        if self._closed is not None:
            raise self._closed
        if next(iter(self._open)) == ticket:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._open[ticket] = waiter
        await waiter

    def leave(self, ticket: int | None) -> None:
        """Idempotent."""
        if ticket is None or self._open.pop(ticket, self) is self or not self._open:
            return
        waiter = next(iter(self._open.values()))
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self, error: PyvlmError) -> None:
        """Whoever waits gets the error, and whoever comes to wait."""
        self._closed = error
        for waiter in self._open.values():
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)

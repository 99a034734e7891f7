"""Image requests enter the engine in the order of their arrival, whichever is prepared first.

Small and large ones each in a lane of its own: the preprocessing stage, whose lanes these are
(`media/pool_lanes.py`), prepares them beside each other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from pyvlm.errors import PyvlmError


class TicketGate:
    """One event loop's thread only. A ticket is open from `take` to `leave`.

    Invariant: a ticket's turn comes when every ticket taken before it has left or is known to be in
    the other lane, and not before. Whoever takes a ticket must let it leave, however the request
    ends; so nobody waits longer than the earlier requests of its lane live, or take to tell theirs.
    """

    def __init__(self) -> None:
        self._last = 0
        self._open: OrderedDict[int, _Entry] = OrderedDict()
        self._closed: PyvlmError | None = None

    def __len__(self) -> int:
        return len(self._open)

    def take(self) -> int:
        self._last += 1
        self._open[self._last] = _Entry()
        return self._last

    def tell_lane(self, ticket: int, *, is_large: bool) -> None:
        """Once, before its turn; of a ticket that has left it says nothing."""
        if ticket in self._open:
            self._open[ticket].is_large = is_large
            self._wake()

    async def turn(self, ticket: int) -> None:
        """Returns when it is the ticket's turn. Leaving it is the caller's part."""
        if self._closed is not None:
            raise self._closed
        entry = self._open[ticket]
        if entry.is_large is None:
            entry.is_large = False
        entry.waiter = asyncio.get_running_loop().create_future()
        self._wake()
        await entry.waiter

    def leave(self, ticket: int) -> None:
        """Idempotent."""
        if self._open.pop(ticket, None) is not None:
            self._wake()

    def close(self, error: PyvlmError) -> None:
        """Whoever waits gets the error, and whoever comes to wait."""
        self._closed = error
        for entry in self._open.values():
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_exception(error)

    def _wake(self) -> None:
        """The first of each lane, up to a ticket whose lane is not known."""
        met: set[bool] = set()
        for entry in self._open.values():
            if entry.is_large is None or len(met) == 2:
                return
            if entry.is_large not in met:
                met.add(entry.is_large)
                if entry.waiter is not None and not entry.waiter.done():
                    entry.waiter.set_result(None)


@dataclass(slots=True)
class _Entry:
    is_large: bool | None = None  # None: not known yet
    waiter: asyncio.Future[None] | None = None

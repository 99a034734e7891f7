"""A response that is worked out while its client is watched, so that the work ends with it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pyvlm.server.disconnect import ClientGoneError, until_disconnect
from pyvlm.server.limits import body_of
from pyvlm.server.record import RequestRecord, record_of
from pyvlm.server.service import Service

Last: TypeAlias = Response | Message


class Work(Response):
    """An ASGI response. `work` may send, and returns the end of the response or all of it. A drain
    waits for it. What the request held is given back before its client has to read that."""

    def __init__(
        self,
        service: Service,
        work: Callable[[RequestRecord, Send], Coroutine[Any, Any, Last]],
    ) -> None:
        super().__init__()
        self._service = service
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            async with self._service.active():
                last = await until_disconnect(receive, self._work(record, send))
        except ClientGoneError:
            record.is_gone = True
            return
        body_of(scope).release()
        if isinstance(last, Response):
            await last(scope, receive, send)
        else:
            await send(last)

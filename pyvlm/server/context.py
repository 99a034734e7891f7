"""The outermost layer: a record for each request: its id goes back, log and metrics get it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvlm.server.disconnect import ClientGoneError
from pyvlm.server.log import log_request
from pyvlm.server.metrics import Metrics
from pyvlm.server.record import RequestRecord, open_record


class RequestContext:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        record = open_record(scope)
        try:
            await self._app(scope, receive, _noting(record, send))
        except ClientGoneError:
            record.is_gone = True
        finally:
            self._metrics.note(record)
            log_request(record)
        return None


def _noting(record: RequestRecord, send: Send) -> Send:
    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            name = (b"x-request-id", record.request_id.encode("ascii"))
            message["headers"] = [*message.get("headers", ()), name]
        await send(message)

    return noting

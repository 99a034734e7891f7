"""Errors to OpenAI's error body. Texts are ours: of an unexpected exception only a code leaves."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvlm.errors import PyvlmError
from pyvlm.server.disconnect import ClientGoneError
from pyvlm.server.record import record_of

logger = logging.getLogger("pyvlm.server")

RETRY_AFTER_S = 1
_RETRYABLE = ("queue_full", "loading", "draining")


def error_response(error: PyvlmError, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        error.body(), status_code=error.info.status, headers=_headers(error) | (headers or {})
    )


def as_error(error: BaseException) -> PyvlmError:
    """What a client may know of it; the rest goes to the log."""
    if isinstance(error, PyvlmError):
        return error
    logger.error("unexpected exception", exc_info=error)
    return PyvlmError("the server failed on this request", code="engine_failed")


class ErrorBoundary:
    """ASGI middleware: whatever escapes becomes an answer, if none has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_started = False

        async def noting(message: Message) -> None:
            nonlocal has_started
            has_started |= message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientGoneError:
            raise
        except Exception as error:
            record = record_of(scope)
            answered, record.answered = record.answered, None  # it holds frames, and they the scope
            if error is answered:
                return None
            known = as_error(error)
            record.code = known.code
            if not has_started:
                await error_response(known)(scope, receive, send)
        return None


async def on_pyvlm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PyvlmError)
    record_of(request.scope).code = error.code
    return error_response(error)


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Without it starlette answers first, in words of its own. It raises the error again then."""
    known = as_error(error)
    record = record_of(request.scope)
    record.code, record.answered = known.code, error
    return error_response(known)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        known = PyvlmError(f"{request.method[:20]} is not allowed here", code="method_not_allowed")
    else:
        known = PyvlmError("there is nothing at this path", code="not_found")
    record_of(request.scope).code = known.code
    return error_response(known, dict(error.headers or {}))


def _headers(error: PyvlmError) -> dict[str, str]:
    headers: dict[str, Any] = {}
    if error.code in _RETRYABLE:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if error.code == "invalid_api_key":
        headers["www-authenticate"] = "Bearer"
    return headers

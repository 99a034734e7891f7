"""What escapes from the application is answered and logged once, whatever was noted before."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvlm.server.failure import ErrorBoundary, on_unexpected
from pyvlm.server.record import RequestRecord, open_record, record_of


def ask(app: ASGIApp) -> tuple[list[Message], RequestRecord]:
    """What was sent of one request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    record = open_record(scope)
    asyncio.run(ErrorBoundary(app)(scope, receive, send))
    return sent, record


def codes(sent: list[Message]) -> list[str]:
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    return [json.loads(body["body"])["error"]["code"] for body in bodies]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    return [str(record.exc_info[1]) for record in errors if record.exc_info]


async def _fail(request: Request) -> Response:
    del request
    raise RuntimeError("a slip")


def failing() -> Starlette:
    return Starlette(routes=[Route("/", _fail)], exception_handlers={Exception: on_unexpected})


def test_what_was_answered_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    sent, record = ask(failing())
    assert codes(sent) == ["engine_failed"]
    assert logged(caplog) == ["a slip"]
    assert (record.code, record.answered) == ("engine_failed", None)


def test_a_slip_after_a_code_was_noted(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        record_of(scope).code = "deadline"
        raise RuntimeError("a slip")

    sent, record = ask(app)
    assert [message["status"] for message in sent if "status" in message] == [500]
    assert codes(sent) == ["engine_failed"]
    assert logged(caplog) == ["a slip"]
    assert record.code == "engine_failed"


def test_a_slip_after_another_was_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Logged; the answer is out."""
    inner = failing()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await inner(scope, receive, send)
        finally:
            raise KeyError("on the way out")

    sent, _ = ask(app)
    assert codes(sent) == ["engine_failed"]
    assert logged(caplog) == ["a slip", "'on the way out'"]

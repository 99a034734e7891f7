"""The HTTP/1.1 protocol of uvicorn with bounds that it lacks: connections, time for headers, and
time in which a client reads nothing of what was written for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyvlm.errors import PyvlmError

_LOOKS = 4  # within the time that a client may leave what was written


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int
    header_timeout_s: float
    write_timeout_s: float


class Unread:
    """What lies in a transport's buffer while nothing is written, and since when it is no less."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._since = 0.0

    def reset(self) -> None:
        self._num_bytes = 0

    def seconds(self, num_bytes: int, now: float) -> float:
        if not 0 < self._num_bytes <= num_bytes:
            self._num_bytes, self._since = num_bytes, now
        return now - self._since


def protocol_class(limits: ConnectionLimits) -> type[H11Protocol]:
    """uvicorn makes the protocol objects itself, from a class."""

    class LimitedProtocol(H11Protocol):
        """Between two requests, and before the first, a timer runs until the headers are whole.

        Another one looks for a client that does not read. Closing would wait for such a client
        without end, in a place of max_connections, so its connection is aborted.
        """

        _timer: asyncio.TimerHandle | None = None
        _watch: asyncio.TimerHandle | None = None
        _unread: Unread

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._unread = Unread()
            self._look_later()
            if len(self.connections) > limits.max_connections:
                error = PyvlmError(
                    f"max_connections is {limits.max_connections}", code="queue_full"
                )
                transport.write(plain_response(error, {"retry-after": "1"}))
                transport.close()
            else:
                self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            if self._watch is not None:
                self._watch.cancel()
            super().connection_lost(exc)

        def resume_writing(self) -> None:
            self._unread.reset()
            super().resume_writing()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self._is_busy():
                self._stop_timer()

        def on_response_complete(self) -> None:
            self._unread.reset()
            self._start_timer()
            super().on_response_complete()
            if self._is_busy():  # the next request was here already
                self._stop_timer()

        def send_400_response(self, msg: str) -> None:
            """What is no HTTP gets our error body too."""
            del msg
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                error = PyvlmError("this is not a valid HTTP/1.1 request", code="invalid_parameter")
                self.transport.write(plain_response(error))
            self.transport.close()

        def _is_busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start_timer(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(limits.header_timeout_s, self._give_up)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            if self._is_busy():
                return
            if self.transport.get_write_buffer_size():  # still reading the answer before
                self._start_timer()
            else:
                self.transport.abort()

        def _look_later(self) -> None:
            delay = limits.write_timeout_s / _LOOKS
            self._watch = self.loop.call_later(delay, self._look)

        def _look(self) -> None:
            """Nothing is written while writing is paused, the connection closes or nothing is
            asked; only then does a buffer that does not shrink tell of the client."""
            is_quiet = self.flow.write_paused or self.transport.is_closing() or not self._is_busy()
            size = self.transport.get_write_buffer_size()
            if not is_quiet:
                self._unread.reset()
            elif size and self._unread.seconds(size, self.loop.time()) >= limits.write_timeout_s:
                self.transport.abort()
                return
            self._look_later()

    return LimitedProtocol


def plain_response(error: PyvlmError, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole response on the wire, after which the connection ends."""
    response: Any = JSONResponse(
        error.body(), error.info.status, {"connection": "close", **(headers or {})}
    )
    lines = [b"%s: %s" % (name, value) for name, value in response.raw_headers]
    phrase = HTTPStatus(error.info.status).phrase.encode("ascii")
    head = b"HTTP/1.1 %d %s" % (error.info.status, phrase)
    return b"\r\n".join([head, *lines, b"", bytes(response.body)])

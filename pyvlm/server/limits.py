"""The body, read before anything parses it: media type, size, silence, bytes in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvlm.errors import PyvlmError
from pyvlm.media.ledger import ByteLedger
from pyvlm.server.disconnect import ClientGoneError
from pyvlm.server.record import record_of

_KEY = "pyvlm.body"


class Body:
    """What a request holds: its bytes, then the pictures that they named, each under a lease.

    Everything is given back at the end of the request at the latest.
    """

    def __init__(self, ledger: ByteLedger, owner: str) -> None:
        self._data = bytearray()
        self._lease = ledger.lease(0, f"body of {owner}")
        self.images = ledger.lease(0, f"images of {owner}", beside=self._lease)

    def append(self, chunk: bytes) -> None:
        self._lease.grow(len(chunk))
        self._data += chunk

    def __len__(self) -> int:
        return len(self._data)

    def take(self) -> bytearray:
        """The bytes, once; what is parsed of them stays under the lease."""
        data, self._data = self._data, bytearray()
        return data

    def forget_text(self) -> None:
        """Nothing that was parsed is kept any more but the pictures."""
        self._lease.release()

    def release(self) -> None:
        self._data = bytearray()
        self._lease.release()
        self.images.release()


def body_of(scope: Scope) -> Body:
    body: Body = scope[_KEY]
    return body


class BodyReader:
    """ASGI middleware for the paths that take a body; then `receive` only tells of a disconnect.

    A body that is sent elsewhere is not read: there is no such path or method.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        paths: Collection[str],
        ledger: ByteLedger,
        max_bytes: int,
        silence_s: float,
        total_s: float,
    ) -> None:
        """silence_s: longest wait for the next part of a body; total_s: for all of it."""
        self._app = app
        self._paths = frozenset(paths)
        self._ledger = ledger
        self._max_bytes = max_bytes
        self._silence_s = silence_s
        self._total_s = total_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_body = scope["type"] == "http" and scope["method"] == "POST"
        if not has_body or scope["path"] not in self._paths:
            return await self._app(scope, receive, send)
        self._check_headers(scope)
        body = Body(self._ledger, record_of(scope).request_id)
        try:
            await self._read(receive, body)
            scope[_KEY] = body
            return await self._app(scope, receive, send)
        finally:
            body.release()

    def _check_headers(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large(f"{int(declared)} bytes are declared")
        kind = bytes(headers.get(b"content-type", b"")).partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise PyvlmError(
                "the body must be JSON, with the content type application/json",
                code="unsupported_media_type",
            )
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise PyvlmError(
                "compressed bodies are not taken; send it without content-encoding",
                code="unsupported_media_type",
            )

    async def _read(self, receive: Receive, body: Body) -> None:
        end = asyncio.get_running_loop().time() + self._total_s
        more = True
        while more:
            message = await self._next(receive, body, end)
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            if len(body) + len(chunk) > self._max_bytes:
                raise self._too_large(f"at least {len(body) + len(chunk)} bytes came")
            body.append(chunk)
            more = message.get("more_body", False)

    async def _next(self, receive: Receive, body: Body, end: float) -> Message:
        silence_end = asyncio.get_running_loop().time() + self._silence_s
        try:
            async with asyncio.timeout_at(min(end, silence_end)):
                return await receive()
        except TimeoutError:
            what = (
                f"the body is not complete after {self._total_s:g} s"
                if end < silence_end
                else f"nothing of the body came for {self._silence_s:g} s"
            )
            raise PyvlmError(f"{what}; {len(body)} bytes had", code="request_timeout") from None

    def _too_large(self, seen: str) -> PyvlmError:
        return PyvlmError(f"max_body_bytes is {self._max_bytes}, {seen}", code="body_too_large")

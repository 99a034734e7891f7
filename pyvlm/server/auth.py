"""API keys: every route but those that are open by configuration wants one of them."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from pyvlm.errors import PyvlmError
from pyvlm.server.failure import error_response
from pyvlm.server.record import record_of


class ApiKeyGuard:
    """ASGI middleware; refuses before anything of the body is read."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], open_paths: Collection[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_welcome(scope):
            return await self._app(scope, receive, send)
        error = PyvlmError(
            "an API key is needed, as `Authorization: Bearer KEY`", code="invalid_api_key"
        )
        record_of(scope).code = error.code
        return await error_response(error)(scope, receive, send)

    def _is_welcome(self, scope: Scope) -> bool:
        if not self._digests or scope["path"] in self._open_paths:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = bytes(given[0]).partition(b" ")
        return scheme.lower() == b"bearer" and self._knows(key.strip())

    def _knows(self, key: bytes) -> bool:
        """Takes the same time whichever key matches, and whether one does."""
        digest = sha256(key).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found

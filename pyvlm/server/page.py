"""The chat page at `/`: public static files of the package under a strict content security policy.

The files are read once, when the router is made, so a request names an entry of a table and never
a path. They hold no secret: the page asks for the API key and sends it with its own calls.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter, Request, Response

__all__ = ["page_router"]

_INDEX = "index.html"

# blob: is for the previews of pictures that the user picked. Trusted types turn every attempt to
# make markup from a string into an error, so a model's output can only ever become text.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str
    etag: str

    async def response(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def load_page() -> dict[str, PageFile]:
    """Every file of the page by its path on the server."""
    page: dict[str, PageFile] = {}
    for entry in files("pyvlm.server").joinpath("static").iterdir():
        media_type = MEDIA_TYPES.get(PurePath(entry.name).suffix)
        if media_type is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            path = "/" if entry.name == _INDEX else f"/static/{entry.name}"
            page[path] = PageFile(body, media_type, etag)
    return page


def page_router() -> APIRouter:
    """One route for each file; to be included unless the page is off (`--no-ui`)."""
    router = APIRouter(include_in_schema=False)
    for path, file in load_page().items():
        router.add_route(path, file.response, methods=["GET", "HEAD"], include_in_schema=False)
    return router

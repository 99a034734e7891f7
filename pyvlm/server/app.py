"""The ASGI application.

From the outside in: record, id and log line; CORS; whatever escapes becomes an answer; API key;
body, read whole under its limits; routes.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvlm.errors import PyvlmError
from pyvlm.server.auth import ApiKeyGuard
from pyvlm.server.config import ServerConfig
from pyvlm.server.context import RequestContext
from pyvlm.server.failure import (
    ErrorBoundary,
    error_response,
    on_http_exception,
    on_pyvlm_error,
    on_unexpected,
)
from pyvlm.server.limits import BodyReader
from pyvlm.server.openapi import describe
from pyvlm.server.page import load_page, page_router
from pyvlm.server.routes.generation import generation_router
from pyvlm.server.routes.health import health_router
from pyvlm.server.routes.models import models_router
from pyvlm.server.routes.tokens import tokens_router
from pyvlm.server.service import Service


def create_app(service: Service) -> ASGIApp:
    """Serves whatever the service holds; the caller opens and closes the engine."""
    config = service.config
    routes = _routes(service)
    app: ASGIApp = BodyReader(
        routes,
        paths=_body_paths(routes),
        ledger=service.ledger,
        max_bytes=config.max_body_bytes,
        silence_s=config.body_timeout_s,
        total_s=min(config.body_total_timeout_s, config.request_timeout_s),
    )
    app = ApiKeyGuard(app, config.api_keys, _open_paths(config))
    app = ErrorBoundary(app)
    if config.allowed_origins:
        app = _Cors(
            app,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send many of their own, such as x-stainless-os
            expose_headers=["x-request-id", "retry-after"],
        )
    return RequestContext(app, service.metrics)


class _Cors(CORSMiddleware):
    """Refuses in our error body."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        error = PyvlmError(
            "pages of this origin may not call, or not with this method", code="invalid_parameter"
        )
        vary = response.headers.get("vary", "Origin")
        return error_response(error, {"vary": vary})


def _body_paths(app: FastAPI) -> set[str]:
    return {path for path, methods in app.openapi()["paths"].items() if "post" in methods}


def _open_paths(config: ServerConfig) -> set[str]:
    """Paths that want no key: they hold no secret and tell nothing of what is served."""
    paths = {"/health", "/health/live"}
    if config.has_page:
        paths |= set(load_page())
    return paths if config.metrics_need_key else paths | {"/metrics"}


def _routes(service: Service) -> FastAPI:
    app = FastAPI(title="pyvlm", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(PyvlmError, on_pyvlm_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_unexpected)
    app.include_router(health_router(service))
    app.include_router(models_router(service))
    app.include_router(generation_router(service))
    app.include_router(tokens_router(service))
    if service.config.has_page:
        app.include_router(page_router())
    describe(app)
    return app

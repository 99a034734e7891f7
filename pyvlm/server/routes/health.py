"""/health (readiness), /health/live, /metrics, /version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response

from pyvlm import __version__
from pyvlm.server.metrics import CONTENT_TYPE
from pyvlm.server.openapi import ERROR_RESPONSES
from pyvlm.server.service import Service


def health_router(service: Service) -> APIRouter:
    router = APIRouter(responses=ERROR_RESPONSES)

    def read(path: str, endpoint: Callable[[], Awaitable[object]]) -> None:
        router.add_api_route(path, endpoint, methods=["GET"])
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

    async def health() -> dict[str, str]:
        service.engine()  # raises loading, draining or engine_dead, all of them 503
        return {"status": "ok"}

    async def live() -> dict[str, str]:
        return {"status": "ok"}

    async def metrics() -> Response:
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)

    async def version() -> dict[str, str]:
        return {"version": __version__}

    read("/health", health)
    read("/health/live", live)
    read("/metrics", metrics)
    read("/version", version)
    return router

"""/v1/models: what is served, what it can do, and where its limits are, for machines to read."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.generation import MAX_STOPS
from pyvlm.media.policy import MediaPolicy
from pyvlm.sampling import MAX_LOGPROBS
from pyvlm.server.openapi import ERROR_RESPONSES
from pyvlm.server.parameters import MAX_BIASES, MAX_CHOICES
from pyvlm.server.schema import NEUTRAL_CHAT, NEUTRAL_COMPLETIONS
from pyvlm.server.service import Service
from pyvlm.server.wire import neutral_report


def models_router(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/models", responses=ERROR_RESPONSES)
    created = int(time.time())

    @router.get("")
    async def list_models() -> dict[str, Any]:
        engine = service.engine()
        names = service.config.model_names
        return {
            "object": "list",
            "data": [_entry(name, created, engine, service) for name in names],
        }

    @router.get("/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        engine = service.engine()
        if model not in service.config.model_names:
            raise PyvlmError(
                f"the model {model[:80]!r} is not served here",
                code="model_not_found",
                param="model",
            )
        return _entry(model, created, engine, service)

    return router


def _entry(name: str, created: int, engine: AsyncEngine, service: Service) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "pyvlm",
        "max_model_len": engine.capacity,
        "max_num_seqs": engine.num_slots,
        "capabilities": engine.capabilities.report(),
        "limits": _limits(service.policy, engine, service),
        "unsupported_parameters": {
            "chat": neutral_report(NEUTRAL_CHAT),
            "completions": neutral_report(NEUTRAL_COMPLETIONS),
        },
    }


def _limits(policy: MediaPolicy, engine: AsyncEngine, service: Service) -> dict[str, Any]:
    limits: dict[str, Any] = {
        "max_body_bytes": service.config.max_body_bytes,
        "max_choices": MAX_CHOICES,
        "max_logprobs": MAX_LOGPROBS,
        "max_stops": MAX_STOPS,
        "max_logit_biases": MAX_BIASES,
        "max_num_queued_reqs": engine.options.max_queued,
        "request_timeout_s": service.config.request_timeout_s,
    }
    if engine.capabilities.supports("image"):
        limits |= {
            "max_images": policy.max_images,
            "max_image_bytes": policy.max_image_bytes,
            "max_request_image_bytes": policy.max_request_image_bytes,
            "max_image_pixels": policy.max_image_pixels,
            "max_image_side": policy.max_image_side,
            "max_image_frames": policy.max_image_frames,
        }
    return limits

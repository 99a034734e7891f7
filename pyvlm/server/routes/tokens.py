"""/tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.frontend import Frontend
from pyvlm.server.limits import body_of
from pyvlm.server.messages import conversation, image_urls
from pyvlm.server.openapi import json_body
from pyvlm.server.schema import DetokenizeRequest, TokenizeRequest
from pyvlm.server.service import Service
from pyvlm.server.wire import parse


def tokens_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", **json_body(TokenizeRequest))
    async def tokenize(request: Request) -> dict[str, Any]:
        engine = service.engine()
        asked = parse(TokenizeRequest, body_of(request.scope).take())
        service.config.check_model(asked.model)
        ids = await asyncio.to_thread(_ids, engine, asked)
        found: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": engine.capacity,
            "tokens": ids,
        }
        if asked.return_token_strs:
            found["token_strs"] = [engine.frontend.tokenizer.token(i) for i in ids]
        return found

    @router.post("/detokenize", **json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> dict[str, Any]:
        engine = service.engine()
        asked = parse(DetokenizeRequest, body_of(request.scope).take())
        service.config.check_model(asked.model)
        _check_ids(asked.tokens, engine.frontend.vocab_size)
        text = await asyncio.to_thread(engine.frontend.tokenizer.decode, asked.tokens)
        return {"prompt": text}

    return router


def _ids(engine: AsyncEngine, asked: TokenizeRequest) -> list[int]:
    """Logical ids, as a generation would use them: one placeholder for a picture."""
    frontend: Frontend = engine.frontend
    if (asked.prompt is None) == (asked.messages is None):
        raise PyvlmError(
            "either prompt or messages is needed", code="invalid_parameter", param="prompt"
        )
    if asked.messages is not None:
        image_urls(asked.messages, engine.capabilities)
        return frontend.chat_ids(conversation(asked.messages))
    assert asked.prompt is not None
    if asked.add_special_tokens is False:
        return frontend.tokenizer.encode_untrusted(asked.prompt)
    return frontend.text_ids(asked.prompt, allow_special=False)


def _check_ids(ids: list[int], vocab_size: int) -> None:
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise PyvlmError(
                f"tokens[{index}] must be an integer from 0 to {vocab_size - 1}",
                code="invalid_parameter",
                param=f"tokens[{index}]",
            )

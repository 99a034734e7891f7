"""/tokenize and /detokenize. Their work is done in a thread, one request after the other: what the
tokenizer needs for a long text is needed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse
from starlette.types import Send

from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.frontend import Frontend
from pyvlm.server.limits import body_of
from pyvlm.server.messages import conversation, image_urls
from pyvlm.server.openapi import json_body
from pyvlm.server.record import RequestRecord
from pyvlm.server.schema import ChatMessage, DetokenizeRequest, TextPart, TokenizeRequest
from pyvlm.server.service import Service
from pyvlm.server.wire import parse
from pyvlm.server.work import Work

MAX_TEXT_BYTES = 256 << 10  # of UTF-8


def tokens_router(service: Service) -> APIRouter:
    router = APIRouter()
    thread = ThreadPoolExecutor(1, "pyvlm-tokenize")

    async def in_turn(work: Callable[[], JSONResponse]) -> JSONResponse:
        """What has not begun when its client leaves never does."""
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    @router.post("/tokenize", **json_body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        engine = service.engine()

        async def work(record: RequestRecord, send: Send) -> JSONResponse:
            del record, send
            asked = await parse(TokenizeRequest, body_of(request.scope).take())
            service.config.check_model(asked.model)
            return await in_turn(lambda: _tokenized(engine, asked))

        return Work(service, work)

    @router.post("/detokenize", **json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        engine = service.engine()

        async def work(record: RequestRecord, send: Send) -> JSONResponse:
            del record, send
            asked = await parse(DetokenizeRequest, body_of(request.scope).take())
            service.config.check_model(asked.model)
            return await in_turn(lambda: _detokenized(engine.frontend, asked))

        return Work(service, work)

    return router


def _tokenized(engine: AsyncEngine, asked: TokenizeRequest) -> JSONResponse:
    ids = _ids(engine, asked)
    found: dict[str, object] = {
        "count": len(ids),
        "max_model_len": engine.capacity,
        "tokens": ids,
    }
    if asked.return_token_strs:
        found["token_strs"] = [engine.frontend.tokenizer.token(i) for i in ids]
    return JSONResponse(found)


def _ids(engine: AsyncEngine, asked: TokenizeRequest) -> list[int]:
    """Logical ids, as a generation would use them: one placeholder for a picture."""
    frontend: Frontend = engine.frontend
    if (asked.prompt is None) == (asked.messages is None):
        raise PyvlmError(
            "either prompt or messages is needed", code="invalid_parameter", param="prompt"
        )
    if asked.messages is not None:
        if asked.add_special_tokens:
            raise PyvlmError(
                "add_special_tokens is not supported with messages: the template adds them",
                code="unsupported_parameter",
                param="add_special_tokens",
            )
        image_urls(asked.messages, engine.capabilities)
        messages = conversation(asked.messages)
        _check_length("messages", sum(map(_num_bytes, asked.messages)))
        return frontend.chat_ids(messages)
    assert asked.prompt is not None
    _check_length("prompt", _size(asked.prompt))
    if asked.add_special_tokens is False:
        return frontend.tokenizer.encode_untrusted(asked.prompt)
    return frontend.text_ids(asked.prompt, allow_special=False)


def _num_bytes(message: ChatMessage) -> int:
    if isinstance(message.content, str):
        return _size(message.content)
    return sum(_size(part.text) for part in message.content if isinstance(part, TextPart))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _check_length(field: str, num_bytes: int) -> None:
    """Ids as Python objects are made under the interpreter's lock: for a long text nothing else
    goes on meanwhile, and it takes more than a hundred times the text in memory."""
    if num_bytes > MAX_TEXT_BYTES:
        raise PyvlmError(
            f"{field} may have {MAX_TEXT_BYTES} bytes of UTF-8 to be tokenised, not {num_bytes}",
            code="context_overflow",
            param=field,
        )


def _detokenized(frontend: Frontend, asked: DetokenizeRequest) -> JSONResponse:
    """Without special tokens, as answers are, unless they are asked for."""
    for index, token_id in enumerate(asked.tokens):
        if not 0 <= token_id < frontend.vocab_size:
            raise PyvlmError(
                f"tokens[{index}] must be an integer from 0 to {frontend.vocab_size - 1}",
                code="invalid_parameter",
                param=f"tokens[{index}]",
            )
    skip = asked.skip_special_tokens is not False
    text = frontend.tokenizer.decode(asked.tokens, skip_special_tokens=skip)
    return JSONResponse({"prompt": text})

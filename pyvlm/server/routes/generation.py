"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from fastapi import APIRouter, Request, Response

from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.preparation import deadline_error
from pyvlm.request import GenerationRequest, Prompt
from pyvlm.sampling import SamplingParams
from pyvlm.server.answer import Answer, Job
from pyvlm.server.limits import Body, body_of
from pyvlm.server.messages import conversation, image_urls
from pyvlm.server.openapi import json_body
from pyvlm.server.parameters import (
    MAX_CHOICES,
    chat_sampling,
    check_stream_options,
    completion_sampling,
    for_choice,
    num_choices,
)
from pyvlm.server.record import RequestRecord, record_of
from pyvlm.server.schema import ChatRequest, CompletionRequest, GenerationFields
from pyvlm.server.service import Service
from pyvlm.server.shapes import ChatShape, CompletionShape, Shape
from pyvlm.server.wire import parse


def generation_router(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions", **json_body(ChatRequest))
    async def chat(request: Request) -> Response:
        engine, record = service.engine(), _generation(request)

        async def prepare() -> Job:
            return await _chat_job(service, engine, request, record)

        return Answer(service, engine, prepare)

    @router.post("/completions", **json_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        engine, record = service.engine(), _generation(request)

        async def prepare() -> Job:
            return await _completion_job(service, engine, request, record)

        return Answer(service, engine, prepare)

    return router


async def _chat_job(
    service: Service, engine: AsyncEngine, request: Request, record: RequestRecord
) -> Job:
    body = body_of(request.scope)
    asked = await parse(ChatRequest, body.take())
    service.config.check_model(asked.model)
    check_stream_options(asked)
    sampling = chat_sampling(asked, engine.frontend.vocab_size)
    count = num_choices(asked)
    messages = conversation(asked.messages)
    urls = image_urls(asked.messages, engine.capabilities)
    images = await _fetched(service, urls, body, record) if urls else []
    if urls:
        body.forget_text()
    shape = ChatShape(record.request_id, service.config.model_names[0])
    return _job(service, engine, asked, record, [messages], images, sampling, count, shape)


async def _fetched(
    service: Service, urls: Sequence[str], body: Body, record: RequestRecord
) -> list[bytes]:
    """Under a lease that grows by what comes. The body, data URLs and all, is done with then."""
    start = record.seconds
    record.num_images = len(urls)
    try:
        async with asyncio.timeout(service.config.request_timeout_s - start):
            images = await service.fetcher.fetch_all(urls, body.images)
    except TimeoutError:
        raise deadline_error() from None
    record.image_bytes = sum(len(image) for image in images)
    record.fetch_s = record.seconds - start
    return images


async def _completion_job(
    service: Service, engine: AsyncEngine, request: Request, record: RequestRecord
) -> Job:
    asked = await parse(CompletionRequest, body_of(request.scope).take())
    service.config.check_model(asked.model)
    check_stream_options(asked)
    sampling = completion_sampling(asked, engine.frontend.vocab_size)
    prompts = _prompts(asked)
    count = num_choices(asked)
    if len(prompts) * count > MAX_CHOICES:
        raise PyvlmError(
            f"at most {MAX_CHOICES} choices are made for a request, not {len(prompts)} prompts "
            f"times n = {count}",
            code="invalid_parameter",
            param="prompt",
        )
    shape = CompletionShape(record.request_id, service.config.model_names[0])
    return _job(service, engine, asked, record, prompts, (), sampling, count, shape)


def _job(
    service: Service,
    engine: AsyncEngine,
    asked: GenerationFields,
    record: RequestRecord,
    prompts: Sequence[Prompt],
    images: Sequence[bytes],
    sampling: SamplingParams,
    count: int,
    shape: Shape,
) -> Job:
    record.until_engine_s = record.seconds
    left = service.config.request_timeout_s - record.seconds
    if left <= 0:
        raise deadline_error()
    shared = tuple(images)  # one for all choices, which so share the work
    requests = [
        GenerationRequest(
            prompt, shared, for_choice(sampling, index), deadline_s=left, allow_special=False
        )
        for prompt in prompts
        for index in range(count)
    ]
    _check_room(engine, len(requests))
    options = asked.stream_options
    return Job(
        requests=requests,
        choices_per_prompt=count,
        shape=shape,
        is_stream=bool(asked.stream),
        include_usage=bool(options and options.include_usage),
    )


def _check_room(engine: AsyncEngine, num_choices: int) -> None:
    """What could not even be queued by an idle server is not worth another try."""
    room = engine.num_slots + engine.options.max_queued
    if num_choices > room:
        raise PyvlmError(
            f"{num_choices} choices are asked for; {room} generations may be unfinished here",
            code="invalid_parameter",
            param="n",
        )


def _prompts(asked: CompletionRequest) -> list[Prompt]:
    """Text is never trusted: what it spells stays text."""
    if isinstance(asked.prompt, str):
        return [asked.prompt]
    if asked.prompt and isinstance(asked.prompt[0], int):
        return [asked.prompt]
    if not asked.prompt:
        raise PyvlmError("the prompt is empty", code="empty_prompt", param="prompt")
    return [cast(Prompt, prompt) for prompt in asked.prompt]


def _generation(request: Request) -> RequestRecord:
    record = record_of(request.scope)
    record.is_generation = True
    return record

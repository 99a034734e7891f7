"""From a prepared request to its response: whole, or streamed as server-sent events.

Status. Nothing is sent before the first delta, so errors up to there have their own status. Later
ones come as an event with an error body, after which the stream ends without `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Message, Send

from pyvlm.engine import AsyncEngine
from pyvlm.outputs import Delta, TokenLogprob, Usage
from pyvlm.request import GenerationRequest
from pyvlm.server.choices import run_choices
from pyvlm.server.disconnect import ClientGoneError
from pyvlm.server.failure import as_error
from pyvlm.server.record import RequestRecord
from pyvlm.server.service import Service
from pyvlm.server.shapes import Json, Shape, usage_object
from pyvlm.server.work import Work

_Events = AsyncGenerator[tuple[int, Delta], None]
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate, n choices of each prompt in turn, and how to tell it."""

    requests: Sequence[GenerationRequest]
    choices_per_prompt: int
    shape: Shape
    is_stream: bool
    include_usage: bool


class Answer(Work):
    """`prepare` may fetch and parse, and is cancelled with the client too."""

    def __init__(
        self,
        service: Service,
        engine: AsyncEngine,
        prepare: Callable[[], Coroutine[Any, Any, Job]],
    ) -> None:
        super().__init__(service, self._run)
        self._engine = engine
        self._prepare = prepare

    async def _run(self, record: RequestRecord, send: Send) -> JSONResponse | Message:
        """Everything but the end of the response, which is returned."""
        job = await self._prepare()
        record.is_stream, record.num_choices = job.is_stream, len(job.requests)
        async with aclosing(run_choices(self._engine, job.requests)) as events:
            noted = _noting(events, record)
            if not job.is_stream:
                whole = await _whole(job, noted, record)
                return JSONResponse(whole, headers={"server-timing": record.server_timing()})
            first = await anext(noted)
            await _Stream(job, record, send).run(first, noted)
            return {"type": "http.response.body", "body": b"", "more_body": False}


class _Stream:
    def __init__(self, job: Job, record: RequestRecord, send: Send) -> None:
        self._job = job
        self._record = record
        self._send = send

    async def run(self, first: tuple[int, Delta], rest: _Events) -> None:
        await self._write({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        for index in range(len(self._job.requests)):
            if (opening := self._job.shape.opening(index)) is not None:
                await self._chunk([opening])
        await self._delta(*first)
        try:
            async for index, delta in rest:
                await self._delta(index, delta)
        except (ClientGoneError, asyncio.CancelledError):
            raise
        except Exception as error:
            known = as_error(error)
            self._record.code = known.code
            await self._event(known.body())
            return
        await self._data(f": server-timing {self._record.server_timing()}\n\n".encode())
        if self._job.include_usage:
            await self._chunk([], usage=_usage(self._job, self._record))
        await self._data(_DONE)

    async def _delta(self, index: int, delta: Delta) -> None:
        shape = self._job.shape
        if delta.text or delta.logprobs:
            await self._chunk([shape.piece(index, delta.text, delta.logprobs)])
        if delta.finish_reason is not None:
            await self._chunk([shape.closing(index, delta.finish_reason)])

    async def _chunk(self, choices: Sequence[Json], usage: Json | None = None) -> None:
        chunk = self._job.shape.chunk(choices)
        if self._job.include_usage:
            chunk["usage"] = usage
        await self._event(chunk)

    async def _event(self, data: Json) -> None:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        await self._data(b"data: " + text.encode() + b"\n\n")

    async def _data(self, data: bytes) -> None:
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def _write(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            raise ClientGoneError from None


async def _whole(job: Job, events: _Events, record: RequestRecord) -> Json:
    count = len(job.requests)
    texts: list[list[str]] = [[] for _ in range(count)]
    logprobs: list[list[TokenLogprob] | None] = [None] * count
    reasons: list[str | None] = [None] * count
    async for index, delta in events:
        texts[index].append(delta.text)
        if delta.logprobs is not None:
            logprobs[index] = [*(logprobs[index] or ()), *delta.logprobs]
        reasons[index] = delta.finish_reason or reasons[index]
    choices = [
        job.shape.choice(i, "".join(texts[i]), logprobs[i], reasons[i]) for i in range(count)
    ]
    return job.shape.whole(choices, _usage(job, record))


def _usage(job: Job, record: RequestRecord) -> Json:
    usages: dict[int, Usage] = {end.index: end.usage for end in record.ends}
    prompts = [usages[i] for i in range(0, len(job.requests), job.choices_per_prompt)]
    return usage_object(prompts, usages.values())


async def _noting(events: _Events, record: RequestRecord) -> _Events:
    latest: dict[int, float] = {}
    async for index, delta in events:
        now = time.monotonic()
        if index in latest and delta.token_ids:
            record.gaps.append(now - latest[index])
        latest[index] = now
        record.note_end(index, delta)
        yield index, delta

"""A server in the test's own process that speaks as much of the OpenAI API as a client sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

WAIT_S = 30


@dataclass(frozen=True)
class Exchange:
    """One request that is to be answered."""

    server: Server
    request: web.Request
    body: dict[str, Any]


Answer = Callable[[Exchange], Awaitable[web.StreamResponse]]


def chunk(text: str | None = None, **fields: Any) -> bytes:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": None} | fields
    return event({"choices": [choice]})


def event(body: object) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


async def stream(exchange: Exchange, *pieces: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(exchange.request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0.002)
    return response


async def answer_well(exchange: Exchange) -> web.StreamResponse:
    """max_tokens pieces, then usage."""
    count = exchange.body["max_tokens"]
    usage = {"prompt_tokens": 11, "completion_tokens": count, "total_tokens": 11 + count}
    pieces = [chunk(), b": comment\n\n", *(chunk("x") for _ in range(count))]
    pieces += [
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
        event({"choices": [], "usage": usage}),
        b"data: [DONE]\n\n",
    ]
    return await stream(exchange, *pieces)


class Server:
    """`answer` may be replaced. Bodies are kept in order of arrival."""

    def __init__(self) -> None:
        self.answer: Answer = answer_well
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.num_open = 0
        self.max_open = 0
        self.arrived = asyncio.Condition()
        self.port = 0

    async def wait_for_requests(self, count: int) -> None:
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(lambda: len(self.bodies) >= count), WAIT_S)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        async with self.arrived:
            self.bodies.append(body)
            self.headers.append(dict(request.headers))
            self.paths.append(request.path)
            self.num_open += 1
            self.max_open = max(self.max_open, self.num_open)
            self.arrived.notify_all()
        try:
            return await self.answer(Exchange(self, request, body))
        finally:
            self.num_open -= 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def _models(request: web.Request) -> web.Response:
    del request
    return web.json_response({"object": "list", "data": [{"id": "the-model"}]})


async def start(server: Server) -> web.AppRunner:
    app = web.Application(client_max_size=1 << 28)
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/chat/completions", server.complete)
    app.router.add_post("/v1/completions", server.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    return runner

"""A server in this process, on sockets: one engine for all tests, an event loop in a thread."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import pytest

pytest.importorskip("pyvlm._core")
from pyvlm.engine import AsyncEngine, EngineOptions
from pyvlm.media.fetch import ImageFetcher
from pyvlm.media.policy import MediaPolicy
from pyvlm.server.config import ServerConfig
from pyvlm.server.run import bind, make_server
from pyvlm.server.service import Service

T = TypeVar("T")
HANG_S = 120


class Running:
    """A server and its service. `client` is for its own routes."""

    def __init__(self, url: str, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.service = service
        self._loop = loop
        self.client = httpx.Client(base_url=url, timeout=HANG_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_S)

    def counts(self) -> tuple[int, ...]:
        """Everything that a finished request must have given back."""

        async def look() -> tuple[int, ...]:
            engine = self.service.loaded_engine
            assert engine is not None
            now = engine.stats()
            pool = now.pool
            of_pool = () if pool is None else (pool.num_queued, pool.num_running, pool.leased_bytes)
            return (
                self.service.num_active,
                self.service.ledger.used_bytes,
                now.num_open,
                now.num_preparing,
                now.num_in_order,
                now.queued_bytes,
                now.native.num_waiting,
                now.native.num_running,
                now.native.num_leases,
                *of_pool,
            )

        return self.run(look())

    def becomes_idle(self, timeout_s: float = 30) -> bool:
        return eventually(lambda: not any(self.counts()), timeout_s)

    def chat(self, content: Any = "What is this?", **fields: Any) -> httpx.Response:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            **fields,
        }
        return self.client.post("/v1/chat/completions", json=body)

    def completion(self, prompt: Any = "What is this?", **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, **fields}
        return self.client.post("/v1/completions", json=body)

    def say(self, content: Any = "What is this?", **fields: Any) -> str:
        response = self.chat(content, **fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]


def eventually(check: Callable[[], bool], timeout_s: float = 30) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return check()


class Host:
    """An event loop in a thread, with one engine and any number of servers."""

    def __init__(
        self, options: EngineOptions | None = None, *, engine: AsyncEngine | None = None
    ) -> None:
        """`engine`: one that was not started yet, instead of the embedded model's."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[tuple[Any, Any, Running]] = []
        self.engine = engine or AsyncEngine.load("tiny", options=options)
        self.run(self.engine.start())

    def serve(
        self,
        policy: MediaPolicy | None = None,
        *,
        send_buffer: int | None = None,
        fetcher: ImageFetcher | None = None,
        **config: Any,
    ) -> Running:
        """send_buffer: of the kernel, for each connection."""
        settings = ServerConfig(**{"model_names": ("tiny",), **config})
        listener = bind("127.0.0.1", 0, None)
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        service = self.run(_made(settings, policy or MediaPolicy(), fetcher))
        server = make_server(service)

        async def start() -> asyncio.Task[None]:
            service.open(self.engine)
            return asyncio.create_task(server.serve([listener]))

        task = self.run(start())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = Running(url, service, self.loop)
        self._servers.append((server, task, running))
        assert eventually(lambda: server.started)
        return running

    def close(self) -> None:
        async def stop() -> None:
            for server, task, running in self._servers:
                running.client.close()
                server.should_exit = True
                await task
                await running.service.__aexit__(None, None, None)
            await self.engine.close()

        self.run(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_S)
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_S)


async def _made(config: ServerConfig, policy: MediaPolicy, fetcher: ImageFetcher | None) -> Service:
    return Service(config, policy, fetcher)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if "PYVLM_CACHE_DIR" in os.environ:  # one that is kept between runs
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYVLM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def host(cache: None) -> Iterator[Host]:
    del cache
    host = Host(EngineOptions(num_preprocess_workers=1, check_invariants=True))
    yield host
    host.close()


@pytest.fixture(scope="session")
def server(host: Host) -> Running:
    return host.serve()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that used the shared server, all that requests hold has come back."""
    yield
    if "server" in request.fixturenames:
        assert request.getfixturevalue("server").becomes_idle()

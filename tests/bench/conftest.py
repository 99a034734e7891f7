"""A server for the load generator to load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from load_target import WAIT_S, Server, start


@pytest.fixture
def server() -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = Server()
    runner = asyncio.run_coroutine_threadsafe(start(server), loop).result(WAIT_S)
    yield server
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(WAIT_S)
    asyncio.run_coroutine_threadsafe(end_tasks(), loop).result(WAIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    loop.close()


async def end_tasks() -> None:
    """Answers that a test never let end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

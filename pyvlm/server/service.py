"""What the routes share: the engine once there is one, the server's phase, budgets, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal

from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.media.fetch import ImageFetcher
from pyvlm.media.ledger import ByteLedger
from pyvlm.media.policy import MediaPolicy
from pyvlm.server.config import ServerConfig
from pyvlm.server.metrics import Metrics

Phase = Literal["loading", "ready", "draining"]


class Service:
    """One server's. Event loop's thread only. Owns the fetcher: an async context manager."""

    def __init__(
        self, config: ServerConfig, policy: MediaPolicy, fetcher: ImageFetcher | None = None
    ) -> None:
        """`fetcher`: one with another resolver or other addresses than the default."""
        self.config = config
        self.policy = policy
        self.ledger = ByteLedger(config.max_ledger_bytes)
        self.fetcher = fetcher or ImageFetcher(policy)
        self.metrics = Metrics(self)
        self.phase: Phase = "loading"
        self.num_active = 0  # generations and other requests that a drain waits for
        self._engine: AsyncEngine | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def loaded_engine(self) -> AsyncEngine | None:
        return self._engine

    @property
    def is_ready(self) -> bool:
        engine = self._engine
        return self.phase == "ready" and engine is not None and engine.is_alive

    def open(self, engine: AsyncEngine) -> None:
        """The engine is started, and stays its starter's to close."""
        self._engine = engine
        if self.phase == "loading":
            self.phase = "ready"

    def stop_admitting(self) -> None:
        self.phase = "draining"

    def engine(self) -> AsyncEngine:
        """For a new request; refuses while the server cannot serve."""
        if self.phase == "draining":
            raise PyvlmError("the server is shutting down", code="draining")
        if self._engine is None:
            raise PyvlmError("the model is being loaded", code="loading")
        if not self._engine.is_alive:
            raise PyvlmError(
                "the engine has stopped; the server must be restarted", code="engine_dead"
            )
        return self._engine

    @asynccontextmanager
    async def active(self) -> AsyncIterator[None]:
        """Around whatever a drain has to wait for."""
        self.num_active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_active -= 1
            if self.num_active == 0:
                self._idle.set()

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.fetcher.__aexit__(kind, error, trace)

    async def idle(self) -> None:
        await self._idle.wait()

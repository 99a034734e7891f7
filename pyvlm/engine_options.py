"""How an engine is set up, and what it says about itself."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyvlm import _core
from pyvlm.errors import PyvlmError

MIB = 1 << 20
MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What can be chosen when a bundle is loaded. `BuildOptions` are about the bundle itself."""

    num_threads: int = 0  # of the device; 0 = one per physical core
    step_budget_ms: float = 100.0  # longest prompt work between two decode steps
    max_queued: int = 256  # unfinished requests beyond the number of slots
    max_queued_bytes: int = 1024 * MIB  # encoded pictures of requests that are being prepared

    def __post_init__(self) -> None:
        _check("num_threads", self.num_threads, 0, MAX_THREADS)
        _check("max_queued", self.max_queued, 0, 1 << 20)
        _check("max_queued_bytes", self.max_queued_bytes, 1, 1 << 50)

    def native(self) -> _core.EngineOptions:
        return _core.EngineOptions(
            step_budget_ms=self.step_budget_ms, max_queued=self.max_queued
        )


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """num_open requests are unfinished: num_preparing of them have not reached the native engine,
    num_in_order of those hold or wait for their turn among the image requests."""

    native: _core.EngineStats
    num_open: int
    num_preparing: int
    num_in_order: int
    queued_bytes: int
    is_draining: bool


def server_workers() -> int:
    """Preprocessing workers of a server: a quarter of the cores, so that decoding keeps its own."""
    return max(1, len(os.sched_getaffinity(0)) // 4)


def _check(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    raise PyvlmError(
        f"{name} must be an integer from {low} to {high}, not {str(value)[:60]}",
        code="invalid_parameter",
        param=name,
    )

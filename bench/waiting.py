"""What waiting requests cost those that run: an engine without a model, and a long queue."""

from __future__ import annotations

import importlib
import statistics
import time
from typing import Any

import numpy as np

from pyvlm import _core

ROWS, TOKENS, REPEATS = 8, 200, 5


class WaitingBench:
    """Needs the testing extension (PYVLM_TESTING)."""

    def __init__(self) -> None:
        self._testing: Any = importlib.import_module("pyvlm._core_testing")

    def measure(self, num_waiting: int) -> tuple[float, float]:
        """Microseconds of a step of 8 rows, and of a submit, with `num_waiting` behind them."""
        steps, submits = zip(*(self._once(num_waiting) for _ in range(REPEATS)), strict=True)
        return statistics.median(steps), statistics.median(submits)

    def _once(self, num_waiting: int) -> tuple[float, float]:
        runner = self._testing.FakeRunner(num_slots=ROWS, capacity=256)
        options = _core.EngineOptions(max_queued=max(1, num_waiting))
        with _core.Engine(runner, options) as engine:
            runner.pause_at_decode()
            running = {engine.submit(prompt(TOKENS)) for _ in range(ROWS)}
            assert runner.wait_until_blocked(60_000)
            begin = time.perf_counter()
            for _ in range(num_waiting):
                engine.submit(prompt(1))
            submit_s = (time.perf_counter() - begin) / max(1, num_waiting)
            wait_for(engine, num_waiting)
            begin = time.perf_counter()
            runner.resume()
            while running:
                for output in engine.wait_outputs(10.0):
                    if output.finish_reason is not None:
                        running.discard(output.seq_id)
            return (time.perf_counter() - begin) / TOKENS * 1e6, submit_s * 1e6


def wait_for(engine: _core.Engine, num_waiting: int) -> None:
    """All have arrived; those that were not submitted yet when the step began count too."""
    deadline = time.monotonic() + 60
    while engine.stats().num_waiting < num_waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def prompt(num_tokens: int) -> _core.PreparedPrefill:
    return _core.PreparedPrefill(
        logical_ids=np.arange(5, dtype=np.int32),
        segments=[_core.Segment.text(0, 5)],
        images=[],
        sampling=_core.SamplingParams(),
        max_new_tokens=num_tokens,
        stop_token_ids=[],
    )

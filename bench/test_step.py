"""What the engine adds to a decode step: a runner that costs next to nothing, whole steps."""

from __future__ import annotations

import numpy as np
import pytest

from bench.conftest import Timed
from pyvlm import _core

testing = pytest.importorskip("pyvlm._core_testing", reason="built with PYVLM_TESTING")

ROWS, TOKENS = 8, 200
TARGET_US = 20.0


def prompt(seed: int) -> _core.PreparedPrefill:
    ids = np.random.default_rng(seed).integers(0, 60, size=5).astype(np.int32)
    return _core.PreparedPrefill(
        logical_ids=ids,
        segments=[_core.Segment.text(0, len(ids))],
        images=[],
        sampling=_core.SamplingParams(),
        max_new_tokens=TOKENS,
        stop_token_ids=[],
    )


def generate(engine: _core.Engine, prompts: list[_core.PreparedPrefill]) -> list[list[int]]:
    tokens: dict[int, list[int]] = {engine.submit(each): [] for each in prompts}
    num_open = len(tokens)
    while num_open:
        for output in engine.wait_outputs(10.0):
            tokens[output.seq_id] += output.token_ids
            num_open -= output.finish_reason is not None
    return list(tokens.values())


@pytest.mark.benchmark(group="engine step, runner without a model")
@pytest.mark.parametrize("rows", [1, 8])
def test_step(timed: Timed, rows: int) -> None:
    """Counts everything between two steps: mailbox, plan, sampling of 64 ids, outputs, stats, and
    the fake model itself; and a thread of Python that pulls meanwhile."""
    runner = testing.FakeRunner(num_slots=ROWS, capacity=256)
    prompts = [prompt(seed) for seed in range(rows)]
    with _core.Engine(runner) as engine:
        expected = [runner.greedy_tokens(each, TOKENS) for each in prompts]
        assert generate(engine, prompts) == expected
        before = engine.stats().num_steps
        generate(engine, prompts)
        steps = engine.stats().num_steps - before
        median = timed(lambda: generate(engine, prompts), work=steps, unit="steps", rows=rows,
                       target_us=TARGET_US)  # fmt: skip
        assert runner.num_violations == 0
    if median:
        print(f"step of {rows} rows: {median / steps * 1e6:.1f} us (target {TARGET_US:g})")

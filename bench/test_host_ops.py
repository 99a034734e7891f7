"""The host's share of a step: drawing tokens, giving slots, planning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.conftest import Timed
from bench.native_ops import NativeOps, Sampler, Scheduler

VOCAB = 49280
CALLS = 20
DRAWS = 50
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def logits() -> Logits:
    return np.random.default_rng(0).normal(scale=3, size=VOCAB).astype(np.float32)


def allowed(logits: Logits, options: dict[str, Any]) -> set[int]:
    """The ids that may be drawn, by sorting in double."""
    z = logits.astype(np.float64)
    for token in options.get("history", ()):
        penalty = options["repetition_penalty"]
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    temperature = options.get("temperature", 0.0)
    order = np.argsort(-z, kind="stable")
    if temperature == 0:
        return {int(order[0])}
    share = np.exp((z - z.max()) / temperature)
    order = order[: options.get("top_k") or VOCAB]
    order = order[share[order] >= options.get("min_p", 0.0) * (1 - 1e-6)]
    total = np.cumsum(share[order])
    keep = np.searchsorted(total, options.get("top_p", 1.0) * total[-1] * (1 + 1e-6)) + 1
    return {int(token) for token in order[:keep]}


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k 40": {"temperature": 0.8, "top_k": 40},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "all": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
            "repetition_penalty": 1.1, "history": list(range(512))},
}  # fmt: skip


@pytest.mark.benchmark(group="sampler, one row")
@pytest.mark.parametrize("case", CASES)
def test_sampler(native_ops: NativeOps, timed: Timed, logits: Logits, case: str) -> None:
    options = CASES[case]
    sampler = Sampler(native_ops, logits, **options)
    drawn = {sampler.repeat(1)} if case == "greedy" else {sampler.advance() for _ in range(DRAWS)}
    assert sampler.repeat(2) == sampler.repeat(1)
    if "history" not in options:
        assert drawn <= allowed(logits, options)
    else:  # each draw joins the history, so only the first is comparable
        assert Sampler(native_ops, logits, **options).advance() in allowed(logits, options)
    timed(lambda: sampler.repeat(CALLS), dtype="f32", work=CALLS, unit="tokens", vocab=VOCAB)
    sampler.close()


@pytest.mark.benchmark(group="slots: all given and taken back")
@pytest.mark.parametrize("num_slots", [8, 64])
def test_slots(native_ops: NativeOps, timed: Timed, num_slots: int) -> None:
    cycle = native_ops.library.slots_cycle
    assert cycle(num_slots, 3) == 0
    timed(lambda: cycle(num_slots, 1000), work=1000 * num_slots, unit="pairs", num_slots=num_slots)


@pytest.fixture(params=[0, 100, 10_000])
def scheduler(native_ops: NativeOps, request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    scheduler = Scheduler(native_ops, 8, request.param)
    assert scheduler.num_waiting == request.param
    yield scheduler
    scheduler.close()


@pytest.mark.benchmark(group="plan of one step, 8 rows decode")
def test_schedule(scheduler: Scheduler, timed: Timed) -> None:
    assert scheduler.steps(1) == 8
    median = timed(
        lambda: scheduler.steps(100), work=100, unit="plans", num_waiting=scheduler.num_waiting
    )
    print(f"plan with {scheduler.num_waiting} waiting: {median * 1e4:.2f} us")

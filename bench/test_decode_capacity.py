"""A decode step costs what its positions cost: the capacity of the cache does not matter."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.conftest import Load, run, text_prefill

CAPACITIES = (512, 2048, 8192)
PROMPT, GENERATED = 128, 64  # so that the decode steps lie at positions 128 to 191


@pytest.fixture(scope="module")
def medians() -> dict[int, float]:
    """Microseconds per token by capacity, filled in the order of CAPACITIES."""
    return {}


@pytest.mark.benchmark(group="decode at positions 128-191, by capacity", min_rounds=10)
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_decode_by_capacity(
    benchmark: BenchmarkFixture,
    checkpoint: Path,
    load: Load,
    capacity: int,
    medians: dict[int, float],
) -> None:
    """One row, 64 greedy tokens, f16 weights and cache, one thread per core."""
    config = json.loads((checkpoint / "config.json").read_text())
    if capacity > config.get("text_config", config)["max_position_embeddings"]:
        pytest.skip("the model has fewer positions")
    engine = load(max_model_len=capacity, max_num_seqs=4)
    prefill = text_prefill(PROMPT, GENERATED)
    expected, _ = run(engine, prefill)
    assert run(engine, prefill)[0] == expected
    steps: list[float] = []

    def generate() -> None:
        ids, us_per_token = run(engine, prefill)
        assert ids == expected
        steps.append(us_per_token)

    benchmark.pedantic(generate, rounds=20, warmup_rounds=3)
    medians[capacity] = statistics.median(steps)
    benchmark.extra_info["decode_us_per_token_median"] = round(medians[capacity], 1)
    if capacity == max(CAPACITIES) and min(CAPACITIES) in medians:
        ratio = round(medians[capacity] / medians[min(CAPACITIES)], 3)
        benchmark.extra_info["median_ratio_largest_to_smallest_capacity"] = ratio
        print(f"decode, capacity {max(CAPACITIES)} to {min(CAPACITIES)}: {ratio} times the median")

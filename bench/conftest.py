"""Benchmarks assert that what they time is right, then time it (pytest-benchmark).

`pytest bench --bench-model tiny|reduced|smolvlm-256m|DIR --bench-quantize int8 --bench-threads N`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.model import BenchModel, find_checkpoint
from bench.native_ops import NativeOps, build_native_ops
from pyvlm import _core
from pyvlm.build import BuildOptions, prepare_bundle
from pyvlm.models.config import Quantize
from pyvlm.runtime import open_program

Load = Callable[..., _core.Engine]
Timed = Callable[..., float]
CAPACITY = 2048  # room for the farthest position measured


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pyvlm benchmarks")
    group.addoption("--bench-model", default="tiny", help="tiny, the name of a shape, or a path")
    group.addoption("--bench-quantize", choices=("none", "int8"), default="none")
    group.addoption("--bench-threads", type=int, default=0, help="0: one per core")


@pytest.fixture(scope="session")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    return find_checkpoint(request.config.getoption("--bench-model"), folder)


@pytest.fixture(scope="session")
def num_threads(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--bench-threads") or _core.library_info()["cores"])


@pytest.fixture(scope="session")
def quantize(request: pytest.FixtureRequest) -> Quantize:
    return "int8" if request.config.getoption("--bench-quantize") == "int8" else "none"


@pytest.fixture(scope="session")
def model(checkpoint: Path, num_threads: int, quantize: Quantize) -> BenchModel:
    return BenchModel(
        checkpoint,
        num_threads=num_threads,
        max_model_len=CAPACITY,
        max_num_seqs=8,
        quantize=quantize,
    )


@pytest.fixture
def load(checkpoint: Path, num_threads: int, quantize: Quantize) -> Iterator[Load]:
    """Engines of the model; BuildOptions by keyword."""
    engines: list[_core.Engine] = []

    def make(**options: Any) -> _core.Engine:
        bundle = prepare_bundle(checkpoint, BuildOptions(quantize=quantize, **options))
        program = open_program(bundle, num_threads)
        engines.append(_core.Engine(program, _core.EngineOptions()))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


@pytest.fixture(scope="session")
def native_ops(tmp_path_factory: pytest.TempPathFactory) -> NativeOps:
    return build_native_ops(tmp_path_factory.mktemp("native"))


@pytest.fixture
def timed(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Timed:
    """Times a call and says how; `work` units a call give a rate. Returns the median in s."""

    def run(
        call: Callable[[], object],
        *,
        rounds: int = 20,
        warmup: int = 3,
        threads: int = 1,
        dtype: str = "-",
        work: float | None = None,
        unit: str = "",
        **info: Any,
    ) -> float:
        benchmark.pedantic(call, rounds=rounds, warmup_rounds=warmup)
        benchmark.extra_info |= {
            "model": request.config.getoption("--bench-model"),
            "threads": threads,
            "dtype": dtype,
            "rounds": rounds,
            "warmup_rounds": warmup,
            **info,
        }
        if benchmark.stats is None:  # --benchmark-disable
            return 0.0
        median = float(benchmark.stats.stats.median)
        if work is not None:
            benchmark.extra_info[f"{unit}_per_s"] = round(work / median, 1)
        return median

    return run


def text_prefill(num_ids: int, num_tokens: int) -> _core.PreparedPrefill:
    """A greedy text prompt that generates exactly num_tokens."""
    ids = np.arange(10, 10 + num_ids, dtype=np.int32)
    return _core.PreparedPrefill(
        logical_ids=ids,
        segments=[_core.Segment.text(0, num_ids)],
        images=[],
        sampling=_core.SamplingParams(),
        max_new_tokens=num_tokens,
        stop_token_ids=[],
    )


def run(engine: _core.Engine, prefill: _core.PreparedPrefill) -> tuple[list[int], float]:
    """The generated ids, and microseconds per decoded token (the first comes from the prefill)."""
    seq_id = engine.submit(prefill)
    ids: list[int] = []
    while True:
        for output in engine.wait_outputs(10.0):
            assert output.seq_id == seq_id
            ids += output.token_ids
            if output.finish_reason is not None:
                assert output.finish_reason == "length", output.error_message
                return ids, output.decode_us / (len(ids) - 1)

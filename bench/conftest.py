"""Benchmarks assert that what they time is right, then time it (pytest-benchmark)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pyvlm import _core
from pyvlm.build import BuildOptions, prepare_bundle
from pyvlm.runtime import open_engine
from tools.checkpoints.shapes import SHAPES
from tools.make_checkpoint import make_checkpoint

Load = Callable[..., _core.Engine]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the reduced SmolVLM shape."""
    path = tmp_path_factory.mktemp("checkpoint") / "reduced"
    make_checkpoint(path, SHAPES["reduced"])
    return path


@pytest.fixture
def load(checkpoint: Path) -> Iterator[Load]:
    """Engines of that checkpoint; BuildOptions by keyword."""
    engines = []

    def make(**options: int) -> _core.Engine:
        bundle = prepare_bundle(checkpoint, BuildOptions(**options))
        engines.append(open_engine(bundle))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


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

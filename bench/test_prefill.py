"""One prefill chunk of the compiled program, by length and position."""

from __future__ import annotations

import numpy as np
import pytest

from bench.conftest import Timed
from bench.model import BenchModel

SLOT = 3


@pytest.mark.benchmark(group="prefill chunk")
@pytest.mark.parametrize("start", [0, 512, 1500])
@pytest.mark.parametrize("length", [16, 64, 256])
def test_prefill(model: BenchModel, timed: Timed, length: int, start: int) -> None:
    length = min(length, model.max_chunk)
    tokens = (5 + 7 * np.arange(length) % (model.vocab_size // 2)).astype(np.int32)
    logits = np.array(model.prefill(tokens, SLOT, start))
    # The last position again as a decode step: it reads what the chunk wrote.
    last = model.decode([int(tokens[-1])], [SLOT], [start + length - 1])[0]
    scale = np.abs(logits).max()
    np.testing.assert_allclose(last, logits, atol=5e-3 * scale)
    timed(
        lambda: model.prefill(tokens, SLOT, start),
        rounds=10,
        threads=model.num_threads,
        dtype=model.dtype,
        work=length,
        unit="tokens",
        length=length,
        start=start,
    )

"""One decode step of the compiled program, by batch and position."""

from __future__ import annotations

import numpy as np
import pytest

from bench.conftest import Timed
from bench.model import BenchModel


@pytest.mark.benchmark(group="decode step")
@pytest.mark.parametrize("position", [0, 512, 1500])
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_decode(model: BenchModel, timed: Timed, batch: int, position: int) -> None:
    tokens = [5 + 7 * row for row in range(batch)]
    slots, positions = list(range(batch)), [position] * batch
    together = np.array(model.decode(tokens, slots, positions))
    for row in range(batch):  # a row's logits do not depend on its neighbours
        alone = model.decode([tokens[row]], [slots[row]], [position])
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-4, atol=1e-4)
    timed(
        lambda: model.decode(tokens, slots, positions),
        threads=model.num_threads,
        dtype=model.dtype,
        work=batch,
        unit="tokens",
        batch=batch,
        position=position,
    )

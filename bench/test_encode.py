"""One tile through the vision tower and the connector."""

from __future__ import annotations

import numpy as np
import pytest

from bench.conftest import Timed
from bench.model import BenchModel, aligned


@pytest.mark.benchmark(group="image encode, one tile")
def test_encode(model: BenchModel, timed: Timed) -> None:
    vision = model.manifest.vision
    if vision is None:
        pytest.skip("the model has no vision tower")
    patches, valid = model.tile(seed=0)
    rows = aligned((2 * vision.rows_per_tile, model.hidden_size), np.float32)
    for tile, seed in enumerate((0, 1)):
        rows = model.encode(*model.tile(seed), rows, tile)
    first, second = np.array(rows).reshape(2, vision.rows_per_tile, -1)
    assert np.isfinite(rows).all()
    assert np.abs(first - second).max() > 1e-3 * np.abs(first).max()
    again = model.encode(patches, valid, aligned(first.shape, np.float32), 0)
    np.testing.assert_allclose(again, first, rtol=1e-4, atol=1e-4)
    timed(
        lambda: model.encode(patches, valid, rows, 0),
        rounds=8,
        warmup=2,
        threads=model.num_threads,
        dtype=model.dtype,
        work=1,
        unit="tiles",
        patches=vision.num_patches,
    )

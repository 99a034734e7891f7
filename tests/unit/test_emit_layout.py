"""Shapes and packed forms of parameters and caches."""

from __future__ import annotations

import numpy as np
import pytest

from pyvlm.emit.layout import Param, kv_shape, pack, parameters, position_table
from tests.reference.model_cases import TIED, UNTIED


def test_cache_is_contiguous_per_head() -> None:
    assert kv_shape(TIED.config.decoder, 4, 64) == (2, 4, 2, 64, 16)


def test_names_follow_the_checkpoint() -> None:
    tied = parameters(TIED.config, "codegen", 64)
    untied = parameters(UNTIED.config, "codegen", 40)
    assert "head" not in tied
    assert untied["head"].logical == (77, 40)
    assert "layers.1.qkv_bias" in tied
    assert "layers.1.qkv_bias" not in untied
    assert tied["rope"].shape == (64, 16)
    assert tied["vision.patch"].logical == (48, 48)
    assert tied["vision.connector"].logical == (96, 48 * 4)
    assert tied["vision.blocks.2.fc1_bias"].dtype == "f32"
    assert not any(name.startswith("vision") for name in untied)


def test_both_lowerings_hold_the_same_parameters() -> None:
    plain, packed = (parameters(TIED.config, x, 64) for x in ("codegen", "kernels"))
    assert list(plain) == list(packed)
    assert all(plain[n].logical == packed[n].logical for n in plain)
    assert packed["layers.0.o"].shape == (6, 96, 16)


@pytest.mark.parametrize("rows", [16, 33, 5])
def test_panels_hold_sixteen_rows_side_by_side(rows: int) -> None:
    matrix = np.arange(rows * 7, dtype=np.float32).reshape(rows, 7)
    packed = pack(Param("m", (rows, 7), "f32", "panels"), matrix)
    assert packed.shape == (-(-rows // 16), 7, 16)
    for n in range(packed.shape[0] * 16):
        expected = matrix[n] if n < rows else np.zeros(7)
        np.testing.assert_array_equal(packed[n // 16, :, n % 16], expected)


@pytest.mark.parametrize("half", [8, 13])
def test_gate_and_up_rows_share_a_panel(half: int) -> None:
    matrix = 1 + np.arange(2 * half * 3, dtype=np.float32).reshape(2 * half, 3)
    packed = pack(Param("m", (2 * half, 3), "f32", "gate_up_panels"), matrix)
    assert packed.shape == (-(-half // 8), 3, 16)
    for n in range(packed.shape[0] * 8):
        gate, up = (matrix[n], matrix[half + n]) if n < half else (np.zeros(3), np.zeros(3))
        np.testing.assert_array_equal(packed[n // 8, :, n % 8], gate)
        np.testing.assert_array_equal(packed[n // 8, :, 8 + n % 8], up)


def test_packing_checks_the_shape_and_rounds_to_the_type() -> None:
    param = Param("layers.0.o", (2, 3), "f16")
    with pytest.raises(ValueError, match=r"layers\.0\.o: shape \(3, 2\)"):
        pack(param, np.zeros((3, 2), np.float32))
    assert pack(param, np.full((2, 3), 1 / 3, np.float32)).dtype == np.float16


def test_position_table_of_full_axes_is_the_identity() -> None:
    for grid in (4, 8, 32):
        table = position_table(grid)
        assert table.shape == (grid + 1, grid)
        np.testing.assert_array_equal(table[grid], np.arange(grid))


def test_position_table_spreads_few_patches_over_the_axis() -> None:
    table = position_table(8)
    np.testing.assert_array_equal(table[4][:4], [0, 2, 4, 6])
    np.testing.assert_array_equal(table[1], [0, 7, 7, 7, 7, 7, 7, 7])
    np.testing.assert_array_equal(table[3][:3], [0, 2, 5])
    assert (np.diff(table[1:], axis=1) >= 0).all()

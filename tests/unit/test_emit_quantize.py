"""int8 weights: precision, layout, and what the emitted programs read."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pyvlm.emit.layout import Lowering, Param, pack, parameters
from pyvlm.emit.program import emit
from pyvlm.emit.quantize import BLOCK_BYTES, OVERFLOW, dequantize_rows, quantize_rows
from tests.reference.model_cases import MODELS
from tests.reference.weights import Array

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 70))
VALUES = st.floats(-OVERFLOW, OVERFLOW, width=32, exclude_min=True, exclude_max=True)
SMALL = st.floats(-(2**-10), 2**-10, width=32)  # whose scales are subnormal halves


@given(st.one_of(arrays(np.float32, SHAPES, elements=VALUES | SMALL), arrays(np.float32, SHAPES)))
def test_no_value_is_off_by_more_than_half_a_scale(values: Array) -> None:
    values = np.where(np.abs(values) < OVERFLOW, values, np.float32(1))  # also NaN
    levels, scales = quantize_rows(values)
    assert np.isfinite(scales).all()
    assert levels.min(initial=0) >= -127
    found = dequantize_rows(levels, scales, values.shape[1])
    steps = np.repeat(scales.astype(np.float64), 32, axis=1)[:, : values.shape[1]]
    error = np.abs(found.astype(np.float64) - values)
    assert (error <= 0.5 * (1 + 1e-6) * steps).all()
    assert (found[values == 0] == 0).all()
    assert not levels[:, values.shape[1] :].any()


def test_what_is_on_the_grid_stays_there() -> None:
    """Weights that went through int8 before lose nothing more."""
    values = np.random.default_rng(1).standard_normal((300, 100)).astype(np.float32)
    once = dequantize_rows(*quantize_rows(values), 100)
    np.testing.assert_array_equal(dequantize_rows(*quantize_rows(once), 100), once)


def test_scales_are_those_of_the_contract() -> None:
    values = np.zeros((3, 64), np.float32)
    values[1, :3] = [127, -63.5, 0.5]  # ties go to even
    values[2, 33] = -12.7
    levels, scales = quantize_rows(values)
    np.testing.assert_array_equal(scales, np.array([[0, 0], [1, 0], [0, 0.1]], np.float16))
    np.testing.assert_array_equal(levels[1, :3], [127, -64, 0])
    assert levels[2, 33] == -127
    assert not levels[0].any()


@pytest.mark.parametrize(
    ("weight", "scale_bits", "level"),
    [
        (190 * 2**-24, 2, 95),
        (2**-20, 1, 16),
        (2**-40, 1, 0),
        (127.5 * 2**-24, 1, 127),
        (0, 0, 0),
    ],
)
def test_tiny_scales_are_those_of_the_kernels(weight: float, scale_bits: int, level: int) -> None:
    """The same numbers as in csrc/kernels/q8_test.cc."""
    values = np.zeros((1, 32), np.float32)
    values[0, 5], values[0, 6] = weight, -weight
    levels, scales = quantize_rows(values)
    assert scales.view(np.uint16).tolist() == [[scale_bits]]
    assert levels[0, 5:7].tolist() == [level, -level]


def _unpacked(panels: Array, rows: int, columns: int) -> Array:
    """[P, B, 544] int8 element by element, as csrc/kernels/q8.h describes it."""
    found = np.zeros((panels.shape[0] * 16, panels.shape[1] * 32), np.float32)
    for n, k in np.ndindex(*found.shape):
        block = panels[n // 16, k // 32]
        scale = block[2 * (n % 16) : 2 * (n % 16) + 2].copy().view("<f2")[0]
        level = block[32 + (k % 32 // 2 * 16 + n % 16) * 2 + k % 2]
        found[n, k] = np.float32(level) * np.float32(scale)
    assert not found[rows:].any()
    assert not found[:, columns:].any()
    return found[:rows, :columns]


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (33, 64), (5, 7), (40, 33)])
def test_panels_lie_as_the_kernels_read_them(rows: int, columns: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    param = Param("m", (rows, columns), "i8", "q8_panels")
    panels = pack(param, values)
    assert panels.shape == param.shape == (-(-rows // 16), -(-columns // 32), BLOCK_BYTES)
    expected = dequantize_rows(*quantize_rows(values), columns)
    np.testing.assert_array_equal(_unpacked(panels, rows, columns), expected)


@pytest.mark.parametrize("half", [8, 13])
def test_gate_and_up_rows_share_a_q8_panel(half: int) -> None:
    values = np.random.default_rng(half).standard_normal((2 * half, 40)).astype(np.float32)
    param = Param("m", values.shape, "i8", "q8_gate_up_panels")
    panels = pack(param, values)
    assert panels.shape == param.shape
    found = _unpacked(panels, panels.shape[0] * 16, 40).reshape(-1, 2, 8, 40)
    expected = dequantize_rows(*quantize_rows(values), 40)
    np.testing.assert_array_equal(found[:, 0].reshape(-1, 40)[:half], expected[:half])
    np.testing.assert_array_equal(found[:, 1].reshape(-1, 40)[:half], expected[half:])


@pytest.mark.parametrize("lowering", ["kernels", "codegen"])
@pytest.mark.parametrize("name", MODELS)
def test_program_reads_matrices_as_int8_only(name: str, lowering: Lowering) -> None:
    model = MODELS[name]
    config = replace(model.config, quantize="int8")
    params = parameters(config, lowering, model.capacity)
    plain = parameters(model.config, lowering, model.capacity)
    for param in params.values():
        is_matrix = plain[param.matrix].dtype == config.dtype and len(param.logical) == 2
        exempt = param.matrix in ("rope", "vision.position", "vision.position_table")
        assert param.is_quantized == (is_matrix and not exempt), param
    mlir = emit(config, model.options(lowering)).mlir
    declared = dict(re.findall(r"util\.global private @p\.(\S+) = .* : tensor<(\S+)>", mlir))
    assert declared.keys() == params.keys()
    for key, text in declared.items():
        *extents, dtype = text.split("x")
        assert (tuple(map(int, extents)), dtype) == (params[key].shape, params[key].dtype)
    assert not re.search(r"@pyvlm_(embed|linear|linear_rows)_f(16|32)\b", mlir)

"""int8 weights under the kernels lowering, against numpy on what the levels stand for."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pyvlm.emit.layout import parameters
from pyvlm.emit.program import emit
from tests.reference import model_cases
from tests.reference.model_cases import DECODES, INT8, PREFILLS, VALID, DecodeCase, PrefillCase
from tests.reference.native import NativeModule


@functools.cache
def compiled(name: str) -> NativeModule:
    model = INT8[name]
    params = parameters(model.config, "kernels", model.capacity)
    mlir = emit(model.config, model.options("kernels")).mlir
    with tempfile.TemporaryDirectory() as folder:
        return NativeModule(Path(folder), mlir, "kernels", params, model.weights)


def plain(name: str) -> str:
    return name.replace("int8", INT8[name].kv_dtype)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in INT8 for case in PREFILLS[plain(name)]], ids=str
)
def test_prefill(name: str, case: PrefillCase) -> None:
    model_cases.check_prefill(INT8[name], "kernels", compiled(name).invoke, case)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in INT8 for case in DECODES[plain(name)]], ids=str
)
def test_decode(name: str, case: DecodeCase) -> None:
    model_cases.check_decode(INT8[name], "kernels", compiled(name).invoke, case)


@pytest.mark.parametrize("valid", VALID, ids=str)
def test_tower(valid: tuple[int, int]) -> None:
    model = INT8["tied-int8"]
    invoke = compiled("tied-int8").invoke
    model_cases.check_tower(model, invoke, valid, model.rounding("kernels"))


def test_result_of_a_row_does_not_depend_on_the_chunk() -> None:
    """Bit for bit, though few rows are shared out by panels and many by rows."""
    model, invoke = INT8["untied-int8"], compiled("untied-int8").invoke
    tokens = np.arange(12, dtype=np.int32)
    no_rows = (np.full(12, -1, np.int32), np.zeros((1, 40), np.float32))
    k, v = model.caches()
    whole, _, _ = invoke("prefill_12", tokens, *no_rows, 3, 0, 12, k, v)
    few, few_k, few_v = invoke("prefill_12", tokens, *no_rows, 3, 0, 5, k, v)
    np.testing.assert_array_equal(few[:5], whole[:5])
    rest = np.roll(tokens, -5)
    later, _, _ = invoke("prefill_12", rest, *no_rows, 3, 5, 7, few_k, few_v)
    np.testing.assert_allclose(later[:7], whole[5:12], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_shows(poison: float) -> None:
    """Quantised inputs must not hide it from the engine's check of the logits."""
    model, invoke = INT8["tied-int8"], compiled("tied-int8").invoke
    tokens, index = np.arange(16, dtype=np.int32), np.full(16, -1, np.int32)
    index[3] = 0
    rows = np.ones((1, 96), np.float32)
    rows[0, 17] = poison
    k, v = model.caches()
    logits, _, _ = invoke("prefill_16", tokens, index, rows, 0, 0, 4, k, v)
    assert not np.isfinite(logits).all()
    clean, _, _ = invoke("prefill_16", tokens, index, rows, 0, 0, 3, k, v)
    assert np.isfinite(clean).all()

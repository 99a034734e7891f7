"""The kernels lowering in the engine's own runtime: against numpy, and against codegen."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyvlm.emit.kernels import KernelOps
from pyvlm.emit.layout import Lowering, parameters
from pyvlm.emit.program import emit
from tests.reference import model_cases
from tests.reference.model_cases import DECODES, MODELS, PREFILLS, VALID, DecodeCase, PrefillCase
from tests.reference.native import NativeModule
from tests.reference.op_cases import OpCase, op_cases, op_module, op_params, op_weights

TOWERS = [name for name, model in MODELS.items() if model.config.vision]
DTYPES = ("f16", "f32")
OPS = {dtype: op_weights(op_params("kernels", dtype)) for dtype in DTYPES}
OP_CASES = [(dtype, case) for dtype in DTYPES for case in op_cases(OPS[dtype], dtype)]


@functools.cache
def ops_module(dtype: str) -> NativeModule:
    params = op_params("kernels", dtype)
    mlir = op_module(KernelOps(dtype, dtype), params, dtype).text()
    with tempfile.TemporaryDirectory() as folder:
        return NativeModule(Path(folder), mlir, "kernels", params, OPS[dtype])


@functools.cache
def compiled(name: str, lowering: Lowering) -> NativeModule:
    model = MODELS[name]
    params = parameters(model.config, lowering, model.capacity)
    mlir = emit(model.config, model.options(lowering)).mlir
    with tempfile.TemporaryDirectory() as folder:
        return NativeModule(Path(folder), mlir, lowering, params, model.weights)


@pytest.mark.parametrize(
    ("dtype", "case"), OP_CASES, ids=[f"{dtype}-{case.name}" for dtype, case in OP_CASES]
)
def test_op(dtype: str, case: OpCase) -> None:
    case.compare(ops_module(dtype).invoke(case.function, *case.arguments))


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in PREFILLS.items() for case in cases], ids=str
)
def test_prefill(name: str, case: PrefillCase) -> None:
    model_cases.check_prefill(MODELS[name], "kernels", compiled(name, "kernels").invoke, case)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in DECODES.items() for case in cases], ids=str
)
def test_decode(name: str, case: DecodeCase) -> None:
    model_cases.check_decode(MODELS[name], "kernels", compiled(name, "kernels").invoke, case)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_then_decode(name: str) -> None:
    model_cases.check_chunks(MODELS[name], "kernels", compiled(name, "kernels").invoke)


@pytest.mark.parametrize("valid", VALID, ids=str)
@pytest.mark.parametrize("name", TOWERS)
def test_tower(name: str, valid: tuple[int, int]) -> None:
    model_cases.check_tower(MODELS[name], compiled(name, "kernels").invoke, valid)


@pytest.mark.parametrize("name", TOWERS)
def test_widening(name: str) -> None:
    model_cases.check_widening(MODELS[name], compiled(name, "kernels").invoke)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 29])
def test_lowerings_agree_on_a_chunk(start: int) -> None:
    """Closer to each other than either has to be to numpy: same roundings at the same places."""
    model, name = MODELS["tied-f16"], "tied-f16"
    rng = np.random.default_rng(start)
    tokens = rng.integers(0, model.config.decoder.vocab_size, model.chunk).astype(np.int32)
    index = np.full(model.chunk, -1, np.int32)
    rows = np.zeros((1, model.config.decoder.hidden_size), np.float32)
    k, v = model.caches()
    results: list[list[NDArray[Any]]] = [
        compiled(name, lowering).invoke(
            "prefill_16", tokens, index, rows, 2, start, model.chunk, k, v
        )
        for lowering in ("kernels", "codegen")
    ]
    for kernels, codegen in zip(*results, strict=True):
        difference = np.abs(kernels.astype(np.float32) - codegen.astype(np.float32))
        assert difference.max() < 1e-3


def test_result_of_a_row_does_not_depend_on_the_batch() -> None:
    """Bit for bit: what makes sampling reproducible whatever else is in the batch."""
    model = MODELS["tied-f16"]
    invoke = compiled("tied-f16", "kernels").invoke
    k, v = model.caches()
    tokens, slots = np.array([5, 9, 60, 100], np.int32), np.array([2, 0, 3, 1], np.int32)
    positions = np.array([50, 3, 63, 20], np.int32)
    together, together_k, _ = invoke("decode_4", tokens, slots, positions, 4, k, v)
    for i in range(4):
        one = [np.full(4, a[i], np.int32) for a in (tokens, slots, positions)]
        alone, alone_k, _ = invoke("decode_4", *one, 1, k, v)
        np.testing.assert_array_equal(alone[0], together[i])
        np.testing.assert_array_equal(alone_k[:, slots[i]], together_k[:, slots[i]])

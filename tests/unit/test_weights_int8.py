"""int8 archives: the same bytes as packing whole matrices, and what cannot be quantised."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pyvlm.emit.layout import Lowering, pack, parameters
from pyvlm.errors import PyvlmError
from pyvlm.models.registry import weight_plan
from pyvlm.weights import convert
from pyvlm.weights.checkpoint import open_checkpoint
from pyvlm.weights.convert import parameter_bytes, write_parameters
from tests.unit.stored import llama_tensors, read_archive, write_llama
from tools.checkpoints.shapes import SHAPES
from tools.make_checkpoint import make_checkpoint

GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.mark.parametrize("lowering", ["kernels", "codegen"])
@pytest.mark.parametrize("shape", ["odd", "qwen2"])
def test_blocks_of_rows_pack_as_whole_matrices(
    tmp_path: Path, shape: str, lowering: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "BLOCK_BYTES", 4 * 16 * 72 * 3)  # several blocks a matrix
    checkpoint = open_checkpoint(
        make_checkpoint(tmp_path / "model", SHAPES[shape]), quantize="int8"
    )
    model, source = checkpoint.model, checkpoint.source
    write_parameters(tmp_path / "w.irpa", model, source, lowering=lowering, capacity=64)
    params = parameters(model, lowering, 64)
    found = read_archive(tmp_path / "w.irpa", params)
    plan, quantized = weight_plan(model, source.tensors), 0
    for name, param in params.items():
        assert math.prod(param.shape) * found[name].itemsize == found[name].nbytes
        if param.is_quantized:
            quantized += 1
            pieces = plan.sources[param.matrix]
            rows = [source.rows(piece.name, 0, piece.shape[0]) for piece in pieces]
            whole = pack(param, np.concatenate(rows).astype(np.float32))
            np.testing.assert_array_equal(found[name], whole, err_msg=name)
    assert quantized > 10


def test_int8_takes_little_more_than_half_of_f16() -> None:
    """8.5 bits a weight where sizes are multiples of a panel and a block."""
    sizes = {}
    for quantize in ("none", "int8"):
        model = open_checkpoint(Path("pyvlm/assets/tiny"), quantize=quantize).model
        params = parameters(model, "kernels", 64)
        matrices = [n for n, p in params.items() if p.dtype in ("f16", "i8")]
        sizes[quantize] = sum(parameter_bytes(model, "kernels", 64)[n] for n in matrices)
    assert 0.53 <= sizes["int8"] / sizes["none"] < 0.55


@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "NaN or infinity"), (-9e6, "-?9e.06.*int8"), (np.inf, "NaN")]
)
@pytest.mark.parametrize("lowering", ["kernels", "codegen"])
def test_what_int8_cannot_hold_is_named(
    tmp_path: Path, value: float, words: str, lowering: Lowering
) -> None:
    tensors = llama_tensors()
    tensors[GATE] = tensors[GATE].astype(np.float32)
    tensors[GATE][5, 3] = value
    checkpoint = open_checkpoint(write_llama(tmp_path / "m", tensors), quantize="int8")
    with pytest.raises(PyvlmError, match=rf"{GATE}.*{words}") as info:
        write_parameters(
            tmp_path / "w", checkpoint.model, checkpoint.source, lowering=lowering, capacity=8
        )
    assert info.value.code == "model_invalid"

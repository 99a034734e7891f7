"""A program that copies its cache in every call is refused when it is loaded."""

from __future__ import annotations

import pytest

from pyvlm import _core
from pyvlm.errors import PyvlmError

CACHE = "tensor<1x2x1x32x8xf16>"


def _function(name: str, arguments: str, rows: int, k: str, v: str) -> str:
    """Logits of zeros. The caches come back as they are, or as new buffers."""
    consume = "{iree.abi.consume}"
    return f"""
  func.func @{name}({arguments}, %k: {CACHE} {consume if k == "%k" else ""},
                    %v: {CACHE} {consume if v == "%v" else ""})
      -> (tensor<{rows}x16xf32>, {CACHE}, {CACHE}) {{
    %logits = arith.constant dense<0.0> : tensor<{rows}x16xf32>
    %k2 = arith.addf %k, %k : {CACHE}
    %v2 = arith.addf %v, %v : {CACHE}
    return %logits, {k}, {v} : tensor<{rows}x16xf32>, {CACHE}, {CACHE}
  }}
"""


def _module(prefill: tuple[str, str], decode: tuple[str, str]) -> str:
    prompt = (
        "%tokens: tensor<8xi32>, %index: tensor<8xi32>, %rows: tensor<?x8xf32>, "
        "%slot: index, %start: index, %count: index"
    )
    step = "%tokens: tensor<2xi32>, %slots: tensor<2xi32>, %at: tensor<2xi32>, %count: index"
    return (
        "module @model {"
        + _function("prefill_8", prompt, 1, *prefill)
        + _function("decode_2", step, 2, *decode)
        + "}\n"
    )


def _runner(device: object, path: str) -> object:
    spec = _core.ModelSpec(
        hidden_size=8,
        vocab_size=16,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        num_slots=2,
        capacity=32,
        prefill=[_core.EntryPoint("prefill_8", 8, 32)],
        decode=[_core.EntryPoint("decode_2", 2, 32)],
    )
    return _core.IreeRunner(_core.Program(device, path, spec=spec))


def test_caches_that_come_back_are_taken(device, compile_mlir) -> None:
    same = ("%k", "%v")
    assert _runner(device, str(compile_mlir(_module(same, same)))).num_slots == 2


@pytest.mark.parametrize(
    ("prefill", "decode", "guilty"),
    [
        (("%k2", "%v"), ("%k", "%v"), "prefill_8"),
        (("%k", "%v2"), ("%k", "%v"), "prefill_8"),
        (("%k", "%v"), ("%k2", "%v"), "decode_2"),
        (("%k", "%v"), ("%k", "%v2"), "decode_2"),
    ],
)
def test_a_copied_cache_is_a_mismatch(device, compile_mlir, prefill, decode, guilty) -> None:
    path = str(compile_mlir(_module(prefill, decode)))
    with pytest.raises(PyvlmError) as caught:
        _runner(device, path)
    assert caught.value.code == "program_mismatch"
    assert guilty in caught.value.message

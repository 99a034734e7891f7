"""Which functions a program has, and the checks on its static choices."""

from __future__ import annotations

import re

import pytest

from pyvlm.emit.program import EmitOptions, EntryPoint, block_groups, emit, entry_points
from pyvlm.models.config import VisionConfig
from tests.reference.model_cases import TIED, UNTIED


def functions(mlir: str) -> list[str]:
    return re.findall(r"^func\.func @(\w+)", mlir, re.MULTILINE)


def test_kernels_have_one_prefill_and_one_decode_by_default() -> None:
    prefill, decode = entry_points(EmitOptions(num_slots=6, capacity=1024))
    assert prefill == (EntryPoint("prefill_256", 256, 1024),)
    assert decode == (EntryPoint("decode_6", 6, 1024),)


def test_codegen_has_a_small_batch_and_context_buckets() -> None:
    options = EmitOptions(6, 1024, lowering="codegen", contexts=(1024, 256))
    prefill, decode = entry_points(options)
    assert [e.function for e in prefill] == ["prefill_256_c256", "prefill_256"]
    assert [(e.function, e.context) for e in decode] == [
        ("decode_1_c256", 256),
        ("decode_1", 1024),
        ("decode_6_c256", 256),
        ("decode_6", 1024),
    ]


def test_a_chunk_is_never_longer_than_the_capacity() -> None:
    assert entry_points(EmitOptions(1, 100))[0] == (EntryPoint("prefill_100", 100, 100),)


def test_text_only_models_have_no_vision_functions() -> None:
    program = emit(UNTIED.config, UNTIED.options("kernels"))
    assert functions(program.mlir) == ["prefill_12", "decode_9"]
    assert program.num_block_groups == 0
    assert "vision" not in program.mlir


def test_vision_functions_are_split_by_groups() -> None:
    program = emit(TIED.config, TIED.options("kernels"))
    assert functions(program.mlir)[3:] == [
        "vision_embed",
        "vision_blocks_0",
        "vision_blocks_1",
        "vision_project",
        "rows_from_f16",
    ]
    assert program.num_block_groups == 2


def test_groups_follow_the_cost_of_a_layer() -> None:
    large = VisionConfig(768, 3072, 12, 12, 512, 16, 4)
    assert block_groups(large, None) == [range(i, i + 1) for i in range(12)]
    small = VisionConfig(48, 88, 3, 3, 24, 4, 2)
    assert block_groups(small, None) == [range(3)]
    assert block_groups(small, 2) == [range(2), range(2, 3)]


def test_layers_share_executables() -> None:
    mlir = emit(TIED.config, TIED.options("kernels")).mlir
    counts = [mlir.count(f"@{kernel}(") for kernel in ("pyvlm_attn_decode_f16", "pyvlm_attn_full")]
    # Declaration and call of each shape: batches 1 and 4 of decode, one tile.
    assert counts == [4, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_slots": 0},
        {"contexts": (32,)},
        {"lowering": "codegen", "contexts": (65,)},
        {"prefill_chunks": (65,)},
        {"decode_batches": (5,)},
    ],
    ids=str,
)
def test_impossible_choices_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"context|num_slots|chunks|batches"):
        EmitOptions(**{"num_slots": 4, "capacity": 64, **wrong})  # type: ignore[arg-type]

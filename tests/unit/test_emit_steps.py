"""What a step does between submission and result, read from the compiler's stream level."""

from __future__ import annotations

import functools
import math
import re

import pytest

from pyvlm.compile import CompileOptions, compile_module
from pyvlm.emit.layout import Lowering, kv_shape
from pyvlm.emit.program import emit
from tests.reference.model_cases import TIED

LOWERINGS: tuple[Lowering, ...] = ("kernels", "codegen")
KV_BYTES = 2 * math.prod(kv_shape(TIED.config.decoder, TIED.num_slots, TIED.capacity))
DECODER_FUNCTIONS = ("prefill_16", "decode_1", "decode_4")


@functools.cache
def functions(lowering: Lowering) -> dict[str, str]:
    """Text of each public function after scheduling."""
    mlir = emit(TIED.config, TIED.options(lowering)).mlir
    options = CompileOptions(lowering, extra_flags=("--compile-to=stream",))
    text = compile_module(mlir, options).decode()
    parts = re.split(r"\n  util\.func public @(\w+)", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def copied_bytes(function: str) -> list[int]:
    """Sizes of the copies of one function; all must be known at compile time."""
    constants = dict(re.findall(r"(%\w+) = arith\.constant (\d+) : index", function))
    sizes = re.findall(r"stream\.cmd\.copy [^,]+, [^,]+, (%\w+) :", function)
    assert len(sizes) == function.count("stream.cmd.copy")
    return [int(constants[size]) for size in sizes]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_function_is_one_submission(lowering: Lowering) -> None:
    counts = {n: text.count("stream.cmd.execute") for n, text in functions(lowering).items()}
    assert set(DECODER_FUNCTIONS) < set(counts)
    assert set(counts.values()) == {1}, counts


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", DECODER_FUNCTIONS)
def test_no_step_copies_the_cache(lowering: Lowering, name: str) -> None:
    text = functions(lowering)[name]
    assert f"arith.constant {KV_BYTES} : index" in text  # the caches are there, under this size
    assert "clone" not in text
    assert max(copied_bytes(text), default=0) <= KV_BYTES // 64


def test_padding_rows_make_no_claim_of_unique_indices() -> None:
    text = emit(TIED.config, TIED.options("codegen")).mlir
    assert text.count("unique_indices(false)") > 0
    assert "unique_indices(true)" not in text


@pytest.mark.parametrize("name", [*DECODER_FUNCTIONS, "vision_project"])
def test_kernels_copy_nothing_at_all(name: str) -> None:
    text = functions("kernels")[name]
    assert copied_bytes(text) == []
    assert "stream.cmd.fill" not in text


def test_image_rows_are_written_in_place() -> None:
    """vision_project returns its own argument: nothing of the rows' size is allocated."""
    for lowering in LOWERINGS:
        text = functions(lowering)["vision_project"]
        assert "clone" not in text
        assert copied_bytes(text) == []


def test_dispatches_per_layer_of_the_kernels() -> None:
    layers = TIED.config.decoder.num_layers
    counts = {n: t.count("stream.cmd.dispatch") for n, t in functions("kernels").items()}
    assert counts["decode_4"] == 5 * layers + 2
    assert counts["prefill_16"] == 8 * layers + 2
    assert counts["vision_blocks_0"] == 7 * 2

"""Whole small models: what a compiled program must answer, whatever its lowering.

`Invoke` runs a function of the program on host arrays and returns host arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyvlm.emit.layout import NUMPY_DTYPES, Lowering, kv_shape
from pyvlm.emit.program import EmitOptions, EntryPoint, block_groups, entry_points
from pyvlm.models.config import DecoderConfig, ModelConfig, RopeConfig, VisionConfig
from tests.reference.decoder import NumpyDecoder
from tests.reference.ops import Array, Ints
from tests.reference.vision import NumpyTower
from tests.reference.weights import random_weights

Invoke = Callable[..., list[NDArray[Any]]]

# f16 weights are exact in the reference; what is left are the order of sums and keys that round to
# the other neighbour in the f16 cache. Logits of these models reach about 12.
LOGIT_TOLERANCE = {"f16": 1e-3, "f32": 2e-4}
# The int8 kernels round the inputs of each matrix to 15 bits of the largest of their row. A key or
# value may round to the next half because of it.
INT16_INPUTS = 5e-3


@dataclass(frozen=True)
class Model:
    """A shape with its static choices, and the numpy model of the same weights."""

    config: ModelConfig
    num_slots: int
    capacity: int
    chunk: int
    batches: tuple[int, ...]
    kv_dtype: Any = "f16"
    all_logits: bool = False
    contexts: tuple[int, ...] = ()  # of the codegen lowering
    layers_per_group: int | None = None
    weights: dict[str, Array] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", random_weights(self.config, self.capacity))

    def rounding(self, lowering: Lowering) -> float:
        """Added to the tolerances of everything that went through a matrix."""
        is_rounded = lowering == "kernels" and self.config.quantize == "int8"
        return INT16_INPUTS if is_rounded else 0.0

    def options(self, lowering: Lowering) -> EmitOptions:
        return EmitOptions(
            num_slots=self.num_slots,
            capacity=self.capacity,
            lowering=lowering,
            kv_dtype=self.kv_dtype,
            prefill_chunks=(self.chunk,),
            decode_batches=self.batches,
            contexts=self.contexts if lowering == "codegen" else (),
            all_logits=self.all_logits,
            layers_per_group=self.layers_per_group,
        )

    def caches(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Random caches: whatever a step does not write must stay as it is."""
        rng = np.random.default_rng(11)
        shape = kv_shape(self.config.decoder, self.num_slots, self.capacity)
        stored = NUMPY_DTYPES[self.kv_dtype]
        return rng.standard_normal(shape).astype(stored), rng.standard_normal(shape).astype(stored)


TIED = Model(
    ModelConfig(
        "idefics3",
        DecoderConfig(96, 200, 2, 6, 2, 16, 130, tied_head=True, qkv_bias=True),
        VisionConfig(48, 88, 3, 3, 24, 4, 2),
    ),
    num_slots=4,
    capacity=64,
    chunk=16,
    batches=(1, 4),
    layers_per_group=2,
)
UNTIED = Model(
    ModelConfig(
        "llama",
        DecoderConfig(
            40,
            52,
            2,
            3,
            3,
            24,
            77,
            norm_eps=1e-6,
            attention_scale=0.15,
            rope=RopeConfig(
                type="yarn",
                factor=4.0,
                max_position_embeddings=64,
                original_max_position_embeddings=16,
            ),
        ),
        dtype="f32",
    ),
    num_slots=9,
    capacity=40,
    chunk=12,
    batches=(9,),
    kv_dtype="f32",
    all_logits=True,
    contexts=(20, 40),
)
MODELS = {"tied-f16": TIED, "untied-f32": UNTIED}
# Reference weights are those that the levels stand for: arithmetic is all that can differ.
INT8 = {
    "tied-int8": replace(TIED, config=replace(TIED.config, quantize="int8")),
    "untied-int8": replace(UNTIED, config=replace(UNTIED.config, quantize="int8")),
}


@dataclass(frozen=True)
class PrefillCase:
    slot: int
    start: int
    count: int
    image_rows: bool = False


@dataclass(frozen=True)
class DecodeCase:
    slots: tuple[int, ...]
    positions: tuple[int, ...]


PREFILLS = {
    "tied-f16": [
        PrefillCase(2, 0, 16),
        PrefillCase(0, 0, 16, image_rows=True),
        PrefillCase(1, 37, 11, image_rows=True),
        PrefillCase(0, 60, 4),
        PrefillCase(3, 63, 1),
        PrefillCase(3, 0, 1),
    ],
    "untied-f32": [PrefillCase(8, 0, 12), PrefillCase(4, 7, 5, True), PrefillCase(0, 33, 7)],
}
DECODES = {
    "tied-f16": [
        DecodeCase((2,), (0,)),
        DecodeCase((1, 3), (63, 5)),
        DecodeCase((2, 0, 3), (50, 0, 63)),
        DecodeCase((3, 2, 1, 0), (1, 2, 3, 40)),
    ],
    "untied-f32": [DecodeCase((4,), (12,)), DecodeCase(tuple(range(9)), tuple(range(3, 39, 4)))],
}
VALID = [(6, 6), (4, 6), (1, 1), (5, 2)]


def check_prefill(model: Model, lowering: Lowering, invoke: Invoke, case: PrefillCase) -> None:
    rng = np.random.default_rng(case.start)
    d = model.config.decoder
    tokens = rng.integers(0, d.vocab_size, model.chunk).astype(np.int32)
    row_index = np.full(model.chunk, -1, np.int32)
    if case.image_rows:
        row_index[1:5] = [3, 0, 1, 2]
    rows = rng.standard_normal((5 if case.image_rows else 1, d.hidden_size)).astype(np.float32)
    k, v = model.caches()
    end = case.start + case.count
    entry = _entry(entry_points(model.options(lowering))[0], model.chunk, end)
    results = invoke(
        entry.function, tokens, row_index, rows, case.slot, case.start, case.count, k, v
    )

    reference = NumpyDecoder(d, model.weights)
    wanted_k, wanted_v = k.copy(), v.copy()
    x = reference.embed_with_rows(tokens[: case.count], row_index[: case.count], rows)
    slots = np.full(case.count, case.slot, np.int32)
    positions = np.arange(case.start, end, dtype=np.int32)
    x = reference.forward(x, slots, positions, wanted_k, wanted_v)
    logits = reference.logits(x)
    logits = logits if model.all_logits else logits[-1:]
    extra = model.rounding(lowering)
    _check_logits(model, results[0][: len(logits)], logits, extra)
    _check_caches(results[1:], (wanted_k, wanted_v), (k, v), slots, positions, extra)


def check_decode(model: Model, lowering: Lowering, invoke: Invoke, case: DecodeCase) -> None:
    rng = np.random.default_rng(len(case.slots))
    d, count = model.config.decoder, len(case.slots)
    k, v = model.caches()
    entries = entry_points(model.options(lowering))[1]
    entry = _entry(entries, count, max(case.positions) + 1)
    tokens = rng.integers(0, d.vocab_size, count).astype(np.int32)
    slots, positions = np.array(case.slots, np.int32), np.array(case.positions, np.int32)
    padded = [_repeat_first(a, entry.size) for a in (tokens, slots, positions)]
    results = invoke(entry.function, *padded, count, k, v)

    reference = NumpyDecoder(d, model.weights)
    wanted_k, wanted_v = k.copy(), v.copy()
    x = reference.forward(reference.embed(tokens), slots, positions, wanted_k, wanted_v)
    extra = model.rounding(lowering)
    _check_logits(model, results[0][:count], reference.logits(x), extra)
    _check_caches(results[1:], (wanted_k, wanted_v), (k, v), slots, positions, extra)


def check_chunks(model: Model, lowering: Lowering, invoke: Invoke) -> None:
    """A prompt in uneven chunks and two decode steps, each on the caches of the step before."""
    rng = np.random.default_rng(5)
    d, slot, prompt = model.config.decoder, 1, 18
    prefills, decodes = entry_points(model.options(lowering))
    tokens = rng.integers(0, d.vocab_size, prompt + 2).astype(np.int32)
    k, v = model.caches()
    wanted_k, wanted_v = k.copy(), v.copy()
    no_rows = (np.full(model.chunk, -1, np.int32), np.zeros((1, d.hidden_size), np.float32))
    for start, end in ((0, 7), (7, 8), (8, prompt)):
        entry = _entry(prefills, model.chunk, end)
        chunk = np.zeros(model.chunk, np.int32)
        chunk[: end - start] = tokens[start:end]
        logits, k, v = invoke(entry.function, chunk, *no_rows, slot, start, end - start, k, v)
    steps = [logits[end - start - 1 if model.all_logits else 0]]
    for position in (prompt, prompt + 1):
        entry = _entry(decodes, 1, position + 1)
        one = [np.full(entry.size, n, np.int32) for n in (tokens[position], slot, position)]
        logits, k, v = invoke(entry.function, *one, 1, k, v)
        steps.append(logits[0])

    reference = NumpyDecoder(d, model.weights)
    positions = np.arange(prompt + 2, dtype=np.int32)
    slots = np.full(prompt + 2, slot, np.int32)
    x = reference.forward(reference.embed(tokens), slots, positions, wanted_k, wanted_v)
    wanted = reference.logits(x[prompt - 1 :])
    _check_logits(model, np.stack(steps), wanted, model.rounding(lowering))


def check_tower(model: Model, invoke: Invoke, valid: tuple[int, int], extra: float = 0.0) -> None:
    """Each stage, and a tile's rows written in place between those of other tiles."""
    v = model.config.vision
    assert v is not None
    rng = np.random.default_rng(valid[0] * 10 + valid[1])
    patches = rng.standard_normal((v.num_patches, v.patch_dim)).astype(np.float32)
    argument = np.array(valid, np.int32)
    reference = NumpyTower(v, model.weights)
    (hidden,) = invoke("vision_embed", patches, argument)
    wanted = reference.embed(patches, valid)
    np.testing.assert_allclose(hidden, wanted, atol=1e-5 + extra, rtol=1e-5)
    for group, layers in enumerate(block_groups(v, model.layers_per_group)):
        (hidden,) = invoke(f"vision_blocks_{group}", hidden, argument)
        for layer in layers:
            wanted = reference.block(layer, wanted, valid)
        np.testing.assert_allclose(hidden, wanted, atol=1e-4 + extra, rtol=1e-4)
    r = v.rows_per_tile
    rows = rng.standard_normal((3 * r, model.config.decoder.hidden_size)).astype(np.float32)
    (result,) = invoke("vision_project", hidden, rows, 1)
    projected = reference.project(wanted)
    np.testing.assert_allclose(result[r : 2 * r], projected, atol=1e-4 + extra, rtol=1e-4)
    np.testing.assert_array_equal(result[:r], rows[:r])
    np.testing.assert_array_equal(result[2 * r :], rows[2 * r :])


def check_widening(model: Model, invoke: Invoke) -> None:
    """Every finite half, whatever the number of rows."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    width = model.config.decoder.hidden_size
    rows = np.resize(np.concatenate([halves, -halves]), (2 * len(halves) // width + 1, width))
    (result,) = invoke("rows_from_f16", rows)
    np.testing.assert_array_equal(result, rows.astype(np.float32))


def _entry(entries: Sequence[EntryPoint], size: int, context: int) -> EntryPoint:
    """The first that fits; entries ascend."""
    return next(e for e in entries if e.size >= size and e.context >= context)


def _repeat_first(values: Ints, size: int) -> Ints:
    return np.concatenate([values, np.full(size - len(values), values[0], np.int32)])


def _check_logits(model: Model, logits: NDArray[Any], wanted: Array, extra: float) -> None:
    tolerance = LOGIT_TOLERANCE[model.kv_dtype] + extra
    np.testing.assert_allclose(logits, wanted, atol=tolerance, rtol=tolerance)


def _check_caches(
    results: Sequence[NDArray[Any]],
    wanted: Sequence[NDArray[Any]],
    before: Sequence[NDArray[Any]],
    slots: Ints,
    positions: Ints,
    extra: float,
) -> None:
    """Written rows agree to one unit of the cache's type; every other value keeps its bits."""
    untouched = np.ones(before[0].shape, bool)
    untouched[:, slots, :, positions] = False
    tolerance = extra + (2e-3 if before[0].dtype == np.float16 else 1e-4)
    for result, expected, old in zip(results, wanted, before, strict=True):
        np.testing.assert_array_equal(result[untouched], old[untouched])
        np.testing.assert_allclose(
            result.astype(np.float32), expected.astype(np.float32), atol=tolerance, rtol=tolerance
        )

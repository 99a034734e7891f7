"""One small function per graph operation, its inputs and what numpy says about it.

Sizes avoid multiples of 8 and 16 where the operation allows it, so that tails are covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyvlm.emit.builder import INDEX, Argument, Function, Module, tensor
from pyvlm.emit.layout import Lowering, Param, kv_shape, position_table
from pyvlm.emit.ops import Cache, ImageRows, Ops, RmsNorm, Rows, Span
from pyvlm.emit.rope import rope_table
from pyvlm.models.config import DecoderConfig
from tests.reference import ops as reference

DECODER = DecoderConfig(
    hidden_size=40,
    intermediate_size=52,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=50,
    attention_scale=0.3,
)
SLOTS, CAPACITY, CHUNK, BATCH = 3, 48, 16, 3
GRID, WIDTH, VISION_HEADS, SHUFFLE = 6, 24, 3, 2
EPS = 1e-5


@dataclass(frozen=True)
class OpCase:
    """`compare` gets the results of `function` and asserts."""

    name: str
    function: str
    arguments: tuple[Any, ...]
    compare: Callable[[list[NDArray[Any]]], None]


def op_params(lowering: Lowering, weight_dtype: str) -> dict[str, Param]:
    """Parameters of the op functions; `w` and `gate_up` stand for every matrix."""
    kernels = lowering == "kernels"
    d, half = DECODER, "panels" if kernels else "plain"
    matrices = {"embed": (d.vocab_size, 40), "w": (37, 40), "conn": (40, 96)}
    params = [Param(n, shape, weight_dtype, half) for n, shape in matrices.items()]  # type: ignore[arg-type]
    params.append(
        Param("gate_up", (2 * 52, 40), weight_dtype, "gate_up_panels" if kernels else "plain")
    )
    vectors = {"norm": 40, "final_norm": 40, "w_bias": 37, "ln": WIDTH, "ln_bias": WIDTH}
    params += [Param(name, (n,), "f32") for name, n in vectors.items()]
    params += [
        Param("rope", (CAPACITY, d.head_dim), "f32"),
        Param("vision.position", (GRID**2, WIDTH), "f32"),
        Param("vision.position_table", (GRID + 1, GRID), "i32"),
    ]
    return {p.name: p for p in params}


def op_weights(params: dict[str, Param]) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(7)
    weights: dict[str, NDArray[Any]] = {}
    for name, param in params.items():
        value = rng.standard_normal(param.logical) * (0.2 if len(param.logical) > 1 else 1.0)
        stored = {"f16": np.float16, "f32": np.float32, "i32": np.int32}[param.dtype]
        weights[name] = value.astype(stored).astype(np.float32)
    weights["rope"] = rope_table(DECODER.rope, DECODER.head_dim, CAPACITY)
    weights["vision.position_table"] = position_table(GRID)
    return weights


def op_module(ops: Ops, params: dict[str, Param], kv_dtype: str) -> Module:
    module = Module("model", params)
    _linear_functions(module, ops)
    _attention_functions(module, ops, kv_dtype)
    _vision_functions(module, ops)
    return module


def op_cases(weights: dict[str, NDArray[Any]], kv_dtype: str) -> Iterator[OpCase]:
    yield from _linear_cases(weights)
    yield from _attention_cases(weights, kv_dtype)
    yield from _vision_cases(weights)


def _linear_functions(module: Module, ops: Ops) -> None:
    norm = RmsNorm("norm", EPS)

    def function(name: str, rows: int, *more: Argument) -> Function:
        arguments = [Argument("x", tensor("f32", rows, 40)), Argument("count", INDEX), *more]
        return module.function(name, arguments)

    for rows in (3, 13):  # with the norm inside the kernel, and before it
        f = function(f"linear_{rows}", rows, Argument("residual", tensor("f32", rows, 37)))
        x, count = f.argument("x"), f.argument("count")
        residual = f.argument("residual")
        f.result(ops.linear(f, x, "w", count=count, norm=norm, bias="w_bias", residual=residual))
        f = function(f"swiglu_{rows}", rows)
        x, count = f.argument("x"), f.argument("count")
        f.result(ops.linear(f, x, "gate_up", count=count, norm=norm, activation="swiglu"))
    f = function("gelu", 13)
    f.result(ops.linear(f, f.argument("x"), "w", bias="w_bias", activation="gelu_tanh"))
    f = function("row", 13)
    f.result(ops.linear_of_row(f, f.argument("x"), f.argument("count"), "w", norm))
    f = module.function(
        "embed",
        [
            Argument("tokens", tensor("i32", 13)),
            Argument("row_index", tensor("i32", 13)),
            Argument("rows", tensor("f32", None, 40)),
            Argument("count", INDEX),
        ],
    )
    images = ImageRows(f.argument("row_index"), f.argument("rows"))
    f.result(ops.embed(f, f.argument("tokens"), f.argument("count"), images))
    f = module.function(
        "embed_text", [Argument("tokens", tensor("i32", 13)), Argument("count", INDEX)]
    )
    f.result(ops.embed(f, f.argument("tokens"), f.argument("count"), None))


def _attention_functions(module: Module, ops: Ops, kv_dtype: str) -> None:
    d = DECODER
    kv = tensor(kv_dtype, *kv_shape(d, SLOTS, CAPACITY))
    width = (d.num_heads + 2 * d.num_kv_heads) * d.head_dim
    caches = [Argument("k", kv, consume=True), Argument("v", kv, consume=True)]
    qkv = tensor("f32", CHUNK, width)
    scalars = [Argument(name, INDEX) for name in ("slot", "start", "count")]
    f = module.function("attn_prefill", [Argument("qkv", qkv), *scalars, *caches])
    span = Span(f.argument("slot"), f.argument("start"), f.argument("count"))
    cache = Cache(f.argument("k"), f.argument("v"))
    out, cache = ops.attention(f, d, f.argument("qkv"), cache, 1, span, CAPACITY)
    f.result(out, cache.k, cache.v)
    arrays = [Argument(name, tensor("i32", BATCH)) for name in ("slots", "positions")]
    qkv = tensor("f32", BATCH, width)
    f = module.function(
        "attn_decode", [Argument("qkv", qkv), *arrays, Argument("count", INDEX), *caches]
    )
    rows = Rows(f.argument("slots"), f.argument("positions"), f.argument("count"))
    cache = Cache(f.argument("k"), f.argument("v"))
    out, cache = ops.attention(f, d, f.argument("qkv"), cache, 1, rows, CAPACITY)
    f.result(out, cache.k, cache.v)


def _vision_functions(module: Module, ops: Ops) -> None:
    p = GRID**2
    x, valid = Argument("x", tensor("f32", p, WIDTH)), Argument("valid", tensor("i32", 2))
    f = module.function("layer_norm", [x])
    f.result(ops.layer_norm(f, f.argument("x"), "ln", EPS))
    f = module.function("add_position", [x, valid])
    f.result(ops.add_position(f, f.argument("x"), f.argument("valid"), GRID))
    f = module.function("pixel_shuffle", [x])
    f.result(ops.pixel_shuffle(f, f.argument("x"), GRID, SHUFFLE))
    f = module.function("attn_full", [Argument("qkv", tensor("f32", p, 3 * WIDTH)), valid])
    f.result(ops.attention_full(f, f.argument("qkv"), f.argument("valid"), GRID, VISION_HEADS))
    rows = Argument("rows", tensor("f32", None, 40), consume=True)
    f = module.function(
        "into_rows", [Argument("x", tensor("f32", 9, 96)), rows, Argument("first", INDEX)]
    )
    target = f.argument("rows")
    f.result(
        ops.linear_into_rows(
            f, f.argument("x"), "conn", target, f.extent(target), f.argument("first")
        )
    )
    f = module.function("widen", [Argument("rows", tensor("f16", None, 40))])
    f.result(ops.widen(f, f.argument("rows"), f.extent(f.argument("rows"))))


def _linear_cases(w: dict[str, NDArray[Any]]) -> Iterator[OpCase]:
    rng = np.random.default_rng(1)
    for rows, count in ((3, 3), (3, 2), (13, 13), (13, 1), (13, 10)):
        x, residual = _normal(rng, rows, 40), _normal(rng, rows, 37)
        normed = reference.rms_norm(x, w["norm"], EPS)
        expected = normed @ w["w"].T + w["w_bias"] + residual
        yield OpCase(
            f"linear-{rows}-{count}",
            f"linear_{rows}",
            (x, count, residual),
            _close([expected], count),
        )
        expected = reference.swiglu(normed @ w["gate_up"].T)
        yield OpCase(
            f"swiglu-{rows}-{count}", f"swiglu_{rows}", (x, count), _close([expected], count)
        )
    x = _normal(rng, 13, 40)
    expected = reference.gelu_tanh(x @ w["w"].T + w["w_bias"])
    yield OpCase("gelu", "gelu", (x, 13), _close([expected]))
    expected = reference.rms_norm(x, w["norm"], EPS)[6:7] @ w["w"].T
    yield OpCase("row", "row", (x, 6), _close([expected]))
    tokens = rng.integers(0, DECODER.vocab_size, 13).astype(np.int32)
    index = np.full(13, -1, np.int32)
    index[[2, 3, 9]] = [4, 0, 2]
    rows = _normal(rng, 5, 40)
    expected = reference.embed(w["embed"], tokens, index, rows)
    for count in (13, 4, 1):
        yield OpCase(
            f"embed-{count}", "embed", (tokens, index, rows, count), _close([expected], count)
        )
    yield OpCase("embed-text", "embed_text", (tokens, 7), _close([w["embed"][tokens]], 7))


def _attention_cases(w: dict[str, NDArray[Any]], kv_dtype: str) -> Iterator[OpCase]:
    d, rng = DECODER, np.random.default_rng(2)
    width = (d.num_heads + 2 * d.num_kv_heads) * d.head_dim
    stored = np.float16 if kv_dtype == "f16" else np.float32
    shape = kv_shape(d, SLOTS, CAPACITY)
    k, v = (rng.standard_normal(shape).astype(stored) for _ in range(2))
    spans = ((0, 0, CHUNK), (2, 5, 3), (1, 31, CHUNK), (1, 47, 1), (0, 40, 8))
    for slot, start, count in spans:
        qkv = _normal(rng, CHUNK, width)
        qkv[count:] = qkv[count - 1]  # what codegen's embedding makes of padding rows
        positions = np.arange(start, start + count, dtype=np.int32)
        slots = np.full(count, slot, np.int32)
        yield OpCase(
            f"prefill-slot{slot}-{start}+{count}",
            "attn_prefill",
            (qkv, slot, start, count, k, v),
            _attended(w, qkv[:count], slots, positions, k, v),
        )
    for slots, positions in (([2], [0]), ([1, 0, 2], [7, 47, 0]), ([2, 0], [30, 3])):
        count = len(slots)
        qkv = _normal(rng, BATCH, width)
        padded = [np.array(a + [a[0]] * (BATCH - count), np.int32) for a in (slots, positions)]
        qkv[count:] = qkv[count - 1]
        yield OpCase(
            f"decode-{count}",
            "attn_decode",
            (qkv, *padded, count, k, v),
            _attended(w, qkv[:count], padded[0][:count], padded[1][:count], k, v),
        )


def _vision_cases(w: dict[str, NDArray[Any]]) -> Iterator[OpCase]:
    rng = np.random.default_rng(3)
    x = _normal(rng, GRID**2, WIDTH)
    expected = reference.layer_norm(x, w["ln"], w["ln_bias"], EPS)
    yield OpCase("layer_norm", "layer_norm", (x,), _close([expected]))
    expected = reference.pixel_shuffle(x, GRID, SHUFFLE)
    yield OpCase("pixel_shuffle", "pixel_shuffle", (x,), _close([expected]))
    qkv = _normal(rng, GRID**2, 3 * WIDTH)
    for valid in ((6, 6), (4, 6), (1, 1), (5, 2)):
        argument = np.array(valid, np.int32)
        name = f"{valid[0]}x{valid[1]}"
        expected = reference.attend_full(qkv, valid, GRID, VISION_HEADS)
        yield OpCase(f"attn_full-{name}", "attn_full", (qkv, argument), _close([expected]))
        table, position = w["vision.position_table"], w["vision.position"]
        expected = reference.add_position(x, position, table, valid)
        yield OpCase(f"position-{name}", "add_position", (x, argument), _close([expected]))
    x, rows = _normal(rng, 9, 96), _normal(rng, 31, 40)
    for first in (0, 9, 22):
        expected = rows.copy()
        expected[first : first + 9] = x @ w["conn"].T
        yield OpCase(f"into_rows-{first}", "into_rows", (x, rows, first), _close([expected]))
    half = _normal(rng, 5, 40).astype(np.float16)
    yield OpCase("widen", "widen", (half,), _close([half.astype(np.float32)]))


def _normal(rng: np.random.Generator, *shape: int) -> reference.Array:
    return rng.standard_normal(shape).astype(np.float32)


def _close(
    expected: list[NDArray[Any]], count: int | None = None
) -> Callable[[list[NDArray[Any]]], None]:
    def compare(results: list[NDArray[Any]]) -> None:
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result[:count], wanted[:count], atol=2e-5, rtol=2e-5)

    return compare


def _attended(
    w: dict[str, NDArray[Any]],
    qkv: reference.Array,
    slots: reference.Ints,
    positions: reference.Ints,
    k: NDArray[Any],
    v: NDArray[Any],
) -> Callable[[list[NDArray[Any]]], None]:
    """The output, the written rows, and bit-equality of every other row of the cache."""

    def compare(results: list[NDArray[Any]]) -> None:
        wanted_k, wanted_v = k.copy(), v.copy()
        out = reference.attend(DECODER, qkv, w["rope"], 1, slots, positions, wanted_k, wanted_v)
        np.testing.assert_allclose(results[0][: len(qkv)], out, atol=1e-3, rtol=1e-3)
        untouched = np.ones(k.shape, bool)
        untouched[1, slots, :, positions] = False
        for result, wanted, before in ((results[1], wanted_k, k), (results[2], wanted_v, v)):
            np.testing.assert_allclose(
                result.astype(np.float32), wanted.astype(np.float32), atol=1e-6, rtol=1e-3
            )
            np.testing.assert_array_equal(result[untouched], before[untouched])

    return compare

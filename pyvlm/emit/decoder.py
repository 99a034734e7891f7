"""The decoder: prefill chunks and batched decode steps over one shared cache."""

from __future__ import annotations

from pyvlm.emit.builder import INDEX, Argument, Function, Module, TensorType, Value, tensor
from pyvlm.emit.layout import kv_shape
from pyvlm.emit.ops import Cache, ImageRows, Ops, Placement, RmsNorm, Rows, Span
from pyvlm.models.config import DecoderConfig


def kv_type(d: DecoderConfig, num_slots: int, capacity: int, dtype: str) -> TensorType:
    return TensorType(kv_shape(d, num_slots, capacity), dtype)


def prefill(
    module: Module,
    ops: Ops,
    d: DecoderConfig,
    kv: TensorType,
    *,
    name: str,
    chunk: int,
    context: int,
    all_logits: bool,
) -> None:
    """Positions start to start + count of one slot; logits of the last row, or of every row."""
    f = module.function(
        name,
        [
            Argument("tokens", tensor("i32", chunk)),
            Argument("row_index", tensor("i32", chunk)),
            Argument("rows", tensor("f32", None, d.hidden_size)),
            Argument("slot", INDEX),
            Argument("start", INDEX),
            Argument("count", INDEX),
            *_cache_arguments(kv),
        ],
    )
    at = Span(f.argument("slot"), f.argument("start"), f.argument("count"))
    images = ImageRows(f.argument("row_index"), f.argument("rows"))
    x = ops.embed(f, f.argument("tokens"), at.count, images)
    x, cache = _layers(f, ops, d, x, _cache(f), at, context)
    weight, norm = _head(d)
    if all_logits:
        logits = ops.linear(f, x, weight, count=at.count, norm=norm)
    else:
        last = f.op(f"arith.subi {at.count}, {f.constant(1, INDEX)} : index", INDEX, "last")
        logits = ops.linear_of_row(f, x, last, weight, norm)
    f.result(logits, cache.k, cache.v)


def decode(
    module: Module,
    ops: Ops,
    d: DecoderConfig,
    kv: TensorType,
    *,
    name: str,
    batch: int,
    context: int,
) -> None:
    """One position of each of `count` slots. Rows past count repeat row 0 (see the ABI)."""
    f = module.function(
        name,
        [
            Argument("tokens", tensor("i32", batch)),
            Argument("slots", tensor("i32", batch)),
            Argument("positions", tensor("i32", batch)),
            Argument("count", INDEX),
            *_cache_arguments(kv),
        ],
    )
    at = Rows(f.argument("slots"), f.argument("positions"), f.argument("count"))
    x = ops.embed(f, f.argument("tokens"), at.count, None)
    x, cache = _layers(f, ops, d, x, _cache(f), at, context)
    weight, norm = _head(d)
    logits = ops.linear(f, x, weight, count=at.count, norm=norm)
    f.result(logits, cache.k, cache.v)


def _layers(
    f: Function,
    ops: Ops,
    d: DecoderConfig,
    x: Value,
    cache: Cache,
    at: Placement,
    context: int,
) -> tuple[Value, Cache]:
    count = at.count
    for i in range(d.num_layers):
        p = f"layers.{i}"
        bias = f"{p}.qkv_bias" if d.qkv_bias else None
        norm = RmsNorm(f"{p}.norm1", d.norm_eps)
        qkv = ops.linear(f, x, f"{p}.qkv", count=count, norm=norm, bias=bias)
        a, cache = ops.attention(f, d, qkv, cache, i, at, context)
        x = ops.linear(f, a, f"{p}.o", count=count, residual=x)
        norm = RmsNorm(f"{p}.norm2", d.norm_eps)
        u = ops.linear(f, x, f"{p}.gate_up", count=count, norm=norm, activation="swiglu")
        x = ops.linear(f, u, f"{p}.down", count=count, residual=x)
    return x, cache


def _head(d: DecoderConfig) -> tuple[str, RmsNorm]:
    return "embed" if d.tied_head else "head", RmsNorm("final_norm", d.norm_eps)


def _cache_arguments(kv: TensorType) -> list[Argument]:
    return [Argument("k", kv, consume=True), Argument("v", kv, consume=True)]


def _cache(f: Function) -> Cache:
    return Cache(f.argument("k"), f.argument("v"))

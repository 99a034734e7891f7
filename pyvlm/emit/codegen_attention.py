"""Rotary embedding, cache write and attention of the codegen lowering.

Static shapes compute every row, so padding rows repeat the last real one: they write what that row
writes, to the same place, and nothing else in the cache changes.
"""

from __future__ import annotations

from pyvlm.emit import linalg
from pyvlm.emit.builder import I32, INDEX, Function, TensorType, Value, tensor
from pyvlm.emit.linalg import NEGATIVE, generic
from pyvlm.emit.ops import Cache, Placement, Rows, Span
from pyvlm.models.config import DecoderConfig


def attend(
    f: Function,
    d: DecoderConfig,
    qkv: Value,
    cache: Cache,
    layer: int,
    at: Placement,
    context: int,
) -> tuple[Value, Cache]:
    number = f.opaque_index(layer)  # all layers share their executables
    q, cache = _rotate_and_write(f, d, qkv, cache, number, at)
    if isinstance(at, Span):
        out = _prefill(f, d, q, cache, number, at, context)
    else:
        out = _decode(f, d, q, cache, number, at, context)
    return out, cache


def source_row(f: Function, count: Value) -> list[str]:
    """Body lines: %row is the row of loop dimension 0, clamped to the last real one."""
    last = f.once(
        "last_row",
        lambda: f.op(f"arith.subi {count}, {f.constant(1, INDEX)} : index", INDEX, "last"),
    )
    return ["%own = linalg.index 0 : index", f"%row = arith.minui %own, {last} : index"]


def _rotate_and_write(
    f: Function, d: DecoderConfig, qkv: Value, cache: Cache, layer: Value, at: Placement
) -> tuple[Value, Cache]:
    m, dim, kv, half = qkv.shape[0], d.head_dim, d.num_kv_heads, d.head_dim // 2
    slots = f.once("slots", lambda: _slots(f, at, m))
    positions = f.once("positions", lambda: _positions(f, at, m))
    table = f.once("rope_rows", lambda: _rope_rows(f, positions, dim))

    def heads(first: int, count: int) -> Value:
        part = linalg.columns(f, qkv, first * dim, count * dim)
        return linalg.expand(f, part, (m, count, 2, half), "[[0], [1, 2, 3]]")

    q = _rotate(f, heads(0, d.num_heads), table, d.scale)
    k = _rotate(f, heads(d.num_heads, kv), table, 1.0)
    v = linalg.collapse(f, heads(d.num_heads + kv, kv), (m, kv, dim), "[[0], [1], [2, 3]]")
    index = _cache_index(f, slots, positions, layer, kv)
    new_k = _scatter(f, cache.k, linalg.cast(f, k, cache.k.dtype), index)
    new_v = _scatter(f, cache.v, linalg.cast(f, v, cache.v.dtype), index)
    return q, Cache(new_k, new_v)


def _rotate(f: Function, x: Value, table: Value, scale: float) -> Value:
    """x [M, n, 2, D/2] rotated by its row of the table; [M, n, D]."""
    m, n, _, half = x.shape
    body = [
        "%m = linalg.index 0 : index",
        "%n = linalg.index 1 : index",
        "%side = linalg.index 2 : index",
        "%j = linalg.index 3 : index",
        "%zero = arith.constant 0 : index",
        "%one = arith.constant 1 : index",
        f"%half = arith.constant {half} : index",
        "%other_side = arith.subi %one, %side : index",
        f"%other = tensor.extract {x}[%m, %n, %other_side, %j] : {x.type}",
        "%js = arith.addi %j, %half : index",
        f"%cos = tensor.extract {table}[%m, %j] : {table.type}",
        f"%sin = tensor.extract {table}[%m, %js] : {table.type}",
        "%first = arith.cmpi eq, %side, %zero : index",
        "%negated = arith.negf %other : f32",
        "%signed = arith.select %first, %negated, %other : f32",
        "%a = arith.mulf %i0, %cos : f32",
        "%b = arith.mulf %signed, %sin : f32",
        "%c = arith.addf %a, %b : f32",
        f"%scale = arith.constant {scale:.9e} : f32",
        "%r = arith.mulf %c, %scale : f32",
    ]
    out = generic(f, [(x, "m n s j")], x.tensor, "m n s j", body)
    return linalg.collapse(f, out, (m, n, 2 * half), "[[0], [1], [2, 3]]")


def _rope_rows(f: Function, positions: Value, dim: int) -> Value:
    table = f.param("rope")
    body = [
        "%p = arith.index_cast %i0 : i32 to index",
        "%j = linalg.index 1 : index",
        f"%r = tensor.extract {table}[%p, %j] : {table.type}",
    ]
    return generic(f, [(positions, "m")], tensor("f32", positions.shape[0], dim), "m j", body)


def _slots(f: Function, at: Placement, m: int) -> Value:
    if isinstance(at, Rows):
        return _clamped(f, at.slots, at.count)
    slot = f.op(f"arith.index_cast {at.slot} : index to i32", I32)
    return generic(
        f,
        [],
        tensor("i32", m),
        "m",
        ["%z = arith.constant 0 : i32", f"%r = arith.addi {slot}, %z : i32"],
    )


def _positions(f: Function, at: Placement, m: int) -> Value:
    if isinstance(at, Rows):
        return _clamped(f, at.positions, at.count)
    body = [
        *source_row(f, at.count),
        f"%p = arith.addi %row, {at.start} : index",
        "%r = arith.index_cast %p : index to i32",
    ]
    return generic(f, [], tensor("i32", m), "m", body)


def _clamped(f: Function, x: Value, count: Value) -> Value:
    body = [*source_row(f, count), f"%r = tensor.extract {x}[%row] : {x.type}"]
    return generic(f, [], x.tensor, "m", body)


def _cache_index(f: Function, slots: Value, positions: Value, layer: Value, kv: int) -> Value:
    """[M, k, 4]: (layer, slot, kv head, position) of each row's vector."""
    body = [
        "%h = linalg.index 1 : index",
        "%c = linalg.index 2 : index",
        "%head = arith.index_cast %h : index to i32",
        f"%number = arith.index_cast {layer} : index to i32",
        *(f"%c{i} = arith.constant {i} : index" for i in range(3)),
        *(f"%is{i} = arith.cmpi eq, %c, %c{i} : index" for i in range(3)),
        "%a = arith.select %is2, %head, %i1 : i32",
        "%b = arith.select %is1, %i0, %a : i32",
        "%r = arith.select %is0, %number, %b : i32",
    ]
    out = tensor("i32", slots.shape[0], kv, 4)
    return generic(f, [(slots, "m"), (positions, "m")], out, "m h c", body)


def _scatter(f: Function, cache: Value, rows: Value, index: Value) -> Value:
    """Writes rows [M, k, D] in place.

    Indices are not unique: a padding row repeats the last real one, values and place.
    """
    dtype = cache.dtype
    return f.op(
        "iree_linalg_ext.scatter dimension_map = [0, 1, 2, 3] unique_indices(false)"
        f" ins({rows}, {index} : {rows.type}, {index.type}) outs({cache} : {cache.type}) {{\n"
        f"  ^bb0(%new: {dtype}, %old: {dtype}):\n"
        f"    iree_linalg_ext.yield %new : {dtype}\n"
        f"  }} -> {cache.type}",
        cache.type,
        "kv",
    )


def _prefill(
    f: Function, d: DecoderConfig, q: Value, cache: Cache, layer: Value, at: Span, context: int
) -> Value:
    """q [M, n, D] against a static slice of the slot, as batched matrix products per kv head."""
    m, kv, dim = q.shape[0], d.num_kv_heads, d.head_dim
    group = d.num_heads // kv
    stacked = (kv, group * m, dim)
    q = linalg.expand(f, q, (m, kv, group, dim), "[[0], [1, 2], [3]]")
    q = linalg.transpose(f, q, "m h g d", "h g m d")
    q = linalg.collapse(f, q, stacked, "[[0], [1, 2], [3]]")
    keys, values = (_slot_slice(f, c, layer, at.slot, context) for c in (cache.k, cache.v))
    scores = linalg.batch_matmul(f, q, keys, transposed=True)
    scores = linalg.expand(f, scores, (kv, group, m, context), "[[0], [1, 2], [3]]")
    positions = f.once("positions", lambda: _positions(f, at, m))
    mask = f.once("mask", lambda: _causal_mask(f, positions, context))
    body = ["%r = arith.addf %i0, %i1 : f32"]
    scores = generic(f, [(scores, "h g m t"), (mask, "m t")], scores.tensor, "h g m t", body)
    weights, total = linalg.softmax_parts(f, scores)
    weights = linalg.collapse(f, weights, (kv, group * m, context), "[[0], [1, 2], [3]]")
    out = linalg.batch_matmul(f, weights, values, transposed=False)
    out = linalg.expand(f, out, (kv, group, m, dim), "[[0], [1, 2], [3]]")
    body = ["%r = arith.divf %i0, %i1 : f32"]
    target = tensor("f32", m, kv, group, dim)
    out = generic(f, [(out, "h g m d"), (total, "h g m")], target, "m h g d", body)
    return linalg.collapse(f, out, (m, d.num_heads * dim), "[[0], [1, 2, 3]]")


def _slot_slice(f: Function, cache: Value, layer: Value, slot: Value, context: int) -> Value:
    """[k, context, D] in f32."""
    _, _, kv, _, dim = cache.shape
    out = TensorType((kv, context, dim), cache.dtype)
    part = f.op(
        f"tensor.extract_slice {cache}[{layer}, {slot}, 0, 0, 0]"
        f" [1, 1, {kv}, {context}, {dim}] [1, 1, 1, 1, 1] : {cache.type} to {out}",
        out,
        "s",
    )
    return linalg.cast(f, part, "f32")


def _decode(
    f: Function, d: DecoderConfig, q: Value, cache: Cache, layer: Value, at: Rows, context: int
) -> Value:
    """q [B, n, D]; reads the cache by element, because slots are known on the device only."""
    batch, kv, dim = q.shape[0], d.num_kv_heads, d.head_dim
    group = d.num_heads // kv
    q = linalg.expand(f, q, (batch, kv, group, dim), "[[0], [1, 2], [3]]")
    slots = f.once("slots", lambda: _slots(f, at, batch))
    positions = f.once("positions", lambda: _positions(f, at, batch))
    scores_type = tensor("f32", batch, kv, group, context)
    body = [*_cache_element(cache.k, layer, "%i1", 3, 4), *_multiply_add("%i0")]
    scores = generic(
        f,
        [(q, "b h g d"), (slots, "b")],
        scores_type,
        "b h g t",
        body,
        loops="b h g t d",
        init=linalg.fill(f, scores_type, 0.0),
    )
    mask = f.once("mask", lambda: _causal_mask(f, positions, context))
    body = ["%r = arith.addf %i0, %i1 : f32"]
    scores = generic(f, [(scores, "b h g t"), (mask, "b t")], scores_type, "b h g t", body)
    weights, total = linalg.softmax_parts(f, scores)
    body = [*_cache_element(cache.v, layer, "%i1", 4, 3), *_multiply_add("%i0")]
    out = generic(
        f,
        [(weights, "b h g t"), (slots, "b")],
        q.tensor,
        "b h g d",
        body,
        loops="b h g d t",
        init=linalg.fill(f, q.tensor, 0.0),
    )
    body = ["%r = arith.divf %i0, %i1 : f32"]
    out = generic(f, [(out, "b h g d"), (total, "b h g")], q.tensor, "b h g d", body)
    return linalg.collapse(f, out, (batch, d.num_heads * dim), "[[0], [1, 2, 3]]")


def _cache_element(cache: Value, layer: Value, slot: str, t: int, d: int) -> list[str]:
    """Body lines: %x is cache[layer, slot, h, t, d] in f32; t and d are loop numbers."""
    lines = [
        f"%slot_index = arith.index_cast {slot} : i32 to index",
        "%h = linalg.index 1 : index",
        f"%t = linalg.index {t} : index",
        f"%d = linalg.index {d} : index",
    ]
    element = f"tensor.extract {cache}[{layer}, %slot_index, %h, %t, %d] : {cache.type}"
    if cache.dtype == "f32":
        return [*lines, f"%x = {element}"]
    return [*lines, f"%narrow = {element}", f"%x = arith.extf %narrow : {cache.dtype} to f32"]


def _multiply_add(operand: str) -> list[str]:
    return [f"%product = arith.mulf {operand}, %x : f32", "%r = arith.addf %acc, %product : f32"]


def _causal_mask(f: Function, positions: Value, context: int) -> Value:
    """[M, context]: 0 up to the row's position, very negative after it."""
    body = [
        "%p = arith.index_cast %i0 : i32 to index",
        "%t = linalg.index 1 : index",
        "%seen = arith.cmpi ule, %t, %p : index",
        *select_mask("%seen"),
    ]
    return generic(f, [(positions, "m")], tensor("f32", positions.shape[0], context), "m t", body)


def select_mask(condition: str) -> list[str]:
    return [
        "%open = arith.constant 0.0 : f32",
        f"%shut = arith.constant {NEGATIVE:.1e} : f32",
        f"%r = arith.select {condition}, %open, %shut : f32",
    ]

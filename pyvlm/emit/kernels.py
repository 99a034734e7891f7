"""Lowering to native kernels (`csrc/kernels`), reached from IREE executables by symbol.

Kernels get the number of real rows as an operand and compute just those, so one function serves
every batch up to its static size and every chunk up to its static length.
"""

from __future__ import annotations

import math
import struct

from pyvlm.emit.builder import INDEX, Function, Value, tensor
from pyvlm.emit.dispatch import Binding, Scalar, Workgroups, dispatch
from pyvlm.emit.ops import Activation, Cache, ImageRows, Placement, RmsNorm, Rows
from pyvlm.models.config import DecoderConfig

FLAG_NORM, FLAG_RESIDUAL, FLAG_SWIGLU, FLAG_BIAS, FLAG_GELU = 1, 2, 4, 8, 16
MAX_FUSED_NORM_ROWS = 8  # above, the norm is its own dispatch: the prologue repeats per workgroup
NO_SLOT = -1  # SIZE_MAX on the C side: slots and positions come per row
QUERY_BLOCK = 32  # queries of one unit of prefill or full attention
NORM_BLOCK = 16  # rows of one unit of a norm or of the embedding


class KernelOps:
    """Implements `Ops`. `parallelism` is the least number of workgroups of a linear layer."""

    def __init__(self, weight_dtype: str, kv_dtype: str, parallelism: int = 4) -> None:
        self._weight_dtype = weight_dtype
        self._kv_dtype = kv_dtype
        self._parallelism = parallelism

    def embed(self, f: Function, tokens: Value, count: Value, images: ImageRows | None) -> Value:
        table = f.param("embed")
        _, hidden = f.logical("embed")
        # Unused bindings still need a tensor of the right element type.
        index = images.index if images else tokens
        rows: Value | Binding = f.param("final_norm")
        if images:
            rows = Binding(images.rows, (_extent(f, images.rows),))
        (out,) = dispatch(
            f,
            f"pyvlm_embed_{self._weight_dtype}",
            [tokens, index, rows, table],
            [tokens.shape[0], hidden, count, int(images is not None)],
            Workgroups(1, count, NORM_BLOCK),
            outputs=[tensor("f32", tokens.shape[0], hidden)],
        )
        return out

    def linear(
        self,
        f: Function,
        x: Value,
        weight: str,
        *,
        count: Value | None = None,
        norm: RmsNorm | None = None,
        bias: str | None = None,
        activation: Activation = "none",
        residual: Value | None = None,
    ) -> Value:
        if norm is not None and x.shape[0] > MAX_FUSED_NORM_ROWS:
            x, norm = self._rms_norm(f, x, norm, count), None
        n, k = f.logical(weight)
        flags = FLAG_NORM * (norm is not None) | FLAG_RESIDUAL * (residual is not None)
        flags |= FLAG_BIAS * (bias is not None)
        flags |= {"none": 0, "swiglu": FLAG_SWIGLU, "gelu_tanh": FLAG_GELU}[activation]
        (out,) = dispatch(
            f,
            f"pyvlm_linear_{self._weight_dtype}",
            [
                x,
                f.param(norm.weight) if norm else x,
                f.param(weight),
                f.param(bias) if bias else x,
                residual if residual else x,
            ],
            [_rows(x, count), k, n, flags, _bits(norm.eps if norm else 0.0)],
            Workgroups(self._linear_workgroups(n, k)),
            outputs=[tensor("f32", x.shape[0], n // 2 if activation == "swiglu" else n)],
        )
        return out

    def last_row(self, f: Function, x: Value, count: Value) -> Value:
        row = f.op(f"arith.subi {count}, {f.constant(1, INDEX)} : index", INDEX)
        out = tensor("f32", 1, x.shape[1])
        return f.op(
            f"tensor.extract_slice {x}[{row}, 0] [1, {x.shape[1]}] [1, 1] : {x.type} to {out}", out
        )

    def rope_kv(
        self, f: Function, d: DecoderConfig, qkv: Value, cache: Cache, layer: int, at: Placement
    ) -> tuple[Value, Cache]:
        slots, positions, slot, start = self._place(f, at)
        scalars: list[Scalar] = [f.constant(layer, INDEX), at.count, slot, start]
        q, k, v = dispatch(
            f,
            f"pyvlm_rope_kv_{self._kv_dtype}",
            [qkv, cache.k, cache.v, slots, positions, f.param("rope")],
            [*scalars, d.num_heads, d.num_kv_heads, d.head_dim, *_slots_and_capacity(cache)],
            Workgroups(1, at.count, NORM_BLOCK),
            tied=(0, 1, 2),
        )
        return q, Cache(k, v)

    def attention(
        self,
        f: Function,
        d: DecoderConfig,
        q: Value,
        cache: Cache,
        layer: int,
        at: Placement,
        context: int,
    ) -> Value:
        heads = [d.num_heads, d.num_kv_heads, d.head_dim, *_slots_and_capacity(cache)]
        scale, number = _bits(d.scale), f.constant(layer, INDEX)
        out = tensor("f32", q.shape[0], d.num_heads * d.head_dim)
        if context != cache.k.shape[3]:
            raise ValueError("native attention has no context buckets")
        if isinstance(at, Rows):
            (result,) = dispatch(
                f,
                f"pyvlm_attn_decode_{self._kv_dtype}",
                [q, cache.k, cache.v, at.slots, at.positions],
                [number, at.count, *heads, scale],
                Workgroups(d.num_kv_heads, at.count),
                outputs=[out],
            )
        else:
            (result,) = dispatch(
                f,
                f"pyvlm_attn_prefill_{self._kv_dtype}",
                [q, cache.k, cache.v],
                [number, at.slot, at.start, at.count, *heads, scale],
                Workgroups(d.num_kv_heads, at.count, QUERY_BLOCK),
                outputs=[out],
            )
        return result

    def layer_norm(self, f: Function, x: Value, weight: str, eps: float) -> Value:
        m, k = x.shape
        (out,) = dispatch(
            f,
            "pyvlm_layer_norm",
            [x, f.param(weight), f.param(f"{weight}_bias")],
            [m, k, _bits(eps)],
            Workgroups(1, m, NORM_BLOCK),
            outputs=[tensor("f32", m, k)],
        )
        return out

    def attention_full(
        self, f: Function, qkv: Value, valid: Value, grid: int, num_heads: int
    ) -> Value:
        p, width = qkv.shape
        head_dim = width // (3 * num_heads)
        (out,) = dispatch(
            f,
            "pyvlm_attn_full",
            [qkv, valid],
            [p, grid, num_heads, head_dim, _bits(head_dim**-0.5)],
            Workgroups(num_heads, p, QUERY_BLOCK),
            outputs=[tensor("f32", p, num_heads * head_dim)],
        )
        return out

    def add_position(self, f: Function, x: Value, valid: Value, grid: int) -> Value:
        p, width = x.shape
        (out,) = dispatch(
            f,
            "pyvlm_add_position",
            [x, f.param("vision.position"), f.param("vision.position_table"), valid],
            [p, grid, width],
            Workgroups(1, p, NORM_BLOCK),
            tied=(0,),
        )
        return out

    def pixel_shuffle(self, f: Function, x: Value, grid: int, factor: int) -> Value:
        p, width = x.shape
        rows = p // factor**2
        (out,) = dispatch(
            f,
            "pyvlm_pixel_shuffle",
            [x],
            [grid, width, factor],
            Workgroups(1, rows, NORM_BLOCK),
            outputs=[tensor("f32", rows, width * factor**2)],
        )
        return out

    def linear_into_rows(
        self, f: Function, x: Value, weight: str, rows: Value, num_rows: Value, first: Value
    ) -> Value:
        n, k = f.logical(weight)
        (out,) = dispatch(
            f,
            f"pyvlm_linear_rows_{self._weight_dtype}",
            [x, x, f.param(weight), x, x, Binding(rows, (num_rows,))],
            [x.shape[0], k, n, 0, _bits(0.0), first],
            Workgroups(self._linear_workgroups(n, k)),
            tied=(5,),
        )
        return out

    def _rms_norm(self, f: Function, x: Value, norm: RmsNorm, count: Value | None) -> Value:
        m, k = x.shape
        rows = _rows(x, count)
        (out,) = dispatch(
            f,
            "pyvlm_rms_norm",
            [x, f.param(norm.weight)],
            [rows, k, _bits(norm.eps)],
            Workgroups(1, rows, NORM_BLOCK),
            outputs=[tensor("f32", m, k)],
        )
        return out

    def _linear_workgroups(self, n: int, k: int) -> int:
        """Few for a small matrix (each repeats the prologue), more as it grows (balance)."""
        steps = max(1, round(math.sqrt(n * k / 2**19)))
        return min(self._parallelism * steps, -(-n // 16))

    def _place(self, f: Function, at: Placement) -> tuple[Value, Value, Scalar, Scalar]:
        if isinstance(at, Rows):
            return at.slots, at.positions, NO_SLOT, 0
        unused = f.argument("tokens")
        return unused, unused, at.slot, at.start


def _rows(x: Value, count: Value | None) -> Scalar:
    return x.shape[0] if count is None else count


def _slots_and_capacity(cache: Cache) -> tuple[int, int]:
    _, num_slots, _, capacity, _ = cache.k.shape
    return num_slots, capacity


def _extent(f: Function, rows: Value) -> Value:
    zero = f.constant(0, INDEX)
    return f.op(f"tensor.dim {rows}, {zero} : {rows.type}", INDEX, "n")


def _bits(number: float) -> int:
    """The float32 pattern as an integer: scalars cross the kernel ABI as size_t."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)

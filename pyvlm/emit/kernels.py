"""Lowering to native kernels (`csrc/kernels`), reached from IREE executables by symbol.

Kernels get the number of real rows as an operand and compute just those, so one function serves
every batch up to its static size and every chunk up to its static length.
"""

from __future__ import annotations

import math
import struct

from pyvlm.emit.builder import INDEX, Function, Value, tensor
from pyvlm.emit.dispatch import Binding, Output, Scalar, Workgroups, dispatch
from pyvlm.emit.ops import Activation, Cache, ImageRows, Placement, RmsNorm, Rows
from pyvlm.models.config import DecoderConfig

FLAG_NORM, FLAG_RESIDUAL, FLAG_SWIGLU, FLAG_BIAS, FLAG_GELU = 1, 2, 4, 8, 16
# More rows than these: the norm is a dispatch of its own, as each workgroup would repeat it. A q8
# layer shares its rows instead, and keeps the norm.
MAX_FUSED_NORM_ROWS = 8
ROWS_PER_SET = 256  # of a q8 layer: `parallelism` shares each, for every share widens the matrix
QUERY_BLOCK = 32  # queries of one unit of prefill or full attention
NORM_BLOCK = 16  # rows of one unit of a norm or of the embedding


class KernelOps:
    """Implements `Ops`. `parallelism` is the least number of workgroups of a linear layer.

    `weight_type` names the kernels of the matrices: f16, f32 or q8.
    """

    def __init__(self, weight_type: str, kv_dtype: str, parallelism: int = 4) -> None:
        self._weight_type = weight_type
        self._kv_dtype = kv_dtype
        self._parallelism = parallelism

    def embed(self, f: Function, tokens: Value, count: Value, images: ImageRows | None) -> Value:
        table = f.param("embed")
        _, hidden = f.logical("embed")
        # Unused bindings still need a tensor of the right element type.
        index = images.index if images else tokens
        rows: Value | Binding = f.param("final_norm")
        if images:
            rows = Binding(images.rows, (f.extent(images.rows),))
        (out,) = dispatch(
            f,
            f"pyvlm_embed_{self._weight_type}",
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
        if norm is not None and x.shape[0] > MAX_FUSED_NORM_ROWS and not self._shares_rows:
            x, norm = self._rms_norm(f, x, norm, count), None
        n, k = f.logical(weight)
        flags = FLAG_NORM * (norm is not None) | FLAG_RESIDUAL * (residual is not None)
        flags |= FLAG_BIAS * (bias is not None)
        flags |= {"none": 0, "swiglu": FLAG_SWIGLU, "gelu_tanh": FLAG_GELU}[activation]
        (out,) = dispatch(
            f,
            f"pyvlm_linear_{self._weight_type}",
            [
                x,
                f.param(norm.weight) if norm else x,
                f.param(weight),
                f.param(bias) if bias else x,
                residual if residual else x,
            ],
            [_rows(x, count), k, n, flags, _bits(norm.eps if norm else 0.0)],
            self._linear_workgroups(_rows(x, count), x.shape[0], n, k),
            outputs=[tensor("f32", x.shape[0], n // 2 if activation == "swiglu" else n)],
        )
        return out

    def linear_of_row(self, f: Function, x: Value, row: Value, weight: str, norm: RmsNorm) -> Value:
        n, k = f.logical(weight)
        (out,) = dispatch(
            f,
            f"pyvlm_linear_rows_{self._weight_type}",
            [x, f.param(norm.weight), f.param(weight), x, x],
            [1, k, n, FLAG_NORM, _bits(norm.eps), row, 0],
            self._linear_workgroups(1, 1, n, k),
            outputs=[tensor("f32", 1, n)],
        )
        return out

    def attention(
        self,
        f: Function,
        d: DecoderConfig,
        qkv: Value,
        cache: Cache,
        layer: int,
        at: Placement,
        context: int,
    ) -> tuple[Value, Cache]:
        _, num_slots, _, capacity, _ = cache.k.shape
        if context != capacity:
            raise ValueError("native attention has no context buckets")
        number = f.constant(layer, INDEX)
        shape = [d.num_heads, d.num_kv_heads, d.head_dim, num_slots, capacity]
        if isinstance(at, Rows):
            return self._decode_attention(f, d, qkv, cache, [number, at.count, *shape], at)
        return self._prefill_attention(
            f, d, qkv, cache, [number, at.slot, at.start, at.count, *shape], at.count
        )

    def _decode_attention(
        self,
        f: Function,
        d: DecoderConfig,
        qkv: Value,
        cache: Cache,
        scalars: list[Scalar],
        at: Rows,
    ) -> tuple[Value, Cache]:
        """One dispatch: each unit writes and then reads the cache rows of its own kv head."""
        k, v, out = dispatch(
            f,
            f"pyvlm_attn_decode_{self._kv_dtype}",
            [qkv, cache.k, cache.v, at.slots, at.positions, f.param("rope")],
            [*scalars, _bits(d.scale)],
            Workgroups(d.num_kv_heads, at.count),
            outputs=[tensor("f32", qkv.shape[0], d.num_heads * d.head_dim)],
            tied=(1, 2),
        )
        return out, Cache(k, v)

    def _prefill_attention(
        self,
        f: Function,
        d: DecoderConfig,
        qkv: Value,
        cache: Cache,
        scalars: list[Scalar],
        count: Value,
    ) -> tuple[Value, Cache]:
        """Two dispatches: later queries read the keys that earlier rows write."""
        k, v = dispatch(
            f,
            f"pyvlm_kv_write_{self._kv_dtype}",
            [qkv, cache.k, cache.v, f.param("rope")],
            scalars,
            Workgroups(1, count, NORM_BLOCK),
            tied=(1, 2),
        )
        (out,) = dispatch(
            f,
            f"pyvlm_attn_prefill_{self._kv_dtype}",
            [qkv, k, v, f.param("rope")],
            [*scalars, _bits(d.scale)],
            Workgroups(d.num_kv_heads, count, QUERY_BLOCK),
            outputs=[tensor("f32", qkv.shape[0], d.num_heads * d.head_dim)],
        )
        return out, Cache(k, v)

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
            f"pyvlm_linear_rows_{self._weight_type}",
            [x, x, f.param(weight), x, x, Binding(rows, (num_rows,))],
            [x.shape[0], k, n, 0, _bits(0.0), 0, first],
            self._linear_workgroups(x.shape[0], x.shape[0], n, k),
            tied=(5,),
        )
        return out

    def widen(self, f: Function, rows: Value, num_rows: Value) -> Value:
        _, width = rows.tensor.shape
        size = f.op(f"arith.muli {num_rows}, {f.constant(width or 0, INDEX)} : index", INDEX)
        (out,) = dispatch(
            f,
            "pyvlm_rows_from_f16",
            [Binding(rows, (num_rows,))],
            [size],
            Workgroups(1, num_rows, NORM_BLOCK),
            outputs=[Output(tensor("f32", None, width), (num_rows,))],
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

    @property
    def _shares_rows(self) -> bool:
        """Many rows are divided among the workgroups, so each is normed (and quantised) once."""
        return self._weight_type == "q8"

    def _linear_workgroups(self, rows: Scalar, most_rows: int, n: int, k: int) -> Workgroups:
        """Few for a small matrix (each repeats the prologue), more as it grows (balance)."""
        if self._shares_rows and most_rows > MAX_FUSED_NORM_ROWS:
            return Workgroups(self._parallelism, rows, ROWS_PER_SET)
        steps = max(1, round(math.sqrt(n * k / 2**19)))
        if most_rows > MAX_FUSED_NORM_ROWS:
            steps *= 2  # no prologue to repeat
        return Workgroups(min(self._parallelism * steps, -(-n // 16)))


def _rows(x: Value, count: Value | None) -> Scalar:
    return x.shape[0] if count is None else count


def _bits(number: float) -> int:
    """The float32 pattern as an integer: scalars cross the kernel ABI as size_t."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)

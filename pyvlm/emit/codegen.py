"""Lowering to linalg: code for any IREE device, and the reference of the native kernels."""

from __future__ import annotations

from pyvlm.emit import codegen_attention, codegen_vision, linalg
from pyvlm.emit.builder import Function, TensorType, Value, tensor
from pyvlm.emit.layout import scales_of
from pyvlm.emit.linalg import generic
from pyvlm.emit.ops import Activation, Cache, ImageRows, Placement, RmsNorm
from pyvlm.emit.quantize import BLOCK
from pyvlm.models.config import DecoderConfig

_SILU_TIMES_UP = [
    "%one = arith.constant 1.0 : f32",
    "%negated = arith.negf %i0 : f32",
    "%e = math.exp %negated : f32",
    "%den = arith.addf %e, %one : f32",
    "%silu = arith.divf %i0, %den : f32",
    "%r = arith.mulf %silu, %i1 : f32",
]
# 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), with u = sqrt(2/pi) (x + 0.044715 x^3)
_GELU_TANH = [
    "%cubic = arith.constant 0.044715 : f32",
    "%outer = arith.constant -1.5957691216057308 : f32",
    "%one = arith.constant 1.0 : f32",
    "%x2 = arith.mulf %i0, %i0 : f32",
    "%x3 = arith.mulf %x2, %i0 : f32",
    "%t = arith.mulf %x3, %cubic : f32",
    "%inner = arith.addf %i0, %t : f32",
    "%u = arith.mulf %inner, %outer : f32",
    "%e = math.exp %u : f32",
    "%den = arith.addf %e, %one : f32",
    "%r = arith.divf %i0, %den : f32",
]
_ADD = ["%r = arith.addf %i0, %i1 : f32"]


class CodegenOps:
    """Implements `Ops`. Computes all static rows; padding rows repeat the last real one."""

    def embed(self, f: Function, tokens: Value, count: Value, images: ImageRows | None) -> Value:
        table = f.param("embed")
        width = table.shape[1]
        body = [
            *codegen_attention.source_row(f, count),
            "%j = linalg.index 1 : index",
            f"%token_i32 = tensor.extract {tokens}[%row] : {tokens.type}",
            "%token = arith.index_cast %token_i32 : i32 to index",
            f"%stored = tensor.extract {table}[%token, %j] : {table.type}",
        ]
        if table.dtype == "i8":
            body += _dequantized("%stored", f.param(scales_of("embed")), "%token", "%j")
        elif table.dtype != "f32":
            body.append(f"%wide = arith.extf %stored : {table.dtype} to f32")
        if images is not None:
            body += _image_row(images, text=body[-1].split(" = ")[0])
        return generic(f, [], tensor("f32", tokens.shape[0], width), "m j", body)

    def linear(
        self,
        f: Function,
        x: Value,
        weight: str,
        *,
        count: Value | None = None,  # noqa: ARG002
        norm: RmsNorm | None = None,
        bias: str | None = None,
        activation: Activation = "none",
        residual: Value | None = None,
    ) -> Value:
        if norm is not None:
            x = _rms_norm(f, x, norm)
        y = linalg.matmul_transposed(f, x, _matrix(f, weight))
        if bias is not None:
            y = generic(f, [(y, "m n"), (f.param(bias), "n")], y.tensor, "m n", _ADD)
        if activation == "swiglu":
            half = y.shape[1] // 2
            gate, up = linalg.columns(f, y, 0, half), linalg.columns(f, y, half, half)
            y = linalg.elementwise(f, [gate, up], _SILU_TIMES_UP)
        elif activation == "gelu_tanh":
            y = linalg.elementwise(f, [y], _GELU_TANH)
        return y if residual is None else linalg.elementwise(f, [y, residual], _ADD)

    def linear_of_row(self, f: Function, x: Value, row: Value, weight: str, norm: RmsNorm) -> Value:
        out = tensor("f32", 1, x.shape[1])
        text = f"tensor.extract_slice {x}[{row}, 0] [1, {x.shape[1]}] [1, 1] : {x.type} to {out}"
        return self.linear(f, f.op(text, out, "s"), weight, norm=norm)

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
        return codegen_attention.attend(f, d, qkv, cache, layer, at, context)

    def layer_norm(self, f: Function, x: Value, weight: str, eps: float) -> Value:
        width = x.shape[1]
        mean = linalg.reduce_last(f, x, "arith.addf", 0.0)
        mean = linalg.elementwise(f, [mean], _times(1.0 / width))
        body = ["%r = arith.subf %i0, %i1 : f32"]
        centred = generic(f, [(x, "m k"), (mean, "m")], x.tensor, "m k", body)
        scale = _reciprocal_root(f, centred, eps)
        body = [
            "%a = arith.mulf %i0, %i1 : f32",
            "%b = arith.mulf %a, %i2 : f32",
            "%r = arith.addf %b, %i3 : f32",
        ]
        w, b = f.param(weight), f.param(f"{weight}_bias")
        operands = [(centred, "m k"), (scale, "m"), (w, "k"), (b, "k")]
        return generic(f, operands, x.tensor, "m k", body)

    def attention_full(
        self, f: Function, qkv: Value, valid: Value, grid: int, num_heads: int
    ) -> Value:
        return codegen_vision.attend_full(f, qkv, valid, grid, num_heads)

    def add_position(self, f: Function, x: Value, valid: Value, grid: int) -> Value:
        return codegen_vision.add_position(f, x, valid, grid)

    def pixel_shuffle(self, f: Function, x: Value, grid: int, factor: int) -> Value:
        return codegen_vision.pixel_shuffle(f, x, grid, factor)

    def linear_into_rows(
        self, f: Function, x: Value, weight: str, rows: Value, num_rows: Value, first: Value
    ) -> Value:
        del num_rows  # the tensor carries it
        y = self.linear(f, x, weight)
        m, n = y.shape
        return f.op(
            f"tensor.insert_slice {y} into {rows}[{first}, 0] [{m}, {n}] [1, 1]"
            f" : {y.type} into {rows.type}",
            rows.type,
            "rows",
        )

    def widen(self, f: Function, rows: Value, num_rows: Value) -> Value:
        out = TensorType(rows.tensor.shape, "f32")
        init = f.op(f"tensor.empty({num_rows}) : {out}", out, "e")
        body = ["%r = arith.extf %i0 : f16 to f32"]
        return generic(f, [(rows, "m k")], out, "m k", body, init=init)


def _matrix(f: Function, name: str) -> Value:
    """[N, K] in f32 from what the archive has: halves and int8 are widened in the graph."""
    stored = f.param(name)
    if stored.dtype != "i8":
        return linalg.cast(f, stored, "f32")
    body = [
        "%n = linalg.index 0 : index",
        "%k = linalg.index 1 : index",
        *_dequantized("%i0", f.param(scales_of(name)), "%n", "%k"),
    ]
    return generic(f, [(stored, "n k")], TensorType(stored.shape, "f32"), "n k", body)


def _dequantized(level: str, scales: Value, row: str, column: str) -> list[str]:
    """Body lines: %wide is an int8 level times the scale of its block."""
    return [
        f"%block_size = arith.constant {BLOCK} : index",
        f"%block = arith.divui {column}, %block_size : index",
        f"%half = tensor.extract {scales}[{row}, %block] : {scales.type}",
        f"%scale = arith.extf %half : {scales.dtype} to f32",
        f"%level = arith.sitofp {level} : i8 to f32",
        "%wide = arith.mulf %level, %scale : f32",
    ]


def _image_row(images: ImageRows, text: str) -> list[str]:
    """Body lines: %r is the encoder row where the index is not negative, else `text`."""
    index, rows = images.index, images.rows
    return [
        "%none = arith.constant 0 : i32",
        f"%index = tensor.extract {index}[%row] : {index.type}",
        "%is_image = arith.cmpi sge, %index, %none : i32",
        "%safe = arith.maxsi %index, %none : i32",
        "%image_row = arith.index_cast %safe : i32 to index",
        f"%encoded = tensor.extract {rows}[%image_row, %j] : {rows.type}",
        f"%r = arith.select %is_image, %encoded, {text} : f32",
    ]


def _rms_norm(f: Function, x: Value, norm: RmsNorm) -> Value:
    scale = _reciprocal_root(f, x, norm.eps)
    body = ["%a = arith.mulf %i0, %i1 : f32", "%r = arith.mulf %a, %i2 : f32"]
    operands = [(x, "m k"), (scale, "m"), (f.param(norm.weight), "k")]
    return generic(f, operands, x.tensor, "m k", body)


def _reciprocal_root(f: Function, x: Value, eps: float) -> Value:
    """[M]: 1 / sqrt(mean(x^2) + eps)"""
    out = tensor("f32", x.shape[0])
    body = ["%square = arith.mulf %i0, %i0 : f32", "%r = arith.addf %square, %acc : f32"]
    init = linalg.fill(f, out, 0.0)
    total = generic(f, [(x, "m k")], out, "m", body, loops="m k", init=init)
    body = [
        *_times(1.0 / x.shape[1])[:1],
        "%mean = arith.mulf %i0, %factor : f32",
        f"%eps = arith.constant {eps:.9e} : f32",
        "%sum = arith.addf %mean, %eps : f32",
        "%r = math.rsqrt %sum : f32",
    ]
    return linalg.elementwise(f, [total], body)


def _times(factor: float) -> list[str]:
    return [f"%factor = arith.constant {factor:.9e} : f32", "%r = arith.mulf %i0, %factor : f32"]

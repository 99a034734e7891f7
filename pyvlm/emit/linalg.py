"""Building blocks of the codegen lowering: element-wise and reducing loops, matrix products.

Loop dimensions are letters: "m k" names the two dimensions of a [M, K] operand. In a body the
operands are %i0, %i1, ... and the accumulator is %acc; the last line's result is yielded.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyvlm.emit.builder import Function, ScalarType, TensorType, Value, tensor

NEGATIVE = -1.0e30  # below every score, and still finite when another one is added
Operand = tuple[Value, str]


def generic(
    f: Function,
    operands: Sequence[Operand],
    out: TensorType,
    out_dims: str,
    body: Sequence[str],
    *,
    loops: str = "",
    init: Value | None = None,
) -> Value:
    """One linalg.generic. Dimensions of `loops` (default: out_dims) not in out_dims reduce."""
    dims = (loops or out_dims).split()
    target = init or f.op(f"tensor.empty() : {out}", out, "e")
    maps = [_map(dims, operand_dims) for _, operand_dims in operands] + [_map(dims, out_dims)]
    kept = out_dims.split()
    kinds = ['"parallel"' if d in kept else '"reduction"' for d in dims]
    arguments = [f"%i{i}: {value.dtype}" for i, (value, _) in enumerate(operands)]
    arguments.append(f"%acc: {out.dtype}")
    names = ", ".join(str(value) for value, _ in operands)
    types = ", ".join(str(value.type) for value, _ in operands)
    ins = f" ins({names} : {types})" if operands else ""
    lines = [f"    {line}" for line in body]
    result = body[-1].split(" = ")[0]
    text = "\n".join(
        [
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}],"
            f" iterator_types = [{', '.join(kinds)}]}}{ins} outs({target} : {out}) {{",
            f"  ^bb0({', '.join(arguments)}):",
            *lines,
            f"    linalg.yield {result} : {out.dtype}",
            f"  }} -> {out}",
        ]
    )
    return f.op(text, out, "g")


def fill(f: Function, type_: TensorType, number: float) -> Value:
    empty = f.op(f"tensor.empty() : {type_}", type_, "e")
    value = f.constant(number, ScalarType(type_.dtype))
    return f.op(
        f"linalg.fill ins({value} : {type_.dtype}) outs({empty} : {type_}) -> {type_}", type_, "z"
    )


def reduce_last(f: Function, x: Value, op: str, initial: float) -> Value:
    """Reduces the last dimension by `op` (an arith operation of two f32)."""
    dims = [f"d{i}" for i in range(len(x.shape))]
    out = TensorType(x.shape[:-1], "f32")
    return generic(
        f,
        [(x, " ".join(dims))],
        out,
        " ".join(dims[:-1]),
        [f"%r = {op} %i0, %acc : f32"],
        loops=" ".join(dims),
        init=fill(f, out, initial),
    )


def elementwise(f: Function, operands: Sequence[Value], body: Sequence[str]) -> Value:
    """Equal shapes in, f32 out."""
    dims = " ".join(f"d{i}" for i in range(len(operands[0].shape)))
    out = TensorType(operands[0].shape, "f32")
    return generic(f, [(value, dims) for value in operands], out, dims, body)


def cast(f: Function, x: Value, dtype: str) -> Value:
    if x.dtype == dtype:
        return x
    dims = " ".join(f"d{i}" for i in range(len(x.shape)))
    op = "extf" if dtype == "f32" else "truncf"
    body = [f"%r = arith.{op} %i0 : {x.dtype} to {dtype}"]
    return generic(f, [(x, dims)], TensorType(x.shape, dtype), dims, body)


def matmul_transposed(f: Function, x: Value, w: Value) -> Value:
    """x [M, K] times w [N, K] transposed, both f32."""
    out = tensor("f32", x.shape[0], w.shape[0])
    init = fill(f, out, 0.0)
    maps = ", ".join(_map(["m", "n", "k"], dims) for dims in ("m k", "n k", "m n"))
    return f.op(
        f"linalg.matmul indexing_maps = [{maps}] ins({x}, {w} : {x.type}, {w.type})"
        f" outs({init} : {out}) -> {out}",
        out,
        "y",
    )


def batch_matmul(f: Function, a: Value, b: Value, *, transposed: bool) -> Value:
    """a [B, M, K] times b [B, K, N], or [B, N, K] if transposed."""
    columns = b.shape[1] if transposed else b.shape[2]
    out = tensor("f32", a.shape[0], a.shape[1], columns)
    init = fill(f, out, 0.0)
    dims = ["b", "m", "n", "k"]
    right = "b n k" if transposed else "b k n"
    maps = ", ".join(_map(dims, operand) for operand in ("b m k", right, "b m n"))
    return f.op(
        f"linalg.batch_matmul indexing_maps = [{maps}] ins({a}, {b} : {a.type}, {b.type})"
        f" outs({init} : {out}) -> {out}",
        out,
        "y",
    )


def columns(f: Function, x: Value, first: int, count: int) -> Value:
    """x[:, first:first + count]"""
    out = TensorType((x.shape[0], count), x.dtype)
    return f.op(
        f"tensor.extract_slice {x}[0, {first}] [{x.shape[0]}, {count}] [1, 1] : {x.type} to {out}",
        out,
        "s",
    )


def expand(f: Function, x: Value, shape: tuple[int, ...], groups: str) -> Value:
    out = TensorType(shape, x.dtype)
    text = f"tensor.expand_shape {x} {groups} output_shape {list(shape)} : {x.type} into {out}"
    return f.op(text, out, "x")


def collapse(f: Function, x: Value, shape: tuple[int, ...], groups: str) -> Value:
    out = TensorType(shape, x.dtype)
    return f.op(f"tensor.collapse_shape {x} {groups} : {x.type} into {out}", out, "x")


def transpose(f: Function, x: Value, dims: str, out_dims: str, scale: float = 1.0) -> Value:
    """Permutes named dimensions, with an optional factor."""
    order = dims.split()
    out = TensorType(tuple(x.shape[order.index(d)] for d in out_dims.split()), "f32")
    body = [f"%s = arith.constant {scale:.9e} : f32", "%r = arith.mulf %i0, %s : f32"]
    return generic(f, [(x, dims)], out, out_dims, body)


def softmax_parts(f: Function, scores: Value) -> tuple[Value, Value]:
    """exp(scores - max) and its sum over the last dimension; dividing later is cheaper."""
    dims = [f"d{i}" for i in range(len(scores.shape))]
    every, outer = " ".join(dims), " ".join(dims[:-1])
    highest = reduce_last(f, scores, "arith.maximumf", NEGATIVE)
    body = ["%a = arith.subf %i0, %i1 : f32", "%r = math.exp %a : f32"]
    weights = generic(f, [(scores, every), (highest, outer)], scores.tensor, every, body)
    return weights, reduce_last(f, weights, "arith.addf", 0.0)


def _map(dims: Sequence[str], used: str) -> str:
    return f"affine_map<({', '.join(dims)}) -> ({', '.join(used.split())})>"

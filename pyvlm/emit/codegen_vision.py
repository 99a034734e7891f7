"""Attention, positions and pixel shuffle of the tower, in the codegen lowering."""

from __future__ import annotations

from pyvlm.emit import linalg
from pyvlm.emit.builder import Function, TensorType, Value, tensor
from pyvlm.emit.codegen_attention import select_mask
from pyvlm.emit.linalg import generic


def attend_full(f: Function, qkv: Value, valid: Value, grid: int, num_heads: int) -> Value:
    p, width = qkv.shape
    head_dim = width // (3 * num_heads)
    shape = (p, num_heads, head_dim)
    parts = [linalg.columns(f, qkv, i * width // 3, width // 3) for i in range(3)]
    q, k, v = (linalg.expand(f, part, shape, "[[0], [1, 2]]") for part in parts)
    q = linalg.transpose(f, q, "p h d", "h p d", head_dim**-0.5)
    k = linalg.transpose(f, k, "p h d", "h p d")
    v = linalg.transpose(f, v, "p h d", "h p d")
    scores = linalg.batch_matmul(f, q, k, transposed=True)
    mask = f.once("patch_mask", lambda: _patch_mask(f, valid, p, grid))
    body = ["%r = arith.addf %i0, %i1 : f32"]
    scores = generic(f, [(scores, "h p t"), (mask, "t")], scores.tensor, "h p t", body)
    weights, total = linalg.softmax_parts(f, scores)
    out = linalg.batch_matmul(f, weights, v, transposed=False)
    body = ["%r = arith.divf %i0, %i1 : f32"]
    out = generic(f, [(out, "h p d"), (total, "h p")], TensorType(shape, "f32"), "p h d", body)
    return linalg.collapse(f, out, (p, width // 3), "[[0], [1, 2]]")


def add_position(f: Function, x: Value, valid: Value, grid: int) -> Value:
    position, table = f.param("vision.position"), f.param("vision.position_table")
    body = [
        *_patch_is_valid(valid, grid),
        f"%row_i32 = tensor.extract {table}[%num_rows, %y] : {table.type}",
        f"%column_i32 = tensor.extract {table}[%num_columns, %x] : {table.type}",
        "%row = arith.index_cast %row_i32 : i32 to index",
        "%column = arith.index_cast %column_i32 : i32 to index",
        "%first = arith.muli %row, %grid : index",
        "%id_real = arith.addi %first, %column : index",
        "%id = arith.select %real, %id_real, %zero : index",
        "%j = linalg.index 1 : index",
        f"%p = tensor.extract {position}[%id, %j] : {position.type}",
        "%r = arith.addf %i0, %p : f32",
    ]
    return generic(f, [(x, "p j")], x.tensor, "p j", body)


def pixel_shuffle(f: Function, x: Value, grid: int, factor: int) -> Value:
    side, width = grid // factor, x.shape[1]
    x = linalg.expand(f, x, (side, factor, side, factor, width), "[[0, 1, 2, 3], [4]]")
    x = linalg.transpose(f, x, "y i x j c", "y x i j c")
    return linalg.collapse(f, x, (side**2, factor**2 * width), "[[0, 1], [2, 3, 4]]")


def _patch_mask(f: Function, valid: Value, p: int, grid: int) -> Value:
    """[P]: 0 for real patches, very negative for padding."""
    body = [*_patch_is_valid(valid, grid), *select_mask("%real")]
    return generic(f, [], tensor("f32", p), "t", body)


def _patch_is_valid(valid: Value, grid: int) -> list[str]:
    """Body lines: %y, %x place the patch of loop dimension 0; %real says if it is no padding."""
    return [
        "%patch = linalg.index 0 : index",
        f"%grid = arith.constant {grid} : index",
        "%y = arith.divui %patch, %grid : index",
        "%x = arith.remui %patch, %grid : index",
        "%zero = arith.constant 0 : index",
        "%one = arith.constant 1 : index",
        f"%rows_i32 = tensor.extract {valid}[%zero] : {valid.type}",
        f"%columns_i32 = tensor.extract {valid}[%one] : {valid.type}",
        "%num_rows = arith.index_cast %rows_i32 : i32 to index",
        "%num_columns = arith.index_cast %columns_i32 : i32 to index",
        "%in_y = arith.cmpi ult, %y, %num_rows : index",
        "%in_x = arith.cmpi ult, %x, %num_columns : index",
        "%real = arith.andi %in_y, %in_x : i1",
    ]

"""The vision side: SigLIP tower in groups of blocks, pixel shuffle and linear connector.

Every function works on one tile, so memory does not grow with the number of tiles, and the engine
can run decode steps between the groups.
"""

from __future__ import annotations

from pyvlm.emit.builder import INDEX, Argument, Function, Module, Value, tensor
from pyvlm.emit.ops import Ops
from pyvlm.models.config import VisionConfig


def embed(module: Module, ops: Ops, v: VisionConfig) -> None:
    """Patch embedding plus position; [P, 3*p*p] -> [P, Dv]."""
    f = module.function(
        "vision_embed",
        [Argument("patches", tensor("f32", v.num_patches, v.patch_dim)), _valid()],
    )
    x = ops.linear(f, f.argument("patches"), "vision.patch", bias="vision.patch_bias")
    f.result(ops.add_position(f, x, f.argument("valid"), v.grid))


def blocks(module: Module, ops: Ops, v: VisionConfig, group: int, layers: range) -> None:
    """The encoder layers of one group."""
    f = module.function(f"vision_blocks_{group}", [_hidden(v), _valid()])
    x = f.argument("hidden")
    for i in layers:
        x = _block(f, ops, v, f"vision.blocks.{i}", x)
    f.result(x)


def project(module: Module, ops: Ops, v: VisionConfig, hidden_size: int) -> None:
    """Post norm, pixel shuffle, connector; writes the tile's rows in place."""
    rows = Argument("rows", tensor("f32", None, hidden_size), consume=True)
    f = module.function("vision_project", [_hidden(v), rows, Argument("tile", INDEX)])
    x = ops.layer_norm(f, f.argument("hidden"), "vision.post_norm", v.norm_eps)
    x = ops.pixel_shuffle(f, x, v.grid, v.pixel_shuffle)
    per_tile = f.constant(v.rows_per_tile, INDEX)
    first = f.op(f"arith.muli {f.argument('tile')}, {per_tile} : index", INDEX)
    target = f.argument("rows")
    f.result(ops.linear_into_rows(f, x, "vision.connector", target, f.extent(target), first))


def rows_from_f16(module: Module, ops: Ops, hidden_size: int) -> None:
    """Widens half-precision embeddings handed in by a host."""
    f = module.function("rows_from_f16", [Argument("rows", tensor("f16", None, hidden_size))])
    rows = f.argument("rows")
    f.result(ops.widen(f, rows, f.extent(rows)))


def _block(f: Function, ops: Ops, v: VisionConfig, p: str, x: Value) -> Value:
    def linear(name: str, value: Value, residual: Value | None = None, gelu: bool = False) -> Value:
        return ops.linear(
            f,
            value,
            f"{p}.{name}",
            bias=f"{p}.{name}_bias",
            activation="gelu_tanh" if gelu else "none",
            residual=residual,
        )

    qkv = linear("qkv", ops.layer_norm(f, x, f"{p}.norm1", v.norm_eps))
    a = ops.attention_full(f, qkv, f.argument("valid"), v.grid, v.num_heads)
    x = linear("o", a, residual=x)
    h = linear("fc1", ops.layer_norm(f, x, f"{p}.norm2", v.norm_eps), gelu=True)
    return linear("fc2", h, residual=x)


def _hidden(v: VisionConfig) -> Argument:
    return Argument("hidden", tensor("f32", v.num_patches, v.hidden_size))


def _valid() -> Argument:
    return Argument("valid", tensor("i32", 2))

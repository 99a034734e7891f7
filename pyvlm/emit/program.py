"""One module for one checkpoint: which functions exist, and what the manifest says about them."""

from __future__ import annotations

from dataclasses import dataclass

from pyvlm.emit import decoder, vision
from pyvlm.emit.builder import Module
from pyvlm.emit.codegen import CodegenOps
from pyvlm.emit.kernels import KernelOps
from pyvlm.emit.layout import Lowering, parameters
from pyvlm.emit.ops import Ops
from pyvlm.models.config import DType, ModelConfig, VisionConfig

GROUP_FLOPS = 12e9  # one group of encoder blocks: about 100 ms on two cores


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """Static choices of a program. Empty tuples take the lowering's default."""

    num_slots: int
    capacity: int
    lowering: Lowering = "kernels"
    kv_dtype: DType = "f16"
    prefill_chunks: tuple[int, ...] = ()
    decode_batches: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()  # codegen only: kernels attend to what a row has
    all_logits: bool = False
    layers_per_group: int | None = None
    parallelism: int = 4

    def __post_init__(self) -> None:
        if self.num_slots < 1 or self.capacity < 1:
            raise ValueError("num_slots and capacity are at least 1")
        if self.lowering == "kernels" and self.contexts not in ((), (self.capacity,)):
            raise ValueError("context buckets belong to the codegen lowering")
        if any(not 1 <= c <= self.capacity for c in self.contexts + self.prefill_chunks):
            raise ValueError("contexts and chunks lie between 1 and the capacity")
        if any(not 1 <= b <= self.num_slots for b in self.decode_batches):
            raise ValueError("decode batches lie between 1 and the number of slots")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A function of the module; `size` is its chunk or its batch."""

    function: str
    size: int
    context: int


@dataclass(frozen=True, slots=True)
class Program:
    """MLIR text and its entry points; prefill and decode ascend by (size, context)."""

    mlir: str
    prefill: tuple[EntryPoint, ...]
    decode: tuple[EntryPoint, ...]
    num_block_groups: int


def emit(config: ModelConfig, options: EmitOptions) -> Program:
    params = parameters(config, options.lowering, options.capacity)
    module = Module("model", params)
    ops = _ops(config, options)
    prefill_entries, decode_entries = entry_points(options)
    d = config.decoder
    kv = decoder.kv_type(d, options.num_slots, options.capacity, options.kv_dtype)
    for e in prefill_entries:
        decoder.prefill(
            module,
            ops,
            d,
            kv,
            name=e.function,
            chunk=e.size,
            context=e.context,
            all_logits=options.all_logits,
        )
    for e in decode_entries:
        decoder.decode(module, ops, d, kv, name=e.function, batch=e.size, context=e.context)
    groups = 0
    if config.vision is not None:
        groups = _emit_vision(module, ops, config.vision, d.hidden_size, options)
    return Program(module.text(), prefill_entries, decode_entries, groups)


def entry_points(options: EmitOptions) -> tuple[tuple[EntryPoint, ...], tuple[EntryPoint, ...]]:
    """Prefill and decode functions by size, then context."""
    chunks = options.prefill_chunks or (min(256, options.capacity),)
    batches = options.decode_batches
    if not batches:
        small = (1,) if options.lowering == "codegen" else ()
        batches = (*small, options.num_slots)
    contexts = options.contexts or (options.capacity,)

    def entries(kind: str, sizes: tuple[int, ...]) -> tuple[EntryPoint, ...]:
        return tuple(
            EntryPoint(_name(kind, size, context, options.capacity), size, context)
            for size in sorted(set(sizes))
            for context in sorted(set(contexts))
        )

    return entries("prefill", chunks), entries("decode", batches)


def block_groups(v: VisionConfig, layers_per_group: int | None) -> list[range]:
    """Consecutive encoder layers; without a wish, as many as stay under GROUP_FLOPS."""
    per_group = layers_per_group or max(1, int(GROUP_FLOPS // _layer_flops(v)))
    starts = range(0, v.num_layers, per_group)
    return [range(start, min(start + per_group, v.num_layers)) for start in starts]


def _layer_flops(v: VisionConfig) -> float:
    linear = v.hidden_size * (4 * v.hidden_size + 2 * v.intermediate_size)
    return 2.0 * v.num_patches * (linear + 2 * v.num_patches * v.hidden_size)


def _emit_vision(
    module: Module, ops: Ops, v: VisionConfig, hidden_size: int, options: EmitOptions
) -> int:
    groups = block_groups(v, options.layers_per_group)
    vision.embed(module, ops, v)
    for group, layers in enumerate(groups):
        vision.blocks(module, ops, v, group, layers)
    vision.project(module, ops, v, hidden_size)
    vision.rows_from_f16(module, ops, hidden_size)
    return len(groups)


def _ops(config: ModelConfig, options: EmitOptions) -> Ops:
    if options.lowering == "codegen":
        return CodegenOps()
    weights = "q8" if config.quantize == "int8" else config.dtype
    return KernelOps(weights, options.kv_dtype, options.parallelism)


def _name(kind: str, size: int, context: int, capacity: int) -> str:
    return f"{kind}_{size}" if context == capacity else f"{kind}_{size}_c{context}"

"""Compiles a checkpoint with every logit and every layer of the tower visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pyvlm.compile import CompileOptions, compile_module
from pyvlm.emit.layout import Lowering
from pyvlm.emit.program import EmitOptions, EntryPoint, emit
from pyvlm.models.config import ModelConfig, Quantize
from pyvlm.models.parse import parse_config, read_config
from pyvlm.weights.convert import write_parameters
from pyvlm.weights.safetensors_source import SafetensorsSource
from pyvlm.weights.source import TensorSource

Float = Literal["f16", "f32"]
Weights = Literal["f16", "f32", "int8"]


@dataclass(frozen=True, slots=True)
class Variant:
    """How a checkpoint is compiled."""

    lowering: Lowering = "kernels"
    weights: Weights = "f16"
    kv: Float = "f16"

    def __str__(self) -> str:
        kv = "" if self.kv == self.dtype else f", {self.kv} KV"
        return f"{self.lowering} {self.weights}{kv}"

    @property
    def dtype(self) -> Float:
        return "f16" if self.weights == "int8" else self.weights

    @property
    def quantize(self) -> Quantize:
        return "int8" if self.weights == "int8" else "none"


@dataclass(frozen=True, slots=True)
class Size:
    """Static sizes of a program. `contexts` are the buckets of the codegen lowering."""

    capacity: int = 512
    slots: int = 4
    chunks: tuple[int, ...] = (512,)
    batches: tuple[int, ...] = (1, 4)
    contexts: tuple[int, ...] = field(default=())


class InvokesFunctions(Protocol):
    """What `pyvlm._core.Program` offers here."""

    def invoke(self, function: str, args: list[Any]) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled checkpoint on disk."""

    config: ModelConfig
    options: EmitOptions
    prefill: tuple[EntryPoint, ...]
    decode: tuple[EntryPoint, ...]
    num_block_groups: int
    program_path: Path
    archive_path: Path


def build(
    directory: Path,
    folder: Path,
    variant: Variant,
    size: Size,
    *,
    source: TensorSource | None = None,
    raw_config: Mapping[str, Any] | None = None,
) -> Built:
    """Writes model.vmfb and weights.irpa into `folder`. `source` and `raw_config` take the place
    of the directory's own files (GGUF)."""
    config = parse_config(raw_config if raw_config is not None else read_config(directory))
    config = replace(config, dtype=variant.dtype, quantize=variant.quantize)
    options = EmitOptions(
        num_slots=size.slots,
        capacity=size.capacity,
        lowering=variant.lowering,
        kv_dtype=variant.kv,
        prefill_chunks=size.chunks,
        decode_batches=size.batches,
        contexts=size.contexts if variant.lowering == "codegen" else (),
        all_logits=True,
        layers_per_group=1,
    )
    emitted = emit(config, options)
    folder.mkdir(parents=True, exist_ok=True)
    program, archive = folder / "model.vmfb", folder / "weights.irpa"
    flags = CompileOptions(lowering=variant.lowering, quantize=variant.quantize)
    program.write_bytes(compile_module(emitted.mlir, flags))
    archive.unlink(missing_ok=True)
    write_parameters(
        archive,
        config,
        source if source is not None else SafetensorsSource(directory),
        lowering=variant.lowering,
        capacity=size.capacity,
    )
    return Built(
        config,
        options,
        emitted.prefill,
        emitted.decode,
        emitted.num_block_groups,
        program,
        archive,
    )


def open_program(built: Built, threads: int = 0) -> InvokesFunctions:
    from pyvlm import _core

    device = _core.Device("local-task", threads)
    return _core.Program(
        device, str(built.program_path), str(built.archive_path), _model_spec(built)
    )


def _model_spec(built: Built) -> Any:
    from pyvlm import _core

    decoder, vision, options = built.config.decoder, built.config.vision, built.options

    def entries(points: tuple[EntryPoint, ...]) -> list[Any]:
        return [_core.EntryPoint(p.function, p.size, p.context) for p in points]

    tower = None
    if vision is not None:
        tower = _core.VisionSpec(
            num_patches=vision.num_patches,
            grid=vision.grid,
            patch_dim=vision.patch_dim,
            hidden_size=vision.hidden_size,
            rows_per_tile=vision.rows_per_tile,
            num_block_groups=built.num_block_groups,
        )
    return _core.ModelSpec(
        hidden_size=decoder.hidden_size,
        vocab_size=decoder.vocab_size,
        num_layers=decoder.num_layers,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        kv_dtype=options.kv_dtype,
        num_slots=options.num_slots,
        capacity=options.capacity,
        prefill=entries(built.prefill),
        decode=entries(built.decode),
        all_logits=options.all_logits,
        vision=tower,
    )

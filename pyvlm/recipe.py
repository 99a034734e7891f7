"""Everything that decides a bundle, resolved before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyvlm.bundle import ARCHIVE, PROGRAM, record_file
from pyvlm.compile import CompileOptions, check_compiler
from pyvlm.cpu import host_features
from pyvlm.emit.layout import Lowering
from pyvlm.emit.program import EmitOptions, Program, entry_points
from pyvlm.emitter import emitter_version
from pyvlm.errors import PyvlmError
from pyvlm.manifest import (
    SCHEMA,
    DecodeEntry,
    FileRecord,
    KvShape,
    Manifest,
    ModelShape,
    PrefillEntry,
    Target,
    VisionShape,
    canonical,
    fingerprint,
)
from pyvlm.memory import MemoryNeed, Workload, memory_need
from pyvlm.models.capacity import most_tiles, resolve_capacity
from pyvlm.models.config import DType, Quantize
from pyvlm.weights.archive import ArchiveInfo, archive_bytes
from pyvlm.weights.checkpoint import Checkpoint
from pyvlm.weights.convert import parameter_bytes

DEFAULT_NUM_SEQS = 8


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """None takes the default; on a ready bundle it takes what the bundle has."""

    dtype: DType | None = None  # of the weight matrices, f16
    quantize: Quantize | None = None  # of the weight matrices, none: then dtype is the cache's
    kv_dtype: DType | None = None  # as dtype
    max_model_len: int | None = None  # see `pyvlm.models.capacity`
    max_num_seqs: int | None = None
    lowering: Lowering | None = None  # kernels
    target_cpu: str | None = None  # host
    all_logits: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a bundle, resolved."""

    checkpoint: Checkpoint
    emit: EmitOptions
    compile: CompileOptions
    ingredients: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.ingredients)

    def parameter_bytes(self) -> dict[str, int]:
        return parameter_bytes(self.checkpoint.model, self.emit.lowering, self.emit.capacity)

    def memory_need(self) -> MemoryNeed:
        model, emit = self.checkpoint.model, self.emit
        prefill, _ = entry_points(emit)
        workload = Workload(
            lowering=emit.lowering,
            num_slots=emit.num_slots,
            capacity=emit.capacity,
            kv_dtype=emit.kv_dtype,
            chunk=max(entry.size for entry in prefill),
            all_logits=emit.all_logits,
            archive_bytes=archive_bytes(self.parameter_bytes()),
            quantize=model.quantize,
        )
        tiles = most_tiles(model, self.checkpoint.transform(), emit.capacity)
        return memory_need(model, workload, tiles)


def make_recipe(checkpoint: Checkpoint, options: BuildOptions, digest: Callable[[], str]) -> Recipe:
    model = checkpoint.model
    emit_options = EmitOptions(
        num_slots=_num_slots(options),
        capacity=resolve_capacity(model, checkpoint.transform(), options.max_model_len),
        lowering=options.lowering or "kernels",
        kv_dtype=options.kv_dtype or model.dtype,
        all_logits=options.all_logits,
    )
    compile_options = CompileOptions(
        lowering=emit_options.lowering,
        target_cpu=options.target_cpu or "host",
        quantize=model.quantize,
    )
    is_host = compile_options.target_cpu == "host"
    ingredients = {
        "schema": str(SCHEMA),
        "config": canonical(asdict(model)),
        "weights": digest(),
        "files": checkpoint.files_digest(),
        "compiler": check_compiler(),
        "flags": canonical(compile_options.flags()),
        "cpu": canonical(host_features() if is_host else compile_options.target_cpu),
        "emit": canonical(asdict(emit_options)),
        "emitter": emitter_version(),
    }
    return Recipe(checkpoint, emit_options, compile_options, ingredients)


def make_manifest(
    folder: Path,
    recipe: Recipe,
    program: Program,
    archive: ArchiveInfo,
    files: tuple[FileRecord, ...],
    features: tuple[str, ...],
) -> Manifest:
    options, model = recipe.emit, recipe.checkpoint.model
    return Manifest(
        schema=SCHEMA,
        fingerprint=recipe.fingerprint,
        name=recipe.checkpoint.name,
        lowering=options.lowering,
        compiler=recipe.ingredients["compiler"],
        target=Target(recipe.compile.device, recipe.compile.target_cpu, features),
        model=_model_shape(recipe),
        kv=KvShape(options.num_slots, options.capacity, options.kv_dtype),
        prefill=tuple(PrefillEntry(e.function, e.size, e.context) for e in program.prefill),
        decode=tuple(DecodeEntry(e.function, e.size, e.context) for e in program.decode),
        all_logits=options.all_logits,
        vision=None if model.vision is None else _vision_shape(recipe, program),
        weights=record_file(folder / ARCHIVE, archive.sha256),
        program=record_file(folder / PROGRAM),
        checkpoint=files,
        ingredients=recipe.ingredients,
    )


def _model_shape(recipe: Recipe) -> ModelShape:
    model = recipe.checkpoint.model
    d = model.decoder
    return ModelShape(
        family=model.family,
        hidden_size=d.hidden_size,
        vocab_size=d.vocab_size,
        num_layers=d.num_layers,
        num_heads=d.num_heads,
        num_kv_heads=d.num_kv_heads,
        head_dim=d.head_dim,
        dtype=model.dtype,
        quantize=model.quantize,
    )


def _vision_shape(recipe: Recipe, program: Program) -> VisionShape:
    v = recipe.checkpoint.model.vision
    assert v is not None
    return VisionShape(
        num_patches=v.num_patches,
        grid=v.grid,
        patch_dim=v.patch_dim,
        hidden_size=v.hidden_size,
        rows_per_tile=v.rows_per_tile,
        num_block_groups=program.num_block_groups,
    )


def _num_slots(options: BuildOptions) -> int:
    wish = options.max_num_seqs
    if wish is not None and not 1 <= wish <= 256:
        raise PyvlmError(
            f"--max-num-seqs {wish} is outside 1 to 256",
            code="invalid_parameter",
            param="max_num_seqs",
        )
    return DEFAULT_NUM_SEQS if wish is None else wish

"""From a bundle to the native side: device, program, engine."""

from __future__ import annotations

from pyvlm import _core
from pyvlm.bundle import Bundle
from pyvlm.engine_options import EngineOptions
from pyvlm.manifest import Manifest
from pyvlm.picture_stage import row_cache_bytes


def open_program(bundle: Bundle, num_threads: int = 0) -> _core.Program:
    """Loads program and parameters on a device of `num_threads`; 0 is one per core."""
    device = _core.Device("local-task", num_threads)
    spec = model_spec(bundle.manifest)
    return _core.Program(device, str(bundle.program_path), str(bundle.archive_path), spec)


def open_engine(bundle: Bundle, options: EngineOptions) -> _core.Engine:
    """The engine's thread runs until the caller shuts it down."""
    native = _core.EngineOptions(
        step_budget_ms=options.step_budget_ms,
        max_queued=options.max_queued,
        check_invariants=options.check_invariants,
        image_cache_bytes=row_cache_bytes(bundle, options),
    )
    return _core.Engine(open_program(bundle, options.num_threads), native)


def model_spec(manifest: Manifest) -> _core.ModelSpec:
    model, kv, vision = manifest.model, manifest.kv, manifest.vision
    return _core.ModelSpec(
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        kv_dtype="f32" if kv.dtype == "f32" else "f16",
        num_slots=kv.num_slots,
        capacity=kv.capacity,
        prefill=[_core.EntryPoint(e.function, e.chunk, e.context) for e in manifest.prefill],
        decode=[_core.EntryPoint(e.function, e.batch, e.context) for e in manifest.decode],
        all_logits=manifest.all_logits,
        vision=None
        if vision is None
        else _core.VisionSpec(
            num_patches=vision.num_patches,
            grid=vision.grid,
            patch_dim=vision.patch_dim,
            hidden_size=vision.hidden_size,
            rows_per_tile=vision.rows_per_tile,
            num_block_groups=vision.num_block_groups,
        ),
    )

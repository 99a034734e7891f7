"""From what the user calls a model to an opened bundle: found, or compiled and published."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyvlm.bundle import (
    ARCHIVE,
    CHECKPOINT,
    MANIFEST,
    PROGRAM,
    Bundle,
    is_bundle,
    open_bundle,
    record_file,
)
from pyvlm.cache import Cache, publish_directory
from pyvlm.compile import compile_module, target_features
from pyvlm.cpu import relevant_features
from pyvlm.emit.program import emit
from pyvlm.errors import PyvlmError
from pyvlm.files import exists, reading
from pyvlm.manifest import FileRecord
from pyvlm.memory import check_memory
from pyvlm.recipe import BuildOptions, Recipe, make_manifest, make_recipe
from pyvlm.weights.archive import archive_bytes
from pyvlm.weights.checkpoint import Checkpoint, open_checkpoint
from pyvlm.weights.convert import check_checkpoint, write_parameters

__all__ = ["BuildOptions", "Progress", "compile_bundle", "prepare_bundle", "resolve_model"]

TINY = "tiny"
_ASSETS = Path(__file__).parent / "assets"

# (stage, done, total, seconds): stages are hash, wait, compile, weights and, after a bundle was
# made, ready. Bytes for weights; where the total is unknown both counts are 0.
Progress = Callable[[str, int, int, float], None]


def resolve_model(model: str | Path) -> Path:
    """`tiny` is the model in the package; anything else a path."""
    if model == TINY:
        return _ASSETS / TINY
    try:
        path = Path(model).expanduser()
    except RuntimeError:  # no such user
        path = Path(model)
    if not exists(path, "model_not_found"):
        raise PyvlmError(f"no such model: {path}", code="model_not_found", param="model")
    with reading(path, "model_not_found"):
        return path.resolve()


def prepare_bundle(
    model: str | Path,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    *,
    cache: Cache | None = None,
) -> Bundle:
    """Opens a bundle directory, or the cached bundle of a checkpoint, compiled if need be."""
    options = options or BuildOptions()
    report = _Reporter(progress)
    path = resolve_model(model)
    if is_bundle(path):
        bundle = open_bundle(path)
        _check_wishes(bundle, options)
        check_memory(bundle.memory_need())
        return bundle
    cache = cache or Cache()
    checkpoint = open_checkpoint(path, options.dtype or "f16", options.quantize or "none")
    recipe = make_recipe(checkpoint, options, lambda: _digest(checkpoint, cache, report))
    check_memory(recipe.memory_need())
    key = recipe.fingerprint[:40]
    published = cache.find(key)
    if published and (found := _try_open(published, recipe.fingerprint)) is not None:
        return found
    cache.publish(
        key,
        lambda folder: build_bundle(folder, recipe, report),
        lambda folder: _try_open(folder, recipe.fingerprint) is not None,
        num_bytes=archive_bytes(recipe.parameter_bytes()),
        waiting=lambda seconds: report("wait", 0, 0, seconds),
    )
    report.ready()
    return open_bundle(cache.path(key))


def compile_bundle(
    model: str | Path,
    output: Path,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Makes a bundle in `output`, perhaps for another machine than this one."""
    options = options or BuildOptions()
    report = _Reporter(progress)
    path = resolve_model(model)
    if is_bundle(path):
        raise PyvlmError(f"{path} is compiled already", code="invalid_parameter", param="model")
    checkpoint = open_checkpoint(path, options.dtype or "f16", options.quantize or "none")
    recipe = make_recipe(checkpoint, options, checkpoint.source.digest)
    publish_directory(output, lambda folder: build_bundle(folder, recipe, report), MANIFEST)
    report.ready()
    return output


def build_bundle(folder: Path, recipe: Recipe, report: Progress) -> None:
    """Fills the empty directory `folder`; the manifest is written last."""
    model, source = recipe.checkpoint.model, recipe.checkpoint.source
    check_checkpoint(model, source)
    start = time.monotonic()
    program = emit(model, recipe.emit)
    # In the bundle's own folder: what a killed build leaves is swept by the next one.
    vmfb = compile_module(
        program.mlir, recipe.compile, lambda s: report("compile", 0, 0, s), scratch=folder
    )
    (folder / PROGRAM).write_bytes(vmfb)
    report("compile", 1, 1, time.monotonic() - start)
    start = time.monotonic()
    archive = write_parameters(
        folder / ARCHIVE,
        model,
        source,
        lowering=recipe.emit.lowering,
        capacity=recipe.emit.capacity,
        progress=lambda done, total: report("weights", done, total, time.monotonic() - start),
    )
    files = _write_side_files(folder / CHECKPOINT, recipe.checkpoint)
    features = relevant_features(target_features(recipe.compile))
    manifest = make_manifest(folder, recipe, program, archive, files, features)
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def _write_side_files(folder: Path, checkpoint: Checkpoint) -> tuple[FileRecord, ...]:
    folder.mkdir()
    records = []
    for name, content in sorted(checkpoint.files().items()):
        (folder / name).write_bytes(content)
        records.append(record_file(folder / name))
    return tuple(records)


def _try_open(path: Path, expected: str) -> Bundle | None:
    """The bundle, unless it is absent, damaged or another's: then it is to be built."""
    try:
        bundle = open_bundle(path)
    except PyvlmError:
        return None
    return bundle if bundle.manifest.fingerprint == expected else None


def _check_wishes(bundle: Bundle, options: BuildOptions) -> None:
    """A ready bundle cannot be bent: an option that asks for something else is an error."""
    manifest = bundle.manifest
    wishes: dict[str, tuple[Any, Any]] = {
        "dtype": (options.dtype, manifest.model.dtype),
        "quantize": (options.quantize, manifest.model.quantize),
        "kv_dtype": (options.kv_dtype, manifest.kv.dtype),
        "max_model_len": (options.max_model_len, manifest.kv.capacity),
        "max_num_seqs": (options.max_num_seqs, manifest.kv.num_slots),
        "lowering": (options.lowering, manifest.lowering),
        "target_cpu": (options.target_cpu, manifest.target.cpu),
        "all_logits": (options.all_logits or None, manifest.all_logits),
    }
    for name, (wish, has) in wishes.items():
        if wish is not None and wish != has:
            flag = "--" + name.replace("_", "-")
            raise PyvlmError(
                f"{bundle.path} was compiled with {flag} {has}, not {wish}",
                code="program_mismatch",
                param=name,
            )


def _digest(checkpoint: Checkpoint, cache: Cache, report: Progress) -> str:
    report("hash", 0, 0, 0.0)
    return cache.digest(checkpoint.source)


class _Reporter:
    """Calls the user's progress, if any; knows whether anything was built."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._start = time.monotonic()
        self._has_built = False

    def __call__(self, stage: str, done: int, total: int, seconds: float) -> None:
        self._has_built |= stage in ("compile", "weights")
        if self._progress is not None:
            self._progress(stage, done, total, seconds)

    def ready(self) -> None:
        if self._has_built:
            self("ready", 1, 1, time.monotonic() - self._start)

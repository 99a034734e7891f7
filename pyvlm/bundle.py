"""A bundle: program, parameters and the checkpoint's side files under one manifest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pyvlm.compile import COMPILER_VERSION
from pyvlm.cpu import missing_features
from pyvlm.emitter import emitter_version
from pyvlm.errors import PyvlmError
from pyvlm.files import file_digest, is_file, read_if_any, reading
from pyvlm.jsonform import FormError
from pyvlm.manifest import FileRecord, Manifest
from pyvlm.media.settings import load_transform
from pyvlm.memory import MemoryNeed, Workload, memory_need
from pyvlm.models.capacity import most_tiles
from pyvlm.models.config import ModelConfig
from pyvlm.models.parse import parse_config, read_config
from pyvlm.weights.archive import is_archive

MANIFEST, PROGRAM, ARCHIVE, CHECKPOINT = "manifest.json", "model.vmfb", "weights.irpa", "checkpoint"
_MAX_MANIFEST_BYTES = 8 << 20


@dataclass(frozen=True)
class Bundle:
    """An opened, checked bundle directory."""

    path: Path
    manifest: Manifest

    @property
    def program_path(self) -> Path:
        return self.path / self.manifest.program.file

    @property
    def archive_path(self) -> Path:
        return self.path / self.manifest.weights.file

    @property
    def checkpoint_path(self) -> Path:
        """A Hugging Face directory without weights: configuration, tokenizer, preprocessor."""
        return self.path / CHECKPOINT

    @cached_property
    def model(self) -> ModelConfig:
        return parse_config(read_config(self.checkpoint_path))

    def memory_need(self) -> MemoryNeed:
        kv = self.manifest.kv
        workload = Workload(
            lowering="codegen" if self.manifest.lowering == "codegen" else "kernels",
            num_slots=kv.num_slots,
            capacity=kv.capacity,
            kv_dtype=kv.dtype,
            chunk=max(entry.chunk for entry in self.manifest.prefill),
            all_logits=self.manifest.all_logits,
            archive_bytes=self.manifest.weights.bytes,
            quantize="int8" if self.manifest.model.quantize == "int8" else "none",
        )
        vision = self.model.vision
        read = partial(read_if_any, self.checkpoint_path)
        transform = None if vision is None else load_transform(read, vision)
        return memory_need(self.model, workload, most_tiles(self.model, transform, kv.capacity))


def is_bundle(path: Path) -> bool:
    return is_file(path / MANIFEST)


def open_bundle(path: Path) -> Bundle:
    """Checks form, versions, CPU and files.

    program_mismatch: made by or for something else. model_invalid: damaged or truncated.
    """
    manifest = _read_manifest(path)
    _check_versions(path, manifest)
    _check_cpu(path, manifest)
    # Programs and side files are small, and a damaged program is code: always by digest. Weights
    # are large: by size and time, and by digest if the time differs.
    _check_file(path, manifest.program, always_digest=True)
    _check_file(path, manifest.weights)
    for record in manifest.checkpoint:
        _check_file(path / CHECKPOINT, record, always_digest=True)
    archive = path / manifest.weights.file
    with reading(archive):
        if not is_archive(archive):
            raise _damaged(archive, "it is no parameter archive")
    return Bundle(path, manifest)


def record_file(path: Path, sha256: str | None = None) -> FileRecord:
    """`sha256` if it is already known from writing the file."""
    stat = path.stat()
    return FileRecord(path.name, stat.st_size, sha256 or file_digest(path), stat.st_mtime_ns)


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        if file.stat().st_size > _MAX_MANIFEST_BYTES:
            raise _damaged(file, "it is too large")
        return Manifest.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PyvlmError(f"{path} is no bundle: no {MANIFEST}", code="model_not_found") from None
    except FormError as error:
        if "schema" in str(error):
            raise _mismatch(path, str(error)) from error
        raise _damaged(file, str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(file, str(error)) from error


def _check_versions(path: Path, manifest: Manifest) -> None:
    if manifest.compiler != COMPILER_VERSION:
        raise _mismatch(
            path, f"compiled by IREE {manifest.compiler}, installed is {COMPILER_VERSION}"
        )
    if manifest.ingredients.get("emitter") != emitter_version():
        raise _mismatch(path, "made by another version of pyvlm")


def _check_cpu(path: Path, manifest: Manifest) -> None:
    missing = missing_features(manifest.target.features)
    if missing:
        names = ", ".join(feature.removeprefix("+") for feature in missing)
        raise PyvlmError(
            f"{path} was compiled for CPU {manifest.target.cpu!r}; this machine lacks {names}. "
            "Compile it here, or with a portable --target-cpu such as x86-64-v3",
            code="program_mismatch",
        )


def _check_file(folder: Path, record: FileRecord, *, always_digest: bool = False) -> None:
    file = folder / record.file
    if Path(record.file).name != record.file:
        raise _damaged(file, "its name leaves the bundle")
    try:
        stat = file.stat()
    except OSError as error:
        raise _damaged(file, "it is missing") from error
    if stat.st_size != record.bytes:
        raise _damaged(file, f"{stat.st_size} bytes instead of {record.bytes}")
    is_touched = stat.st_mtime_ns != record.mtime_ns
    if (always_digest or is_touched) and file_digest(file) != record.sha256:
        raise _damaged(file, "its content changed")


def _damaged(file: Path, reason: str) -> PyvlmError:
    return PyvlmError(f"{file} is damaged: {reason}; compile it again", code="model_invalid")


def _mismatch(path: Path, reason: str) -> PyvlmError:
    return PyvlmError(f"{path}: {reason}; compile it again", code="program_mismatch")

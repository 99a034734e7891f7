"""manifest.json: what a bundle is, and everything that went into it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyvlm.jsonform import FormError, decode

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Target:
    """`features` are those a CPU needs to run the program (see `pyvlm.cpu`)."""

    device: str
    cpu: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    family: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    quantize: str


@dataclass(frozen=True, slots=True)
class KvShape:
    num_slots: int
    capacity: int
    dtype: str


@dataclass(frozen=True, slots=True)
class PrefillEntry:
    function: str
    chunk: int
    context: int


@dataclass(frozen=True, slots=True)
class DecodeEntry:
    function: str
    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class VisionShape:
    num_patches: int
    grid: int
    patch_dim: int
    hidden_size: int
    rows_per_tile: int
    num_block_groups: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """`mtime_ns` spares hashing at load: a file of this size and time is taken as ours."""

    file: str
    bytes: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`ingredients` are the inputs of the fingerprint; `checkpoint` the copied side files."""

    schema: int
    fingerprint: str
    name: str
    lowering: str
    compiler: str
    target: Target
    model: ModelShape
    kv: KvShape
    prefill: tuple[PrefillEntry, ...]
    decode: tuple[DecodeEntry, ...]
    all_logits: bool
    vision: VisionShape | None
    weights: FileRecord
    program: FileRecord
    checkpoint: tuple[FileRecord, ...]
    ingredients: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Raises FormError for anything but a manifest of this schema that agrees with itself."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormError(f"no JSON: {error}") from error
        if isinstance(raw, Mapping) and raw.get("schema") != SCHEMA:
            raise FormError(f"schema {raw.get('schema')!r}, this version reads {SCHEMA}")
        manifest = decode(Manifest, raw, "manifest")
        if fingerprint(manifest.ingredients) != manifest.fingerprint:
            raise FormError("manifest.fingerprint does not belong to its ingredients")
        return manifest


def fingerprint(ingredients: Mapping[str, str]) -> str:
    """SHA-256 over the sorted ingredients: any difference makes another bundle."""
    return hashlib.sha256(canonical(dict(ingredients)).encode()).hexdigest()


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))

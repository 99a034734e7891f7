"""A model as the user names it: a Hugging Face directory or a GGUF file, behind one face."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.files import exists, is_file, parse_object, read_bytes
from pyvlm.media.settings import load_transform
from pyvlm.media.transform import ImageTransform
from pyvlm.models.config import DType, ModelConfig, Quantize
from pyvlm.models.parse import parse_config, read_config
from pyvlm.weights.source import TensorSource

# What tokenizer, chat template and image processor are read from. A bundle keeps copies, so that
# it runs without the checkpoint.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`side_files` is what lies beside the tensors; None if `source` holds all of it (GGUF)."""

    path: Path
    name: str
    model: ModelConfig
    source: TensorSource
    side_files: Mapping[str, bytes] | None

    def files(self) -> Mapping[str, bytes]:
        """Configuration, tokenizer and templates as a Hugging Face directory has them."""
        return gguf_files(self.path) if self.side_files is None else self.side_files

    def files_digest(self) -> str:
        total = hashlib.sha256()
        for name, content in sorted((self.side_files or {}).items()):
            total.update(f"{name}\0{len(content)}\0".encode())
            total.update(content)
        return total.hexdigest()

    def transform(self) -> ImageTransform | None:
        """The image side's preprocessing; None for a text model."""
        vision = self.model.vision
        return None if vision is None else load_transform(self._object, vision)

    def _object(self, name: str) -> Mapping[str, Any]:
        content = (self.side_files or {}).get(name)
        return {} if content is None else parse_object(content, name)


def open_checkpoint(path: Path, dtype: DType = "f16", quantize: Quantize = "none") -> Checkpoint:
    """Reads headers and configuration, no weights. `path` is a directory or a .gguf file."""
    if not exists(path, "model_not_found"):
        raise PyvlmError(f"no such model: {path}", code="model_not_found")
    if path.is_dir():
        from pyvlm.weights.safetensors_source import SafetensorsSource

        model = replace(parse_config(read_config(path)), dtype=dtype, quantize=quantize)
        source: TensorSource = SafetensorsSource(path)
        return Checkpoint(path, path.name, model, source, _read_side_files(path))
    if path.suffix.lower() != ".gguf" or not is_file(path):
        raise PyvlmError(f"{path} is neither a directory nor a .gguf file", code="model_not_found")
    from pyvlm.weights.gguf_config import to_config
    from pyvlm.weights.gguf_file import GgufFile

    file = GgufFile(path)
    model = replace(parse_config(to_config(file)), dtype=dtype, quantize=quantize)
    return Checkpoint(path, path.stem, model, file, None)


def gguf_files(path: Path) -> dict[str, bytes]:
    """The side files that a GGUF file stands for."""
    from pyvlm.weights.gguf_config import to_config, to_generation_config
    from pyvlm.weights.gguf_file import GgufFile
    from pyvlm.weights.gguf_tokenizer import build_tokenizer, tokenizer_config

    file = GgufFile(path)
    tokenizer = build_tokenizer(file.metadata)
    objects = {
        "config.json": to_config(file),
        "generation_config.json": to_generation_config(file.metadata),
        "tokenizer_config.json": tokenizer_config(file.metadata),
    }
    files = {name: json.dumps(value, indent=2).encode() for name, value in objects.items()}
    files["tokenizer.json"] = tokenizer.to_str().encode()
    return files


def _read_side_files(directory: Path) -> dict[str, bytes]:
    paths = [directory / name for name in SIDE_FILES]
    return {path.name: read_bytes(path) for path in paths if is_file(path)}

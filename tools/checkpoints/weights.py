"""Writes tensors to one safetensors file or to several with an index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file

from tools.checkpoints.shapes import StoredType

# The names under which safetensors takes raw bytes.
_NAMES: dict[StoredType, str] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def to_stored(values: NDArray[np.float32], stored: StoredType) -> NDArray[np.generic]:
    """The bytes of `values` in the stored type; bf16, which numpy lacks, as u16 bit patterns."""
    if stored == "f32":
        return np.ascontiguousarray(values)
    if stored == "f16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # nearest even
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _write_file(path: Path, tensors: dict[str, NDArray[np.generic]], stored: StoredType) -> None:
    specs = {
        name: TensorSpec(
            dtype=_NAMES[stored],
            shape=list(array.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in tensors.items()
    }
    serialize_file(specs, str(path), metadata={"format": "pt"})


def write_weights(
    directory: Path, tensors: dict[str, NDArray[np.generic]], stored: StoredType, shards: int = 1
) -> None:
    if shards == 1:
        _write_file(directory / "model.safetensors", tensors, stored)
        return
    weight_map: dict[str, str] = {}
    order = list(tensors)
    for number in range(1, shards + 1):
        names = order[(number - 1) * len(order) // shards : number * len(order) // shards]
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        _write_file(directory / file, {name: tensors[name] for name in names}, stored)
        weight_map |= dict.fromkeys(names, file)
    size = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

"""The header of a GGUF file: metadata and where each tensor lies.

The `gguf` package keeps an array object per value, which takes seconds for a vocabulary of 49,152
tokens; here the header is parsed once, front to back. Types and dequantisation are the package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from pyvlm.errors import PyvlmError
from pyvlm.weights.source import Array

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<?",
}
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` as numpy has it (rows first); `data` is [rows, bytes of a row], mapped."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: Array


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufHeader:
    """Raises model_invalid for anything that is not a whole, well-formed file."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _Reader(data).read()
    except OSError as error:
        raise PyvlmError(f"cannot read {path}: {error}", code="model_not_found") from error
    except (ValueError, struct.error, OverflowError) as error:
        raise PyvlmError(
            f"{path} is damaged or not a GGUF file: {error}", code="model_invalid"
        ) from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self) -> GgufHeader:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        if (version := self._scalar("<I")) not in _VERSIONS:
            raise ValueError(f"version {version} is not supported")
        num_tensors, num_values = self._scalar("<Q"), self._scalar("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            if key in metadata:
                raise ValueError(f"key {key} twice")
            metadata[key] = self._value(self._type())
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r}")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in infos:
            if name in tensors:
                raise ValueError(f"tensor {name} twice")
            tensors[name] = self._tensor(name, shape, kind, base + offset)
        return GgufHeader(metadata, tensors)

    def _tensor(
        self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, begin: int
    ) -> GgufTensor:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        columns = math.prod(shape[1:]) if len(shape) > 1 else 1
        in_row = columns if len(shape) > 1 else shape[0]
        if in_row % block:
            raise ValueError(f"rows of tensor {name} are no multiple of {block}")
        size = math.prod(shape) // block * block_bytes
        if begin + size > len(self._data):
            raise ValueError(f"tensor {name} lies beyond the end of the file")
        raw = np.frombuffer(self._data, np.uint8, size, begin)
        return GgufTensor(name, shape, kind, raw.reshape(shape[0] if columns > 1 else 1, -1))

    def _tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        num_dims = self._scalar("<I")
        if not 1 <= num_dims <= 4:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        dims = [self._scalar("<Q") for _ in range(num_dims)]
        if min(dims) < 1:
            raise ValueError(f"tensor {name} is empty")
        kind = GGMLQuantizationType(self._scalar("<I"))
        return name, tuple(reversed(dims)), kind, self._scalar("<Q")

    def _value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind != GGUFValueType.ARRAY:
            return self._scalar(_SCALARS[kind])
        inner, count = self._type(), self._scalar("<Q")
        if inner == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        if inner == GGUFValueType.STRING:
            return [self._string() for _ in range(count)]
        layout = _SCALARS[inner]
        return list(
            struct.unpack(f"<{count}{layout[1]}", self._take(count * struct.calcsize(layout)))
        )

    def _type(self) -> GGUFValueType:
        return GGUFValueType(self._scalar("<I"))

    def _string(self) -> str:
        return self._take(self._scalar("<Q")).decode("utf-8")

    def _scalar(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, count: int) -> bytes:
        """The next bytes; checked first, so that no count in the file can ask for memory."""
        end = self._at + count
        if end > len(self._data):
            raise ValueError("it ends early")
        part = self._data[self._at : end]
        self._at = end
        return part

"""Tensors of a directory with model.safetensors, or with shards and their index."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from pyvlm.errors import PyvlmError
from pyvlm.files import file_digest, file_identity, is_file, read_object, reading
from pyvlm.weights.source import Array, TensorInfo

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: Mapping[str, type[np.generic]] = {
    "F16": np.float16,
    "F32": np.float32,
    "BF16": np.uint16,  # widened by hand: the upper half of a float32
}


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsSource:
    """Maps the files, so that memory holds just the rows asked for."""

    def __init__(self, directory: Path) -> None:
        self._files = _files(directory)
        self._places: dict[str, _Place] = {}
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}
        for file, names in self._files.items():
            self._add(file, names)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(place.shape, place.dtype) for name, place in self._places.items()
        }

    def rows(self, name: str, start: int, stop: int) -> Array:
        place = self._places[name]
        dtype = np.dtype(_DTYPES[place.dtype])
        data = self._map(place.file)[place.begin : place.end].view(dtype)
        rows = data.reshape(place.shape[0], -1)[start:stop]
        if place.dtype == "BF16":
            return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return np.asarray(rows)

    def label(self, name: str) -> str:
        return name

    def digest(self) -> str:
        total = hashlib.sha256()
        for file in self._files:
            total.update(bytes.fromhex(file_digest(file)))
        return total.hexdigest()

    def identity(self) -> tuple[tuple[str, int, int], ...]:
        return tuple(file_identity(file) for file in self._files)

    def _add(self, file: Path, names: frozenset[str] | None) -> None:
        header, base = _read_header(file)
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in self._places:
                other = self._places[name].file.name
                raise _invalid(f"tensor {name} is in both {other} and {file.name}")
            self._places[name] = _place(file, name, entry, base)
        absent = sorted((names or frozenset()) - header.keys())
        if absent:
            raise PyvlmError(
                f"{INDEX} puts tensor {absent[0]} into {file.name}, which does not hold it",
                code="missing_tensor",
            )

    def _map(self, file: Path) -> np.memmap[Any, np.dtype[np.uint8]]:
        if file not in self._maps:
            with reading(file):
                self._maps[file] = np.memmap(file, np.uint8, mode="r")
        return self._maps[file]


def _files(directory: Path) -> dict[Path, frozenset[str] | None]:
    """The files to read, with the tensors that the index promises in each."""
    index = directory / INDEX
    if not is_file(index):
        single = directory / SINGLE
        if not is_file(single):
            raise PyvlmError(
                f"{directory} holds neither {SINGLE} nor {INDEX}", code="model_invalid"
            )
        return {single: None}
    try:
        weight_map = read_object(index)["weight_map"]
        shards: dict[str, set[str]] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str):
                raise TypeError(f"{name} lies in {shard!r}")
            shards.setdefault(shard, set()).add(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _invalid(f"{index} is no index of shards ({error!r})") from error
    for shard in shards:
        if Path(shard).name != shard:
            raise _invalid(f"{INDEX} names {shard!r}, which is not a file of {directory}")
        if not is_file(directory / shard):
            message = f"{directory / shard} is missing ({len(shards[shard])} tensors of {INDEX})"
            raise PyvlmError(message, code="missing_tensor")
    return {directory / shard: frozenset(shards[shard]) for shard in sorted(shards)}


def _read_header(file: Path) -> tuple[dict[str, Any], int]:
    """The header and the offset of the data; safetensors checks ranges and the file's length."""
    try:
        with reading(file):
            with safe_open(str(file), framework="numpy"):
                pass
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
    except (SafetensorError, ValueError, RecursionError, struct.error) as error:
        raise _invalid(f"{file} is damaged or not a safetensors file: {error}") from error
    return dict(header), 8 + length


def _place(file: Path, name: str, entry: Mapping[str, Any], base: int) -> _Place:
    dtype = entry["dtype"]
    if dtype not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise PyvlmError(
            f"tensor {name} is stored as {dtype}; supported: {known}", code="model_unsupported"
        )
    begin, end = entry["data_offsets"]
    return _Place(file, dtype, tuple(entry["shape"]), base + begin, base + end)


def _invalid(message: str) -> PyvlmError:
    return PyvlmError(message, code="model_invalid")

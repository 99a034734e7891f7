"""Writing an IREE parameter archive (.irpa, version 0) front to back in one pass.

All sizes are known before the first byte of data, so header, entry table and names go first and
the tensors follow as they are produced: memory holds one block at a time, and the digest of the
whole file is ready when it is closed.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from pyvlm.weights.source import Array

MAGIC = b"IRPA"
ALIGNMENT = 64  # of each entry: a cache line, and what vector loads may assume
_PAGE = 4096
# magic, version major and minor, header size, next header, flags; entry count; then offset and
# length of the entry table, the names and the data, all from the start of the file.
_HEADER = struct.Struct("<4sHHQQQ Q QQ QQ QQ")
# entry size, type and its padding (the struct is packed: none), flags, name, metadata, minimum
# alignment; then offset and length of the data within the data segment.
_ENTRY = struct.Struct("<QIQ QQ QQ Q QQ")
_ENTRY_STRIDE = -(-_ENTRY.size // 16) * 16
_DATA_ENTRY = 2


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    num_bytes: int
    sha256: str


class ArchiveWriter:
    """Entries are written in the order of `sizes` (bytes by name), each in blocks.

    A context manager: leaving it normally checks that every byte was written, and syncs.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int]) -> None:
        self._sizes = list(sizes.items())
        self._next = 0  # index of the entry to write
        self._digest = hashlib.sha256()
        self._position = 0
        self._file: BinaryIO = path.open("xb")
        try:
            self._write(_preamble(self._sizes))
        except BaseException:
            self._file.close()
            raise

    @property
    def info(self) -> ArchiveInfo:
        """Of the complete file: valid once the writer is closed."""
        return ArchiveInfo(self._position, self._digest.hexdigest())

    def add(self, name: str, blocks: Iterable[Array]) -> None:
        expected, size = self._sizes[self._next]
        if name != expected:
            raise ValueError(f"entry {name!r} is out of order, {expected!r} is next")
        start = self._position
        for block in blocks:
            self._write(block.data.cast("B"))
        if self._position - start != size:
            raise ValueError(f"{name}: {self._position - start} bytes written, {size} declared")
        self._write(bytes(-self._position % ALIGNMENT))
        self._next += 1

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file as file:
            if kind is None:
                if self._next != len(self._sizes):
                    raise ValueError(f"entry {self._sizes[self._next][0]!r} was not written")
                file.flush()
                os.fsync(file.fileno())

    def _write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._file.write(data)
        self._position += len(data)


def archive_bytes(sizes: Mapping[str, int]) -> int:
    """Size of the file that `ArchiveWriter` makes."""
    return len(_preamble(list(sizes.items()))) + sum(_aligned(size) for size in sizes.values())


def is_archive(path: Path) -> bool:
    """Whether the file starts like one of ours and is as long as its header says."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) != _HEADER.size:
        return False
    magic, major, *_, offset, length = _HEADER.unpack(head)
    return magic == MAGIC and major == 0 and bool(path.stat().st_size == offset + length)


def _preamble(sizes: list[tuple[str, int]]) -> bytes:
    names = [name.encode() for name, _ in sizes]
    table_begin = -(-_HEADER.size // 16) * 16
    table_bytes = _ENTRY_STRIDE * len(sizes)
    names_begin = table_begin + table_bytes
    names_bytes = sum(len(name) for name in names)
    data_begin = -(-(names_begin + names_bytes) // _PAGE) * _PAGE
    table, name_offset, data_offset = bytearray(), 0, 0
    for name, (_, size) in zip(names, sizes, strict=True):
        head = (_ENTRY.size, _DATA_ENTRY, 0, name_offset, len(name), 0, 0, ALIGNMENT)
        table += _ENTRY.pack(*head, data_offset, size).ljust(_ENTRY_STRIDE, b"\0")
        name_offset += len(name)
        data_offset += _aligned(size)
    segments = (table_begin, table_bytes, names_begin, names_bytes, data_begin, data_offset)
    header = _HEADER.pack(MAGIC, 0, 0, _HEADER.size, 0, 0, len(sizes), *segments)
    body = header.ljust(table_begin, b"\0") + bytes(table) + b"".join(names)
    return body.ljust(data_begin, b"\0")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

"""PNG: the list of chunks, and a file cut down to those that make the pixels.

The library leaves missing rows at zero without a word. Where the last row is zero after decoding,
the compressed data is inflated once more, in constant memory, and counted against what the header
demands.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pyvlm.media.corrupt import CorruptImageError

MAX_CHUNKS = 65_536

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# (first column, first row, column step, row step) of the passes of an interlaced picture.
_ADAM7 = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
    (0, 1, 1, 2),
)  # fmt: skip
_INPUT_STEP = 1 << 14  # bytes fed to zlib at once; what is left over of them is copied each time
_OUTPUT_STEP = 1 << 18

Key = tuple[int, int, int]


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start, size) of each chunk; the last one may reach beyond the data.

    The picture ends with IEND: what lies behind it is not read.
    """
    at, kind = len(SIGNATURE), b""
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data) or kind == b"IEND":
            return
        (size,) = struct.unpack_from(">I", data, at)
        yield (kind := data[at + 4 : at + 8]), at + 8, size
        at += 12 + size
    raise ValueError("too many chunks")


@dataclass(frozen=True, slots=True)
class BarePng:
    file: bytes  # IHDR, PLTE, tRNS, one IDAT, IEND
    header: bytes
    compressed: bytes
    deep_key: Key | None  # transparent colour of a 16-bit RGB picture: the library cannot apply it

    @property
    def is_interlaced(self) -> bool:
        return self.header[12] != 0

    def require_all_rows(self) -> None:
        """Raises if inflated data has fewer bytes than all rows take."""
        _require_bytes(self.compressed, _raw_size(self.header))


def bare_png(data: bytes) -> BarePng:
    """The picture without anything but its pixels; checksums are right, rows not counted yet."""
    kept, pixels = _pixel_chunks(data)
    header = kept.get(b"IHDR")
    if header is None or len(header) != 13 or not pixels:
        raise CorruptImageError("has no header or no pixels")
    depth, colour = header[8], header[9]
    compressed = b"".join(pixels)
    deep_key = None
    if b"tRNS" in kept and colour in (0, 2):
        key = _transparent_key(kept.pop(b"tRNS"), depth, colour)
        if (depth, colour) == (16, 2):
            deep_key = key[0], key[1], key[2]
        else:
            kept[b"tRNS"] = struct.pack(f">{len(key)}H", *key)
    file = SIGNATURE + b"".join(_chunk(kind, body) for kind, body in kept.items())
    file += _chunk(b"IDAT", compressed) + _chunk(b"IEND", b"")
    return BarePng(file, header, compressed, deep_key)


def _pixel_chunks(data: bytes) -> tuple[dict[bytes, bytes], list[memoryview]]:
    view = memoryview(data)
    kept: dict[bytes, bytes] = {}
    pixels: list[memoryview] = []
    for kind, start, size in chunks(data):
        if pixels and kind != b"IDAT":
            break  # the parts of the pixels follow each other
        if kind not in (b"IHDR", b"PLTE", b"tRNS", b"IDAT"):
            continue
        body = view[start : start + size]
        if len(body) < size or start + size + 4 > len(data):
            raise CorruptImageError("is truncated")
        (checksum,) = struct.unpack_from(">I", data, start + size)
        if zlib.crc32(body, zlib.crc32(kind)) != checksum:
            raise CorruptImageError("has a wrong checksum")
        if kind == b"IDAT":
            pixels.append(body)
        elif kind not in kept:
            kept[kind] = bytes(body)
    return kept, pixels


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(body)), kind, body, struct.pack(">I", checksum)))


def _transparent_key(body: bytes, depth: int, colour: int) -> tuple[int, ...]:
    """The transparent colour in the levels that the library decodes to."""
    count = 1 if colour == 0 else 3
    if len(body) < 2 * count:
        raise CorruptImageError("has a short transparent colour")
    spread = {1: 1, 2: 85, 4: 17}.get(depth, 1)
    mask = (1 << depth) - 1
    return tuple((value & mask) * spread for value in struct.unpack_from(f">{count}H", body))


def _require_bytes(compressed: bytes, needed: int) -> None:
    seen = 0
    inflater = zlib.decompressobj()
    try:
        for at in range(0, len(compressed), _INPUT_STEP):
            rest = compressed[at : at + _INPUT_STEP]
            while rest:
                seen += len(inflater.decompress(rest, _OUTPUT_STEP))
                if seen >= needed:
                    return
                rest = inflater.unconsumed_tail
            if inflater.eof:
                break
        seen += len(inflater.flush())
    except zlib.error:
        raise CorruptImageError("is corrupt") from None
    if seen < needed:
        raise CorruptImageError("has fewer rows than its header says")


def _raw_size(header: bytes) -> int:
    """Bytes of all filtered rows."""
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    if colour not in _CHANNELS or depth not in (1, 2, 4, 8, 16):
        raise CorruptImageError("has a header with unknown values")
    bits = depth * _CHANNELS[colour]
    passes = _ADAM7 if interlace else ((0, 0, 1, 1),)
    total = 0
    for x, y, step_x, step_y in passes:
        columns, rows = -(-(width - x) // step_x), -(-(height - y) // step_y)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total

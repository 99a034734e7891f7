"""BMP: run-length coded files become plain ones.

The library reads runs byte by byte, and four-bit ones pixel by pixel, in Python: seconds for a
picture within the limits. Here a run costs one step, and the coded bytes are limited.
"""

from __future__ import annotations

import struct

from pyvlm.media.corrupt import CorruptImageError

MAX_CODED_BYTES = 8 << 20

_RLE8, _RLE4 = 1, 2


def bare_bmp(data: bytes) -> bytes:
    """`data` itself, or the same picture with 8 plain bits for each pixel."""
    header_size = struct.unpack_from("<I", data, 14)[0] if len(data) >= 18 else 0
    if header_size < 40 or len(data) < 54:
        return data
    bits, coding = struct.unpack_from("<HI", data, 28)
    if coding not in (_RLE8, _RLE4):
        return data
    if bits != (8 if coding == _RLE8 else 4):
        raise CorruptImageError("has run lengths of an unknown depth")
    width, height = struct.unpack_from("<ii", data, 18)
    (colours,) = struct.unpack_from("<I", data, 46)
    colours = colours or 1 << bits
    if height < 1 or colours > 1 << bits:
        raise CorruptImageError("has a header with unknown values")
    palette_at = 14 + header_size
    (start,) = struct.unpack_from("<I", data, 10)
    rows = _rows(data[start:], width, height, four_bits=coding == _RLE4)
    palette = data[palette_at : palette_at + 4 * colours].ljust(1024, b"\0")
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 0, 0, 0, 0, 256, 0)
    head = struct.pack("<2sIII", b"BM", 54 + 1024 + len(rows), 0, 54 + 1024)
    return b"".join((head, info, palette, rows))


def _rows(coded: bytes, width: int, height: int, *, four_bits: bool) -> bytes:
    """Pixels in file order, rows padded to four bytes. Pixels that are jumped over have index 0."""
    if len(coded) > MAX_CODED_BYTES:
        raise CorruptImageError(f"has more than {MAX_CODED_BYTES} bytes of run lengths")
    stride = (width + 3) & ~3
    rows = bytearray(stride * height)
    x = y = at = 0
    while at + 1 < len(coded):
        count, value = coded[at], coded[at + 1]
        at += 2
        if count:
            _put(rows, _run(count, value, four_bits), x, y, width, stride)
            x += count
        elif value == 0:
            x, y = 0, y + 1
        elif value == 1:
            return _finished(rows, x, y, width, height)
        elif value == 2:
            if at + 1 >= len(coded):
                break
            x, y, at = x + coded[at], y + coded[at + 1], at + 2
        else:
            size = (value + 1) // 2 if four_bits else value
            pixels = coded[at : at + size]
            if len(pixels) < size:
                break
            _put(rows, _nibbles(pixels)[:value] if four_bits else pixels, x, y, width, stride)
            x, at = x + value, at + size + (size & 1)
        if y >= height:
            return _finished(rows, x, y, width, height)
    return _finished(rows, x, y, width, height)


def _finished(rows: bytearray, x: int, y: int, width: int, height: int) -> bytes:
    if y < height - 1 or (y == height - 1 and x < width):
        raise CorruptImageError("has fewer rows than its header says")
    return bytes(rows)


def _run(count: int, value: int, four_bits: bool) -> bytes:
    if not four_bits:
        return bytes((value,)) * count
    return (bytes((value >> 4, value & 15)) * ((count + 1) // 2))[:count]


def _nibbles(pixels: bytes) -> bytes:
    spread = bytearray(2 * len(pixels))
    spread[::2] = bytes(value >> 4 for value in pixels)
    spread[1::2] = bytes(value & 15 for value in pixels)
    return bytes(spread)


def _put(rows: bytearray, pixels: bytes, x: int, y: int, width: int, stride: int) -> None:
    room = width - x
    if room <= 0:
        return
    at = y * stride + x
    part = pixels[:room]
    rows[at : at + len(part)] = part

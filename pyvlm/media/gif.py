"""GIF: the way to its first frame, and a file with nothing but that frame."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pyvlm.media.corrupt import CorruptImageError

# Of one or a few bytes each in a crafted file, so the number is what costs time.
MAX_BLOCKS_BEFORE_FRAME = 100_000
MAX_BLOCKS_OF_FRAME = 1_000_000


@dataclass(frozen=True, slots=True)
class FirstFrame:
    control: int | None  # where its graphic control extension starts
    start: int  # where its image descriptor starts
    box: tuple[int, int, int, int]


def first_frame(data: bytes) -> FirstFrame:
    """Raises ValueError, IndexError or struct.error if there is none."""
    at = screen_end(data)
    control = None
    for _ in range(MAX_BLOCKS_BEFORE_FRAME):
        kind = data[at]
        if kind == 0x2C:
            x, y, width, height = struct.unpack_from("<HHHH", data, at + 1)
            return FirstFrame(control, at, (x, y, x + width, y + height))
        if kind == 0x21:
            if data[at + 1] == 0xF9:
                control = at
            at = _end_of_blocks(data, at + 2, MAX_BLOCKS_BEFORE_FRAME)
        elif kind == 0x3B:
            break
        else:
            at += 1
    raise ValueError("no frame")


def screen_end(data: bytes) -> int:
    flags = data[10]
    return 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)


def _end_of_blocks(data: bytes, at: int, limit: int) -> int:
    """Behind the empty block that ends a row of blocks."""
    for _ in range(limit):
        size = data[at]
        at += 1 + size
        if not size:
            return at
    raise ValueError("too many blocks")


def bare_gif(data: bytes) -> bytes:
    """Screen, first frame, end. No other frame's bytes can then fill up a short first one."""
    try:
        frame = first_frame(data)
        flags = data[frame.start + 9]
        pixels = frame.start + 10 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
        end = _end_of_blocks(data, pixels + 1, MAX_BLOCKS_OF_FRAME)
    except (IndexError, struct.error):
        raise CorruptImageError("is truncated") from None
    except ValueError:
        raise CorruptImageError("has no frame or too many blocks") from None
    if end > len(data):
        raise CorruptImageError("is truncated")
    control = b""
    if frame.control is not None:
        control = data[frame.control : frame.control + 8]
    return data[: screen_end(data)] + control + data[frame.start : end] + b"\x3b"

"""JPEG: segments and scans, a file without metadata, and decoding that notices missing blocks.

libjpeg fills what is missing with grey and only warns, and the library drops the warning. Yet it
waits for more bytes as long as no marker ends the data. So each scan is fed without the marker that
ends it, followed by a few bytes of a code that no block can use. A whole scan then swallows all of
them while it looks for the marker; one that lacks blocks keeps bytes back and is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from PIL import Image, JpegImagePlugin

from pyvlm.media.corrupt import CorruptImageError
from pyvlm.media.jpeg_frame import ARITHMETIC, PROGRESSIVE, SEQUENTIAL, Frame

MAX_SEGMENTS = 10_000  # before the first scan; a real file with a large profile has some hundred
MAX_SCANS = 100  # each costs a pass over all blocks, even if it holds no bytes

FRAMES = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_TABLES = (0xC4, 0xCC, 0xDB, 0xDD)
_NO_FILL = re.compile(rb"[^\xff]")
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
# All-ones is no Huffman code: a block takes at least 34 bits of it. Eight bytes fill the decoder's
# look-ahead, three more single ones cannot all be swallowed by a block.
_FILLER = (b"\xff\x00" * 8, b"\xff\x00", b"\xff\x00", b"\xff\x00")
_EOI = b"\xff\xd9"

Segment = tuple[int, int, int]


class _Decoder(Protocol):
    def decode(self, data: bytes) -> tuple[int, int]: ...


def segments(data: bytes, at: int = 2) -> Iterator[Segment]:
    """(marker, start, end) of each segment's payload from `at` up to a scan, which is the last.

    Bytes between segments and fill bytes are skipped, as decoders do.
    """
    for _ in range(MAX_SEGMENTS):
        at = data.find(b"\xff", at)
        marker = _NO_FILL.search(data, at) if at >= 0 else None
        if marker is None or marker[0] == b"\xd9":
            return
        kind, at = marker[0][0], marker.end()
        if kind in (0x00, 0x01) or 0xD0 <= kind <= 0xD8:
            continue
        (length,) = struct.unpack_from(">H", data, at)
        length = max(length, 2)
        yield kind, at + 2, at + length
        at += length
        if kind == 0xDA:
            return
    raise ValueError("too many segments")


@dataclass(frozen=True, slots=True)
class BareJpeg:
    """A file without metadata, and where its scans end in it."""

    file: bytes  # up to the end of the last scan: no marker ends it
    scan_ends: list[int]
    is_arithmetic: bool
    is_one_pass: bool  # complete with its only scan; otherwise only with the end marker
    has_adobe: bool  # four components are inverted by convention


def bare_jpeg(data: bytes) -> BareJpeg:
    parts = [b"\xff\xd8"]
    frame: Frame | None = None
    has_adobe, interval, scan = False, 0, None
    for kind, start, end in segments(data):
        if end > len(data):
            raise CorruptImageError("is truncated")
        if kind == 0xDA:
            scan = start - 4
            break
        if kind in FRAMES:
            frame = _frame(kind, data[start:end], frame)
        if kind == 0xDD:
            interval = _interval(data, start)
        adobe = kind == 0xEE and data.startswith(b"Adobe", start)
        has_adobe = has_adobe or adobe
        if adobe or kind in _TABLES or kind in FRAMES or _is_jfif(data, kind, start):
            parts.append(data[start - 4 : end])
    if frame is None or scan is None:
        raise CorruptImageError("has no frame header or no scan")
    ends = _scan_ends(data, scan, frame, interval)
    shift = sum(map(len, parts)) - scan
    # From the first scan on bytes are kept as they are.
    parts.append(data[scan : ends[-1]])
    return BareJpeg(
        b"".join(parts),
        [end + shift for end in ends],
        is_arithmetic=frame.marker in ARITHMETIC,
        is_one_pass=len(ends) == 1 and not frame.is_progressive,
        has_adobe=has_adobe,
    )


def _frame(marker: int, header: bytes, before: Frame | None) -> Frame:
    if before is not None:
        raise CorruptImageError("has two frame headers")
    if marker not in SEQUENTIAL + PROGRESSIVE + ARITHMETIC:
        raise CorruptImageError("uses a coding that is not supported")
    return Frame(marker, header)


def _interval(data: bytes, start: int) -> int:
    (interval,) = struct.unpack_from(">H", data, start)
    return int(interval)


def _is_jfif(data: bytes, kind: int, start: int) -> bool:
    return kind == 0xE0 and data.startswith(b"JFIF\0", start)


def load_whole(image: JpegImagePlugin.JpegImageFile, jpeg: BareJpeg) -> None:
    """`image` was opened from jpeg.file. Loads its pixels, or raises if blocks are missing."""
    image.load_prepare()
    name, extents, _, args = image.tile[0]
    if image.mode == "CMYK" and not jpeg.has_adobe:
        args = ("CMYK", "")
    decoder = Image._getdecoder(image.mode, name, args, image.decoderconfig)
    try:
        decoder.setimage(image.im, extents)
        _feed(decoder, jpeg)
    finally:
        decoder.cleanup()
    image.tile = []


def _feed(decoder: _Decoder, jpeg: BareJpeg) -> None:
    """The decoder has ended without a complaint when this returns."""
    if jpeg.is_arithmetic:  # this decoder cannot wait, so nothing can be noticed
        if _step(decoder, jpeg.file + _EOI) is not None:
            raise CorruptImageError("is truncated")
        return
    start = 0
    for end in jpeg.scan_ends:
        rest = _step(decoder, jpeg.file[start:end])
        for filler in _FILLER:
            if rest is None:
                return
            rest = _step(decoder, rest + filler)
            if rest:
                raise CorruptImageError("is truncated or corrupt: a scan lacks blocks")
        start = end
    if jpeg.is_one_pass or _step(decoder, _EOI) is not None:
        raise CorruptImageError("is truncated or corrupt: a scan lacks blocks")


def _step(decoder: _Decoder, data: bytes) -> bytes | None:
    """What the decoder has not taken yet; None once the picture is complete."""
    taken, error = decoder.decode(data)
    if error < 0:
        raise CorruptImageError("is corrupt")
    return None if taken < 0 else data[taken:]


def _scan_ends(data: bytes, at: int, frame: Frame, interval: int) -> list[int]:
    """Ends of the coded data of all scans; `at` is where the first one's marker is."""
    ends: list[int] = []
    while len(ends) <= MAX_SCANS:
        scan = None
        for kind, start, end in segments(data, at):
            if kind == 0xDD:
                interval = _interval(data, start)
            elif kind == 0xDA:
                scan = data[start:end], end
        if scan is None or scan[1] > len(data):
            break
        marker = _END_OF_SCAN.search(data, scan[1])
        ends.append(marker.start() if marker else len(data))
        frame.add(scan[0], data[scan[1] : ends[-1]], interval)
        at = ends[-1]
        if frame.is_whole and not frame.is_progressive:
            break
    else:
        raise CorruptImageError(f"has more than {MAX_SCANS} scans")
    if not frame.is_whole:
        raise CorruptImageError("is truncated: scans are missing")
    return ends

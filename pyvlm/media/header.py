"""Reads format, size, orientation and number of frames from the first bytes of a picture.

No picture library is involved and nothing is decompressed. Time is bounded by the number of chunks,
which is limited, memory by the answer. What this says is compared with the decoder's own view
later, so a file whose header cannot be trusted ends as `image_decode_failed`, never as another
size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pyvlm.errors import PyvlmError
from pyvlm.media import gif, jpeg, png

MAX_RIFF_CHUNKS = 65_536

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """width and height are as stored; `upright` is what a viewer sees."""

    format: str
    width: int
    height: int
    orientation: int = 1  # EXIF, 1 to 8
    num_frames: int = 1  # as declared; formats that declare none count as 1
    first_frame: Box | None = None  # part of the canvas that a GIF's first frame covers

    @property
    def upright(self) -> tuple[int, int]:
        """(width, height) after EXIF orientation."""
        if self.orientation >= 5:
            return self.height, self.width
        return self.width, self.height


def read_header(data: bytes, index: int = 0) -> ImageHeader:
    """The header of the picture in `data`, or `image_decode_failed` that names image `index`."""
    reader = next((r for magic, r in _READERS if data.startswith(magic)), None)
    if reader is None:
        raise decode_failed(index, _name_unsupported(data))
    try:
        header = reader(data)
    except (struct.error, IndexError, ValueError):
        raise decode_failed(index, "the header is truncated or corrupt") from None
    if header.width < 1 or header.height < 1:
        raise decode_failed(index, f"the header says {header.width} x {header.height} pixels")
    return header


def decode_failed(index: int, reason: str) -> PyvlmError:
    return PyvlmError(
        f"image {index}: {reason}", code="image_decode_failed", param=f"images[{index}]"
    )


# --- EXIF -----------------------------------------------------------------------------------------


def exif_orientation(tiff: bytes) -> int:
    """Orientation of an EXIF block (with or without its `Exif` prefix); 1 if absent or broken."""
    if tiff.startswith(b"Exif\0\0"):
        tiff = tiff[6:]
    try:
        value = _first_ifd(tiff).get(274, 1)
    except (struct.error, ValueError):
        return 1
    return value if 1 <= value <= 8 else 1


def _first_ifd(tiff: bytes) -> dict[int, int]:
    """First value of each SHORT or LONG entry of the first directory."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or struct.unpack_from(order + "H", tiff, 2)[0] != 42:
        raise ValueError("no TIFF header")
    (offset,) = struct.unpack_from(order + "I", tiff, 4)
    (count,) = struct.unpack_from(order + "H", tiff, offset)
    tags: dict[int, int] = {}
    for i in range(count):
        entry = offset + 2 + 12 * i
        tag, kind, num = struct.unpack_from(order + "HHI", tiff, entry)
        if kind not in (3, 4) or num == 0:
            continue
        size = num * (2 if kind == 3 else 4)
        at = entry + 8 if size <= 4 else struct.unpack_from(order + "I", tiff, entry + 8)[0]
        tags[tag] = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, at)[0]
    return tags


# --- formats --------------------------------------------------------------------------------------


def _png(data: bytes) -> ImageHeader:
    if data[12:16] != b"IHDR":
        raise ValueError("no IHDR")
    width, height = struct.unpack_from(">II", data, 16)
    orientation, frames = 1, 1
    for kind, start, size in png.chunks(data):
        if kind == b"eXIf":
            orientation = exif_orientation(data[start : start + size])
        elif kind == b"acTL":
            (declared,) = struct.unpack_from(">I", data, start)
            frames = declared if 1 <= declared <= 0x80000000 else 1  # as decoders do: no animation
    return ImageHeader("PNG", width, height, orientation, frames)


def _jpeg(data: bytes) -> ImageHeader:
    size: tuple[int, int] | None = None
    orientation = 0
    for marker, start, end in jpeg.segments(data):
        if marker == 0xE1 and not orientation and data.startswith(b"Exif\0\0", start):
            orientation = exif_orientation(data[start:end])
        elif marker in jpeg.FRAMES and size is None:
            height, width = struct.unpack_from(">HH", data, start + 1)
            size = width, height
    if size is None:
        raise ValueError("no frame header")
    return ImageHeader("JPEG", size[0], size[1], orientation or 1)


def _gif(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    box = gif.first_frame(data).box
    return ImageHeader("GIF", max(width, box[2]), max(height, box[3]), first_frame=box)


def _bmp(data: bytes) -> ImageHeader:
    (header_size,) = struct.unpack_from("<I", data, 14)
    if header_size == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return ImageHeader("BMP", width, abs(height))


def _webp(data: bytes) -> ImageHeader:
    if data[8:12] != b"WEBP":
        raise ValueError("a RIFF file of another kind")
    size: tuple[int, int] | None = None
    orientation, frames = 1, 0
    for kind, start, length in _riff_chunks(data):
        if kind == b"EXIF":
            orientation = exif_orientation(data[start : start + length])
        elif kind == b"ANMF":
            frames += 1
        elif size is None:
            size = _webp_size(kind, data[start : start + 10])
    if size is None:
        raise ValueError("no frame")
    return ImageHeader("WEBP", size[0], size[1], orientation, max(1, frames))


def _webp_size(kind: bytes, head: bytes) -> tuple[int, int] | None:
    if kind == b"VP8X":
        if len(head) < 10:
            raise ValueError("short VP8X chunk")
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 6)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The picture ends where the RIFF header says: what lies behind it is not read."""
    at = 12
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    for _ in range(MAX_RIFF_CHUNKS):
        if at + 8 > end:
            return
        (size,) = struct.unpack_from("<I", data, at + 4)
        yield data[at : at + 4], at + 8, size
        at += 8 + size + (size & 1)
    raise ValueError("too many chunks")


def _tiff(data: bytes) -> ImageHeader:
    tags = _first_ifd(data)
    orientation = tags.get(274, 1)
    if not 1 <= orientation <= 8:
        orientation = 1
    return ImageHeader("TIFF", tags.get(256, 0), tags.get(257, 0), orientation)


_READERS = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"BM", _bmp),
    (b"RIFF", _webp),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
)

# Only to name what was sent; nothing here is ever decoded.
_UNSUPPORTED = (
    (b"%PDF", "PDF"),
    (b"%!", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"8BPS", "PSD"),
    (b"icns", "ICNS"),
    (b"SIMPLE  =", "FITS"),
    (b"\0\0\1\0", "ICO"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"II+\0", "BigTIFF"),
    (b"MM\0+", "BigTIFF"),
    (b"qoif", "QOI"),
    (b"P", "PNM"),
)


def _name_unsupported(data: bytes) -> str:
    if not data:
        return "there are no bytes"
    if data[4:8] == b"ftyp":
        return "the format HEIF or AVIF is not supported"
    for magic, name in _UNSUPPORTED:
        if data.startswith(magic) and (name != "PNM" or data[1:2] in b"1234567"):
            return f"the format {name} is not supported"
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return "the format SVG is not supported"
    if head.startswith((b"<!doctype html", b"<html")):
        return "this is an HTML page, not a picture"
    return "this is not a picture in a known format"

"""Files of the picture cases 1 to 17, and what has to come out of each."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, TiffImagePlugin

from tests.media.media_files import chunk, encode, noise, png

Transpose = Image.Transpose
LOSSLESS = {"lossless": True}
STORED = {  # what turns the upright picture into the stored one
    1: None, 2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_90, 7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}  # fmt: skip


def shape(
    colour: Any = "red",
    mode: str = "RGB",
    ground: Any = "white",
    size: tuple[int, int] = (192, 160),
) -> Image.Image:
    """Not in the middle, so that no turn leaves it as it is."""
    image = Image.new(mode, size, ground)
    width, height = size
    box = (width // 12, height // 10, width * 2 // 3, height * 3 // 4)
    ImageDraw.Draw(image).ellipse(box, fill=colour)
    return image


def indexed(ground: tuple[int, int, int]) -> Image.Image:
    """A red shape of index 1 on index 0."""
    image = shape(1, "P", 0)
    image.putpalette([*ground, 255, 0, 0])
    return image


def grey() -> Image.Image:
    """All levels from black to white."""
    return Image.linear_gradient("L").resize((192, 256)).rotate(90, expand=True)


def deep(dtype: type, factor: float) -> Image.Image:
    return Image.fromarray((np.asarray(grey(), np.float64) * factor).astype(dtype))


def turned(orientation: int, name: str) -> bytes:
    step = STORED[orientation]
    stored = shape() if step is None else shape().transpose(step)
    if name == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[274] = orientation
        return encode(stored, name, tiffinfo=tags)
    exif = Image.Exif()
    exif[274] = orientation
    return encode(stored, name, exif=exif, **(LOSSLESS if name == "WEBP" else {}))


def frames(name: str, first: Image.Image, **options: Any) -> bytes:
    more = [shape("blue").convert(first.mode), shape("green").convert(first.mode)]
    return encode(first, name, save_all=True, append_images=more, **options)


def beside(data: bytes, kind: bytes, body: bytes) -> bytes:
    """A chunk before the pixels of a PNG."""
    return data[:33] + chunk(kind, body) + data[33:]


def huge(name: str) -> bytes:
    """A small file whose header says 100,000 on a side, or the most that its format can say."""
    side, data = 100_000, bytearray(encode(Image.new("RGB", (1, 1)), name))
    if name == "PNG":
        data[8:33] = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    elif name == "GIF":
        data[6:10] = struct.pack("<HH", 65535, 65535)
    elif name == "BMP":
        data[18:26] = struct.pack("<ii", side, -side)
    elif name == "TIFF":
        width = struct.pack("<HHII", 256, 4, 1, 1)
        return bytes(data).replace(width, struct.pack("<HHII", 256, 4, 1, side))
    return bytes(data)


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    (length,) = struct.unpack_from(">H", data, at + 2)
    return data[:at] + data[at + 2 + length :]


def as_process(marker: int) -> bytes:
    """A JPEG that says it is of another process: lossless, arithmetic, ..."""
    return encode(noise(9, 9), "JPEG").replace(b"\xff\xc0", bytes([0xFF, marker]))


def inverted(image: Image.Image) -> Image.Image:
    return Image.fromarray(255 - np.asarray(image), image.mode)


PLAIN = encode(shape(), "PNG")
BLACK = encode(shape("black"), "PNG")
BOMB = zlib.compress(b"\0" * (20 << 20), 9)
HIDDEN = shape((255, 0, 0, 255), "RGBA", (0, 0, 255, 0))
CHECKSUM = bytearray(beside(PLAIN, b"tEXt", b"k\0v"))
CHECKSUM[33 + 8] ^= 1

# Files of exactly the pixels of the first one in each list.
SAME: dict[str, Callable[[], list[bytes]]] = {
    "02 deep grey": lambda: [
        encode(grey(), "PNG"), encode(deep(np.uint16, 257), "PNG"),
        encode(deep(np.uint16, 257), "TIFF"), encode(deep(np.int32, 257), "TIFF"),
        encode(deep(np.float32, 1 / 255), "TIFF"),
    ],
    "03 palette with transparency": lambda: [
        PLAIN, encode(indexed((0, 0, 255)), "PNG", transparency=0),
        encode(indexed((0, 0, 255)), "PNG", transparency=bytes([0, 255])),
        encode(indexed((0, 0, 255)), "GIF", transparency=0), encode(indexed((255,) * 3), "PNG"),
    ],
    "04 rare modes": lambda: [
        BLACK, encode(shape(0, "1", 1), "PNG"), encode(shape(0, "1", 1), "TIFF"),
        encode(shape((0, 255), "LA", (0, 0)), "PNG"), encode(shape((0, 255), "LA", (90, 0)), "PNG"),
        encode(shape((0, 0, 0, 7), "RGBX", (255, 255, 255, 7)), "TIFF"),
    ],
    "05 hidden colours": lambda: [
        PLAIN, encode(HIDDEN, "PNG"), encode(HIDDEN, "WEBP", exact=True, **LOSSLESS),
        encode(HIDDEN, "TIFF"),
    ],
    "06 orientation": lambda: [
        PLAIN, *(turned(orientation, "PNG") for orientation in STORED),
        *(turned(6, name) for name in ("WEBP", "TIFF")),
        encode(shape(), "PNG", exif=b"MM\0*\xff\xff\xff\xff"),
    ],
    "07 first frame": lambda: [
        PLAIN, frames("PNG", shape()), frames("WEBP", shape(), **LOSSLESS),
        frames("TIFF", shape()), frames("GIF", indexed((255,) * 3), disposal=2),
    ],
    "11 chunks that nobody reads": lambda: [
        PLAIN, beside(PLAIN, b"zTXt", b"k\0\0" + BOMB), beside(PLAIN, b"iCCP", b"k\0\0" + BOMB),
        beside(PLAIN, b"iTXt", b"k\0\1\0\0\0" + BOMB), bytes(CHECKSUM),
    ],
    "15 other containers": lambda: [
        PLAIN, encode(shape(), "WEBP", **LOSSLESS), encode(shape(), "BMP"),
        encode(shape(), "TIFF"), encode(shape(), "TIFF", compression="tiff_adobe_deflate"),
        encode(indexed((255,) * 3), "GIF"),
    ],
}  # fmt: skip

# Lossy files: the pixels are near those of the first one, and the words of the answer the same.
NEAR: dict[str, Callable[[], list[bytes]]] = {
    "01 cmyk": lambda: [
        PLAIN, encode(shape().convert("CMYK"), "JPEG", quality=95),
        without_adobe(encode(inverted(shape().convert("CMYK")), "JPEG", quality=95)),
    ],
    "06 orientation": lambda: [PLAIN, turned(8, "JPEG")],
    "07 mpo": lambda: [PLAIN, frames("MPO", shape(), quality=95)],
    "13 phone picture": lambda: [
        encode(shape(size=(4032, 3024)), "PNG"),
        encode(shape(size=(4032, 3024)), "JPEG", progressive=True, subsampling="4:2:0",
               icc_profile=b"\0\0\2\x24lcms" + bytes(540)),
    ],
    "14 jpeg codings": lambda: [
        BLACK, encode(shape("black").convert("L"), "JPEG", quality=95),
        encode(shape("black"), "JPEG", quality=95, subsampling="4:1:1"),
    ],
}  # fmt: skip


def _cuts() -> list[bytes]:
    image = noise(96, 64)
    whole = [encode(image, name) for name in ("JPEG", "PNG", "WEBP")]
    return [data[: len(data) * tenth // 10] for data in whole for tenth in range(10)]


def _wrong_checksum(kind: bytes) -> bytes:
    data = bytearray(PLAIN)
    at = data.index(kind)
    (size,) = struct.unpack_from(">I", data, at - 4)
    data[at + 4 + size] ^= 1
    return bytes(data)


NO_PICTURES = (
    b"", b"\0", b"just text", b"<!DOCTYPE html><html>404</html>", b'<?xml version="1.0"?><svg/>',
    b"%PDF-1.7", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    b"\xc5\xd0\xd3\xc6" + bytes(40), b"icns\0\0\0\1", b"8BPS\0\1", b"SIMPLE  =    T",
)  # fmt: skip

REFUSED: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "07 too many frames": ("media_policy_violation", lambda: [
        PLAIN[:33] + chunk(b"acTL", struct.pack(">II", 100_000, 0)) + PLAIN[33:],
    ]),
    "08 truncated": ("image_decode_failed", lambda: [
        *_cuts(), png((64, 64), 8, 2, bytes(193 * 20)),
    ]),
    "09 no pictures": ("image_decode_failed", lambda: list(NO_PICTURES)),
    "10 huge headers": ("media_policy_violation", lambda: [
        huge(name) for name in ("PNG", "BMP", "GIF", "TIFF")
    ]),
    "10 no format of ours": ("image_decode_failed", lambda: [
        encode(Image.new("RGB", (16, 16)), "ICO"),
    ]),
    "11 wrong checksums": ("image_decode_failed", lambda: [
        _wrong_checksum(kind) for kind in (b"IHDR", b"IDAT")
    ]),
    "14 other processes": ("image_decode_failed", lambda: [
        as_process(marker) for marker in (0xC3, 0xC5, 0xCB)  # lossless, hierarchical
    ]),
}  # fmt: skip


def same_raw_bytes() -> list[bytes]:
    """Case 16: the same stored bytes, read another way."""
    raw = bytes(range(240))
    rows = b"".join(b"\0" + raw[i : i + 24] for i in range(0, 240, 24))
    palette = bytes(255 - i // 3 for i in range(768))
    return [
        png((24, 10), 8, 0, rows), png((24, 10), 8, 3, rows, (b"PLTE", palette)),
        png((24, 10), 8, 3, rows, (b"PLTE", palette[99:] + palette[:99])), png((8, 10), 8, 2, rows),
        png((6, 10), 8, 6, rows), png((12, 10), 8, 4, rows), png((12, 10), 16, 0, rows),
        encode(noise(24, 10, seed=1), "PNG"), encode(noise(24, 10, seed=2), "PNG"),
    ]  # fmt: skip

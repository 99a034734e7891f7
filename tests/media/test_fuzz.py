"""Mutated files: each is a whole picture or a typed error. Nothing else may come out.

A longer run: PYVLM_FUZZ_EXAMPLES=20000 python -m pytest tests/media/test_fuzz.py --timeout 0
Hypothesis keeps what it found in .hypothesis and tries that first the next time.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from media_files import ALL_FORMATS, chunk, encode, is_typed, noise, photo, png
from PIL import Image

from pyvlm.media.header import read_header
from pyvlm.media.policy import MediaPolicy

EXAMPLES = int(os.environ.get("PYVLM_FUZZ_EXAMPLES", "60"))
# A small limit, so that a mutated size costs little; what it lets through is decoded in full.
POLICY = MediaPolicy(allowed_formats=ALL_FORMATS, max_image_pixels=250_000, max_image_frames=50)
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def seeds() -> dict[str, list[bytes]]:
    image, grey, alpha = photo(), photo().convert("L"), photo().convert("RGBA")
    alpha.putalpha(noise(40, 30, 1))
    frames = {"save_all": True, "append_images": [noise(40, 30)]}
    exif = Image.Exif()
    exif[274] = 6
    rle = struct.pack("<IiiHHIIiiII", 40, 5, 2, 1, 8, 1, 0, 0, 0, 0, 0) + bytes(1024)
    rle = struct.pack("<2sIII", b"BM", 0, 0, 1078) + rle + b"\5\7\0\0\0\3\1\2\3\0\2\4\0\1"
    return {
        "PNG": [
            encode(image, "PNG"), encode(alpha, "PNG", exif=exif), encode(image, "PNG", **frames),
            encode(grey.quantize(9), "PNG", transparency=bytes(9)),
            encode(grey.convert("1"), "PNG"),
            png((9, 9), 16, 2, bytes(55 * 9), (b"tRNS", bytes(6))),
            png((8, 8), 8, 2, bytes(207), interlace=1),
        ],
        "JPEG": [
            encode(image, "JPEG", exif=exif), encode(image, "JPEG", progressive=True),
            encode(grey, "JPEG", restart_marker_blocks=1), encode(image.convert("CMYK"), "JPEG"),
            encode(image, "MPO", **frames),
        ],
        "WEBP": [
            encode(image, "WEBP"), encode(alpha, "WEBP", lossless=True, exif=exif),
            encode(image, "WEBP", **frames),
        ],
        "GIF": [encode(image, "GIF", **frames), encode(grey.quantize(4), "GIF", transparency=1)],
        "BMP": [encode(image, "BMP"), encode(grey.convert("1"), "BMP"), rle],
        "TIFF": [
            encode(image, "TIFF"), encode(alpha, "TIFF", compression="tiff_lzw"),
            encode(grey.convert("F"), "TIFF"), encode(Image.merge("LAB", image.split()), "TIFF"),
        ],
    }  # fmt: skip


SEEDS = seeds()


def _truncate(data: bytes, at: int, _to: int, _value: int) -> bytes:
    return data[:at]


def _flip(data: bytes, at: int, _to: int, value: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (value & 255 or 1)]) + data[at + 1 :]


def _remove(data: bytes, at: int, to: int, _value: int) -> bytes:
    return data[: min(at, to)] + data[max(at, to) :]


def _repeat(data: bytes, at: int, to: int, value: int) -> bytes:
    return data[:at] + data[min(at, to) : max(at, to)] * (value % 8) + data[at:]


def _fill(data: bytes, at: int, to: int, value: int) -> bytes:
    return data[:at] + bytes([value & 255]) * (to % 300) + data[at:]


def _number(order: str, size: str) -> Callable[[bytes, int, int, int], bytes]:
    def put(data: bytes, at: int, _to: int, value: int) -> bytes:
        number = NUMBERS[value % len(NUMBERS)]
        field = struct.pack(order + size, number & (0xFFFF if size == "H" else 0xFFFFFFFF))
        return data[:at] + field + data[at + len(field) :]

    return put


def _checksums(data: bytes, _at: int, _to: int, _value: int) -> bytes:
    """Right ones in a PNG, so that what was changed before comes through."""
    out, at = data[:8], 8
    while data[:4] == b"\x89PNG" and at + 8 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        out += chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + size])
        at += 12 + size
    return out + data[at:]


EDITS = [_truncate, _flip, _flip, _remove, _repeat, _fill, _number("<", "H"), _number(">", "H"),
         _number("<", "I"), _number(">", "I")]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, name: str) -> bytes:
    data = draw(st.sampled_from(SEEDS[name]))
    for _ in range(draw(st.integers(1, 5))):
        if not data:
            break
        edit = draw(st.sampled_from(EDITS))
        # Headers decide most, so they are hit more often than pixels.
        reach = draw(st.sampled_from([64, 700, len(data)]))
        at, to = (draw(st.integers(0, min(reach, len(data)) - 1)) for _ in range(2))
        data = edit(data, at, to, draw(st.integers(0, 1 << 16)))
    if name == "PNG" and draw(st.booleans()):
        data = _checksums(data, 0, 0, 0)
    return data


@pytest.mark.parametrize("name", list(SEEDS))
def test_seeds_are_pictures(name: str) -> None:
    for data in SEEDS[name]:
        assert is_typed(data, POLICY)
        assert read_header(data).format == name


@pytest.mark.parametrize("name", list(SEEDS))
@settings(
    max_examples=EXAMPLES, deadline=None, print_blob=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(values=st.data())
def test_mutated_files(name: str, values: st.DataObject) -> None:
    is_typed(values.draw(mutated(name)), POLICY)

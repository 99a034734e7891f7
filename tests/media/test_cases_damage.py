"""Case 8: damaged files, also those whose container is whole. Never half a picture."""

from __future__ import annotations

import io
import re
import struct

import numpy as np
import pytest
from media_files import encode, error_of, noise, photo, pixels, png, scan_ends
from PIL import Image

from pyvlm.errors import PyvlmError
from pyvlm.media.gif import first_frame

KINDS = [
    ("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"restart_marker_rows": 1}),
    ("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("GIF", {}), ("BMP", {}),
    ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_case_08_truncated_at_every_tenth(name: str, options: dict) -> None:
    data = encode(noise(128, 96), name, **options)
    for tenth in range(10):
        error_of(data[: len(data) * tenth // 10])


# --- whole containers around missing pixels -------------------------------------------------------


@pytest.mark.parametrize("colour", [0, 2, 3, 4, 6])
@pytest.mark.parametrize("interlace", [0, 1])
def test_case_08_png_with_too_few_rows(colour: int, interlace: int) -> None:
    """The zlib stream is whole, it only holds less. Black rows, so that they look unwritten."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    size = (5, 7)
    interlaced = [(1, 1), (1, 1), (2, 1), (1, 2), (3, 2), (2, 4), (5, 3)]  # of each pass
    passes = interlaced if interlace else [size]
    raw = b"".join((b"\0" + bytes(width * channels)) * height for width, height in passes)
    palette = [(b"PLTE", bytes(3))] if colour == 3 else []
    whole = png(size, 8, colour, raw, *palette, interlace=interlace)
    assert pixels(whole).shape == (7, 5, 3)
    for missing in (1, 5 * channels, 5 * channels + 1, len(raw) // 2, len(raw)):
        error_of(png(size, 8, colour, raw[:-missing], *palette, interlace=interlace))


def test_case_08_png_of_white_with_too_few_rows() -> None:
    raw = (b"\0" + b"\xff" * 30) * 10
    assert (pixels(png((10, 10), 8, 2, raw)) == 255).all()
    for missing in (1, 30, 31, 62, 200):
        error_of(png((10, 10), 8, 2, raw[:-missing]))


def test_case_08_png_with_more_than_its_rows_is_whole() -> None:
    raw = (b"\0" + bytes(range(30))) * 10
    assert np.array_equal(pixels(png((10, 10), 8, 2, raw * 2)), pixels(png((10, 10), 8, 2, raw)))


JPEGS = [
    {"quality": 75}, {"quality": 95, "subsampling": 0}, {"optimize": True},
    {"restart_marker_rows": 1}, {"restart_marker_blocks": 1},
]  # fmt: skip


def closed_after(data: bytes, end: int) -> bytes:
    """Cut, and closed as if nothing were missing."""
    return data[:end].removesuffix(b"\xff") + b"\xff\xd9"


@pytest.mark.parametrize("options", JPEGS, ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_case_08_jpeg_cut_and_closed(mode: str, options: dict) -> None:
    """Anything up to the last block: what a cut of few bytes leaves may be one block short."""
    data = encode(noise(130, 98).convert(mode), "JPEG", **options)
    whole = pixels(data)
    start = data.index(b"\xff\xda") + 14
    for end in [*range(start, len(data) - 80, 97), len(data) - 80]:
        error_of(closed_after(data, end))
    for end in range(len(data) - 80, len(data) - 2):
        try:
            got = pixels(closed_after(data, end))
        except PyvlmError as error:
            assert error.code == "image_decode_failed"  # noqa: PT017
        else:
            assert (got[:80] == whole[:80]).all()
            assert (got != whole).any(axis=2).sum() <= 16 * 16 + 2 * 16  # one MCU and its edge


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_case_08_progressive_jpeg_cut_and_closed(mode: str) -> None:
    data = encode(noise(130, 98).convert(mode), "JPEG", progressive=True)
    ends = scan_ends(data)
    assert len(ends) >= 6
    for end in ends[:-1]:  # a whole scan is there, the later ones are missing
        assert "scans are missing" in error_of(closed_after(data, end))
    for end in [*range(ends[0] - 300, len(data) - 40, 211)]:
        error_of(closed_after(data, end))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_case_08_progressive_jpeg_with_a_short_scan_inside(mode: str) -> None:
    data = encode(noise(130, 98).convert(mode), "JPEG", progressive=True)
    pixels(data)
    for end in scan_ends(data):
        start = data.rindex(b"\xff\xda", 0, end) + 10
        for cut in (end - start) // 2, (end - start) * 9 // 10:
            short = data[: end - cut].removesuffix(b"\xff") + data[end:]
            assert "lacks blocks" in error_of(short), (end, cut)


def test_case_08_jpeg_without_a_restart_interval() -> None:
    data = encode(noise(130, 98), "JPEG", restart_marker_rows=1)
    marks = [match.start() for match in re.finditer(b"\xff[\xd0-\xd7]", data)]
    assert len(marks) == 6
    for first, last in ((0, 1), (2, 3), (4, 5)):
        assert "restart" in error_of(data[: marks[first]] + data[marks[last] :])
    swapped = data[: marks[2]] + b"\xff\xd7" + data[marks[2] + 2 :]
    assert "out of order" in error_of(swapped)


def test_case_08_jpeg_without_its_end_marker_is_whole() -> None:
    for options in ({}, {"progressive": True}):
        data = encode(photo(), "JPEG", **options)
        assert np.array_equal(pixels(data[:-2]), pixels(data))
        assert np.array_equal(pixels(data + b"junk \xff\xd8\xff behind it"), pixels(data))


def test_case_08_gif_cut_and_closed() -> None:
    data = encode(noise(60, 40).quantize(64), "GIF")
    frame = first_frame(data).start
    at = frame + 10 + (768 if data[frame + 9] & 0x80 else 0) + 1
    blocks = []
    while data[at]:
        blocks.append(data[at : at + 1 + data[at]])
        at += 1 + data[at]
    body = b"".join(block[1:] for block in blocks)
    head = data[: data.index(blocks[0])]
    for size in (len(body) - 3, len(body) // 2, 1, 0):
        parts = [body[i : min(i + 255, size)] for i in range(0, size, 255)]
        rows = b"".join(bytes([len(part)]) + part for part in parts)
        error_of(head + rows + b"\0;")
        error_of(head + rows + b"\0" + data[frame:])  # the next frame does not fill it up


@pytest.mark.parametrize("options", [{}, {"lossless": True}], ids=str)
def test_case_08_webp_cut_and_closed(options: dict) -> None:
    data = encode(noise(128, 96), "WEBP", **options)
    for end in [*range(40, len(data) - 4, 301), len(data) - 4]:
        end -= end % 2
        cut = bytearray(data[:end])
        struct.pack_into("<I", cut, 4, end - 8)
        struct.pack_into("<I", cut, 16, end - 20)
        error_of(bytes(cut))


def edited(tiff: bytes, **entries: int) -> bytes:
    """Values of first-directory entries, by tag number (t257=192)."""
    out = bytearray(tiff)
    (at,) = struct.unpack_from("<I", tiff, 4)
    (count,) = struct.unpack_from("<H", tiff, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        (tag,) = struct.unpack_from("<H", tiff, entry)
        if f"t{tag}" in entries:
            struct.pack_into("<HII", out, entry + 2, 4, 1, entries[f"t{tag}"])
    return bytes(out)


@pytest.mark.parametrize("coding", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_case_08_tiff_with_too_few_parts(coding: str | None) -> None:
    data = encode(noise(128, 96), "TIFF", compression=coding)
    assert pixels(data).shape == (96, 128, 3)
    error_of(edited(data, t278=48))  # one part of two
    error_of(edited(data, t257=192))  # twice as high
    error_of(edited(data, t257=192, t278=192))
    if coding:
        error_of(edited(data, t279=2000))  # fewer bytes than the part has


@pytest.mark.parametrize(("coding", "mode"), [("jpeg", "RGB"), ("group3", "1"), ("group4", "1")])
def test_case_08_tiff_codings_that_hide_missing_rows(coding: str, mode: str) -> None:
    data = encode(noise(64, 64).convert(mode), "TIFF", compression=coding)
    assert "missing rows go unnoticed" in error_of(data)


# --- run lengths in BMP ---------------------------------------------------------------------------


def rle_bmp(coded: bytes, bits: int, size: tuple[int, int] = (5, 3)) -> bytes:
    palette = b"".join(bytes([i, 2 * i % 256, 255 - i, 0]) for i in range(1 << bits))
    coding = {8: 1, 4: 2}[bits]
    info = struct.pack("<IiiHHIIiiII", 40, *size, 1, bits, coding, len(coded), 0, 0, 0, 0)
    start = 54 + len(palette)
    return struct.pack("<2sIII", b"BM", start + len(coded), 0, start) + info + palette + coded


RLE8 = b"\x05\x07\0\0" + b"\0\x03\x01\x02\x03\0\x02\x04\0\0" + b"\x05\x09\0\1"
RLE4 = b"\x05\x12\0\0" + b"\0\x03\x12\x30\x02\x44\0\0" + b"\x05\x99\0\1"


@pytest.mark.parametrize(
    ("coded", "bits", "rows"),
    [
        (RLE8, 8, [[9] * 5, [1, 2, 3, 4, 4], [7] * 5]),
        (RLE4, 4, [[9] * 5, [1, 2, 3, 4, 4], [1, 2, 1, 2, 1]]),
        (b"\x02\x07\0\2\x01\x01\x02\x07\0\0\x05\x01", 8,
         [[1] * 5, [0, 0, 0, 7, 7], [7, 7, 0, 0, 0]]),
    ],
)  # fmt: skip
def test_case_08_run_lengths(coded: bytes, bits: int, rows: list[list[int]]) -> None:
    """Rows come from the bottom; the last example jumps over pixels, which have index 0."""
    expected = [[[255 - i, 2 * i, i] for i in row] for row in rows]
    assert pixels(rle_bmp(coded, bits)).tolist() == expected


def test_case_08_run_lengths_equal_the_library() -> None:
    rng = np.random.default_rng(5)
    for bits in (8, 4):
        coded = b""
        for _ in range(40):
            left = 64
            while left:
                count = min(int(rng.integers(1, 20)), left)
                coded += bytes([count, int(rng.integers(0, 256))])
                left -= count
            coded += b"\0\0"
        data = rle_bmp(coded, bits, (64, 40))
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert np.array_equal(pixels(data), expected)


@pytest.mark.parametrize("coded", [RLE8[:-6], RLE8[:-2][:-4], b"", b"\0\1", RLE8[:5]])
def test_case_08_run_lengths_with_missing_rows(coded: bytes) -> None:
    assert "fewer rows" in error_of(rle_bmp(coded, 8))

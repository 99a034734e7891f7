"""Cases 9 and 14: what is no picture, and rare codings."""

from __future__ import annotations

import struct
import subprocess
import zlib

import numpy as np
import pytest
from media_files import encode, error_of, is_typed, photo, pixels, png, scan_ends
from PIL import Image

from pyvlm.media.jpeg import MAX_SCANS

# --- what is no picture ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "no bytes"), (b"\0", "known format"), (b"just text", "known format"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"), (b'<?xml version="1.0"?><svg/>', "SVG"),
        (b"%PDF-1.7", "PDF"), (b"%!PS-Adobe-3.0 EPSF-3.0", "PostScript"), (b"8BPS\0\1", "PSD"),
        (b"\xc5\xd0\xd3\xc6", "EPS"), (b"icns\0\0\0\1", "ICNS"), (b"SIMPLE  =    T", "FITS"),
        (b"\0\0\0\x1cftypavif", "AVIF"), (b"\0\0\1\0\1\0", "ICO"), (b"P6 1 1 255 abc", "PNM"),
        (b"\0\0\0\x0cjP  \r\n", "JPEG 2000"), (b"II+\0", "BigTIFF"), (b"qoif", "QOI"),
    ],
)  # fmt: skip
def test_case_09_what_is_no_picture_is_named(data: bytes, named: str) -> None:
    assert named in error_of(data)


def test_case_09_no_program_is_started(monkeypatch) -> None:
    """A PostScript file, by magic and by the plugins that would run Ghostscript."""

    def started(*_args: object, **_options: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr("os.system", started)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    for data in (page, b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 12, len(page)) + page):
        error_of(data)


# --- rare codings ---------------------------------------------------------------------------------


def test_case_14_grey_jpeg() -> None:
    got = pixels(encode(photo().convert("L"), "JPEG", quality=95))
    assert np.abs(got.astype(int) - np.asarray(photo().convert("L"))[..., None]).max() < 8


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
def test_case_14_subsampling(subsampling: str) -> None:
    data = encode(photo(67, 43), "JPEG", quality=95, subsampling=subsampling)
    assert np.abs(pixels(data).astype(int) - np.asarray(photo(67, 43))).mean() < 6


def test_case_14_four_one_one() -> None:
    """4:1:1 by sampling factors that the library does not write: 4 x 1."""
    data = bytearray(encode(Image.new("RGB", (64, 8), (200, 30, 40)), "JPEG", subsampling=0))
    assert is_typed(bytes(data))
    data[data.index(b"\xff\xc0") + 11] = 0x41
    error_of(bytes(data))  # now two of eight MCUs' luma are there: four times the blocks are needed


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF])
def test_case_14_other_processes(marker: int) -> None:
    data = bytearray(encode(photo(), "JPEG"))
    data[data.index(b"\xff\xc0") + 1] = marker
    if marker in (0xC9, 0xCA):
        is_typed(bytes(data))  # arithmetic decoding of other bits: noise or an error
    else:
        assert "not supported" in error_of(bytes(data))


def test_case_14_twelve_bits() -> None:
    data = bytearray(encode(photo(), "JPEG"))
    data[data.index(b"\xff\xc0") + 4] = 12
    error_of(bytes(data))


def test_case_14_scans_are_bounded() -> None:
    """Each scan costs a pass over the picture even if it brings nothing, as a second one does."""
    data = encode(photo(), "JPEG", progressive=True)
    end = scan_ends(data)[-1]
    scans = [data[data.rindex(b"\xff\xda", 0, end) : end] for end in scan_ends(data)]
    (scan,) = [scan for scan in scans if scan[11:14] == b"\0\0\x10"]
    assert pixels(data[:end] + scan * 3 + b"\xff\xd9").shape == (30, 40, 3)
    message = error_of(data[:end] + scan * MAX_SCANS + b"\xff\xd9")
    assert f"more than {MAX_SCANS} scans" in message


def test_case_14_zlib_is_not_the_checksum() -> None:
    """A wrong Adler-32 behind all rows does not matter, a wrong CRC-32 of the chunk does."""
    raw = (b"\0" + bytes(range(30))) * 10
    data = png((10, 10), 8, 2, raw)
    stream = zlib.compress(raw)
    at = data.index(stream) + len(stream)
    wrong = data[:at] + b"\0\0\0\0" + data[at + 4 :]
    assert "wrong checksum" in error_of(wrong)

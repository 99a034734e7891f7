"""How much is done for a crafted file, counted in executed lines: no clock is looked at."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import PIL
import pytest
from media_files import POLICY, chunk, encode, photo
from PIL import Image

import pyvlm
from pyvlm.errors import PyvlmError
from pyvlm.media import bmp, gif, jpeg, png
from pyvlm.media.decode import admit_images, decode_image

COUNTED = tuple(str(Path(module.__file__).parent) for module in (pyvlm, PIL))
MIB = 1 << 20


def lines_of(work: Callable[[], object]) -> int:
    """Python lines of ours and of the library that run during `work`; typed errors are fine."""
    count = 0

    def trace(frame: FrameType, event: str, _arg: object):
        nonlocal count
        if not frame.f_code.co_filename.startswith(COUNTED):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except PyvlmError as error:
        assert error.code == "image_decode_failed"  # noqa: PT017
    finally:
        sys.settrace(before)
    return count


def admit(data: bytes) -> None:
    admit_images([data], POLICY)


def admit_and_decode(data: bytes) -> None:
    decode_image(data, admit_images([data], POLICY)[0])


JPEG = encode(photo(), "JPEG")
GIF = encode(photo(), "GIF")
PNG = encode(photo(), "PNG")
WEBP = encode(photo(), "WEBP")


def repeated(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def crafted(kind: str, size: int) -> bytes:
    """About `size` bytes that a reader could walk through one by one."""
    if kind == "jpeg fill":
        return JPEG[:2] + repeated(b"\xff", size) + JPEG[2:]
    if kind == "jpeg junk":
        return JPEG[:20] + repeated(b"\0", size) + JPEG[20:]
    if kind == "jpeg escaped":
        return JPEG[:20] + repeated(b"\xff\0", size) + JPEG[20:]
    if kind == "jpeg empty segments":
        return JPEG[:2] + repeated(b"\xff\xfe\0\2", size) + JPEG[2:]
    if kind == "jpeg escaped pixels":
        return JPEG[:-2] + repeated(b"\xff\0", size) + JPEG[-2:]
    at = gif.screen_end(GIF)
    if kind == "gif comment":
        return GIF[:at] + b"\x21\xfe" + repeated(b"\1x", size) + b"\0" + GIF[at:]
    if kind == "gif extensions":
        return GIF[:at] + repeated(b"\x21\xfe\0", size) + GIF[at:]
    if kind == "gif junk":
        return GIF[:at] + repeated(b"\0", size) + GIF[at:]
    if kind == "png chunks":
        return PNG[:33] + repeated(chunk(b"teXt", b""), size) + PNG[33:]
    assert kind == "webp chunks"
    body = WEBP[12:] + repeated(b"JUNK" + struct.pack("<I", 0), size)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("jpeg fill", 2_000), ("jpeg junk", 2_000), ("jpeg escaped", 10 * jpeg.MAX_SEGMENTS),
        ("jpeg empty segments", 15 * jpeg.MAX_SEGMENTS), ("jpeg escaped pixels", 2_000),
        ("gif comment", 6 * gif.MAX_BLOCKS_BEFORE_FRAME),
        ("gif extensions", 15 * gif.MAX_BLOCKS_BEFORE_FRAME),
        ("gif junk", 10 * gif.MAX_BLOCKS_BEFORE_FRAME), ("png chunks", 15 * png.MAX_CHUNKS),
        ("webp chunks", 15 * 65_536),
    ],
)  # fmt: skip
def test_header_work_is_bounded(kind: str, limit: int) -> None:
    """By a number, not by the size of the file."""
    assert lines_of(lambda: admit(crafted(kind, 2 * MIB))) < limit


@pytest.mark.parametrize("kind", ["jpeg fill", "jpeg junk", "jpeg escaped pixels"])
def test_header_work_does_not_grow_with_runs(kind: str) -> None:
    small, large = (lines_of(lambda size=size: admit(crafted(kind, size))) for size in (99, MIB))
    assert small == large


@pytest.mark.parametrize("kind", ["jpeg fill", "jpeg junk", "jpeg escaped pixels"])
def test_decoding_skips_runs_too(kind: str) -> None:
    """The library itself would read them byte by byte."""
    assert lines_of(lambda: admit_and_decode(crafted(kind, 4 * MIB))) < 5_000


def test_texts_and_profiles_do_not_reach_the_library() -> None:
    text = chunk(b"tEXt", b"k\0v") * 20_000
    many = lines_of(lambda: admit_and_decode(PNG[:33] + text + PNG[33:]))
    assert many < 20_000 * 20
    comment = b"\x21\xfe" + (b"\xff" + b"x" * 255) * 10_000 + b"\0"
    at = gif.screen_end(GIF)
    assert lines_of(lambda: admit_and_decode(GIF[:at] + comment + GIF[at:])) < 10_000 * 10


@pytest.mark.parametrize("bits", [4, 8])
def test_run_lengths_cost_one_step_each(bits: int) -> None:
    """A million pixels in runs of 250: the library would take four bits at a time in Python."""
    width, height = 1000, 1000
    coded = (b"\xfa\x11" * 4 + b"\0\0") * height
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 2 if bits == 4 else 1,
                       0, 0, 0, 0, 0)  # fmt: skip
    palette = bytes(4 << bits)
    head = struct.pack("<2sIII", b"BM", 0, 0, 54 + len(palette))
    data = head + info + palette + coded
    assert lines_of(lambda: admit_and_decode(data)) < 25 * 5 * height


def test_run_length_bytes_are_limited() -> None:
    with pytest.raises(Exception, match="bytes of run lengths"):
        bmp._rows(bytes(bmp.MAX_CODED_BYTES + 1), 100, 100, four_bits=False)


def test_pixels_in_tiny_blocks_are_bounded() -> None:
    """A GIF's frame in blocks of one byte each, more than any real file has."""
    start = gif.first_frame(GIF).start
    at = start + 10 + (768 if GIF[start + 9] & 0x80 else 0) + 1
    data = GIF[:at] + b"\1\0" * (gif.MAX_BLOCKS_OF_FRAME + 1) + b"\0;"
    (header,) = admit_images([data], POLICY)
    with pytest.raises(PyvlmError, match="too many blocks"):
        decode_image(data, header)
    assert Image.open is not None

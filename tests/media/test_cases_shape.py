"""Cases 6, 7, 12, 13: orientation, frames, odd sizes, a phone's picture."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from media_files import (
    POLICY,
    chunk,
    encode,
    error_of,
    near,
    noise,
    photo,
    pixels,
    smolvlm_transform,
    tensor,
    tiny_transform,
)
from PIL import Image, TiffImagePlugin

from pyvlm.media.decode import admit_images, decode_image
from pyvlm.media.header import read_header
from pyvlm.media.policy import MediaPolicy

Transpose = Image.Transpose
# What turns the upright picture into the stored one.
STORE = {
    1: None, 2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_90, 7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}  # fmt: skip
OPTIONS = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}


def oriented(name: str, orientation: int, upright: Image.Image) -> bytes:
    step = STORE[orientation]
    stored = upright if step is None else upright.transpose(step)
    if name == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[274] = orientation
        return encode(stored, name, tiffinfo=tags)
    exif = Image.Exif()
    exif[274] = orientation
    return encode(stored, name, exif=exif, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_case_06_orientation_ends_upright(name: str, orientation: int) -> None:
    upright = photo(48, 32)
    data = oriented(name, orientation, upright)
    assert read_header(data).upright == (48, 32)
    assert near(pixels(data), np.asarray(upright), 6 if name == "JPEG" else 0)


def test_case_06_limits_hold_for_both_orders() -> None:
    """The longest side is the same either way, so a turned picture passes and fails alike."""
    data = oriented("PNG", 6, photo(60, 20))
    assert pixels(data, MediaPolicy(max_image_side=60)).shape == (20, 60, 3)
    message = error_of(data, "media_policy_violation", MediaPolicy(max_image_side=59))
    assert "max_image_side is 59, saw 60" in message
    message = error_of(data, "media_policy_violation", MediaPolicy(max_image_pixels=1199))
    assert "max_image_pixels is 1199, saw 1200" in message


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0", b"Exif\0\0junk", b"Exif\0\0MM\0*\xff\xff\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\x01\0\0\0\x06\0",  # 65535 entries
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0",  # orientation 99
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0\x06\0\0\0",  # of another type
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x04\0\xff\xff\xff\xff\x08\0\0\0",  # huge count
    ],
)  # fmt: skip
def test_case_06_broken_exif_is_ignored(exif: bytes) -> None:
    assert pixels(encode(photo(), "JPEG", exif=exif)).shape == (30, 40, 3)
    assert np.array_equal(pixels(encode(photo(), "PNG", exif=exif[6:])), np.asarray(photo()))


FRAMES = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "TIFF"])
def test_case_07_first_frame(name: str) -> None:
    data = encode(FRAMES[0], name, save_all=True, append_images=FRAMES[1:], **OPTIONS.get(name, {}))
    assert np.array_equal(pixels(data), np.asarray(FRAMES[0]))


def test_case_07_mpo() -> None:
    big = [frame.resize((16, 16)) for frame in FRAMES]
    got = pixels(encode(big[0], "MPO", save_all=True, append_images=big[1:]))
    assert near(got, (254, 0, 0))


@pytest.mark.parametrize("disposal", [0, 1, 2, 3])
def test_case_07_gif_disposal_does_not_touch_the_first_frame(disposal: int) -> None:
    data = encode(
        FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:], disposal=disposal, loop=0
    )
    assert np.array_equal(pixels(data), np.asarray(FRAMES[0]))


def test_case_07_gif_first_frame_with_offset() -> None:
    """Around it the screen is transparent, so white."""
    data = bytearray(encode(Image.new("P", (4, 4), 1), "GIF"))
    data[6:10] = struct.pack("<HH", 10, 8)
    at = data.index(b"\x2c")
    data[at + 1 : at + 5] = struct.pack("<HH", 3, 2)
    got = pixels(bytes(data)).copy()
    assert got.shape == (8, 10, 3)
    assert (got[2:6, 3:7] == got[2, 3]).all()
    assert (got[2, 3] != 255).any()
    got[2:6, 3:7] = 255
    assert (got == 255).all()


@pytest.mark.parametrize("name", ["PNG", "WEBP"])
def test_case_07_frames_are_bounded_by_the_header(name: str) -> None:
    data = encode(FRAMES[0], name, save_all=True, append_images=FRAMES[1:], **OPTIONS.get(name, {}))
    message = error_of(data, "media_policy_violation", MediaPolicy(max_image_frames=2))
    assert "max_image_frames is 2, saw 3" in message


SIZES = [(1, 1), (1, 4000), (4000, 1), (3, 16000), (16000, 3), (2, 2), (65, 64)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("transform", [tiny_transform(), smolvlm_transform()], ids=["tiny", "smol"])
def test_case_12_odd_sizes(size: tuple[int, int], transform) -> None:
    """`tensor` holds the tiles against the grid that was admitted; here against its maximum.

    Equality with the checkpoint's own processor for these sizes: test_transform.py.
    """
    patches = tensor(encode(noise(*size), "PNG"), transform)
    assert len(patches) <= transform.largest_grid.num_tiles


def test_case_13_phone_picture() -> None:
    """Twelve megapixels, progressive, 4:2:0, with a profile; the test's time limit is the bound."""
    profile = b"\0\0\2\x24lcms" + bytes(540)  # only kept out, so that what it says does not matter
    image = photo(4032, 3024)
    data = encode(
        image, "JPEG", quality=80, progressive=True, subsampling="4:2:0", icc_profile=profile
    )
    assert b"ICC_PROFILE" in data
    transform = smolvlm_transform()
    (header,) = [read_header(data)]
    assert header.upright == (4032, 3024)
    assert transform.grid(*header.upright).num_tiles == 13
    assert near(pixels(data)[::100, ::100], np.asarray(image)[::100, ::100], 8)
    assert tensor(data, transform, POLICY).shape == (13, 1024, 768)


# Orientation 6, as a PNG and a WebP hold it.
EXIF = b"MM\0*\0\0\0\x08\0\1" + struct.pack(">HHIHHI", 274, 3, 1, 6, 0, 0)
TURNED = chunk(b"eXIf", EXIF) + b"EXIF" + struct.pack("<I", len(EXIF)) + EXIF


@pytest.mark.parametrize("name", ["PNG", "WEBP", "JPEG", "GIF", "BMP"])
@pytest.mark.parametrize("tail", [bytes(1 << 20), TURNED, b"junk"], ids=len)
def test_bytes_behind_the_end_are_not_read(name: str, tail: bytes) -> None:
    """As browsers do it. They count as bytes of the file and change nothing else."""
    options = {"lossless": True} if name == "WEBP" else {}
    data = encode(photo(), name, **options)
    (before,), (after,) = (admit_images([file], POLICY) for file in (data, data + tail))
    assert after == before
    assert decode_image(data + tail, after).tobytes() == decode_image(data, before).tobytes()

"""Cases 1 to 5: whatever the mode, the colours that a viewer shows."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from media_files import chunk, encode, near, noise, photo, pixels, png, tensor
from PIL import Image

from pyvlm.media.colour import to_rgb

RED_INK = (0, 255, 255, 0)


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    (length,) = struct.unpack_from(">H", data, at + 2)
    return data[:at] + data[at + 2 + length :]


def test_case_01_cmyk_jpeg_inverted_by_adobe() -> None:
    data = encode(Image.new("CMYK", (16, 16), RED_INK), "JPEG", quality=100)
    assert b"Adobe" in data
    assert near(pixels(data)[8, 8], (255, 0, 0), 3)


def test_case_01_plain_cmyk_jpeg() -> None:
    """Without Adobe's mark 255 is full ink. The library writes inverted, so the inks swap."""
    inks = tuple(255 - ink for ink in RED_INK)
    data = without_adobe(encode(Image.new("CMYK", (16, 16), inks), "JPEG", quality=100))
    assert near(pixels(data)[8, 8], (255, 0, 0), 3)


def test_case_01_ycck_jpeg() -> None:
    """Adobe's transform 2: libjpeg turns it into inverted CMYK."""
    data = bytearray(encode(Image.new("CMYK", (16, 16), (255, 127, 127, 0)), "JPEG", quality=100))
    at = data.index(b"Adobe")
    assert data[at + 11] in (0, 2)
    data[at + 11] = 2
    # Stored are the inverted inks 0, 128, 128, 255. As luma and chroma they are no ink at all.
    assert near(pixels(bytes(data))[8, 8], (255, 255, 255), 3)


def test_case_02_sixteen_bit_grey() -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    assert pixels(encode(Image.fromarray(values), "PNG"))[0, :, 0].tolist() == [0, 1, 128, 255]
    assert pixels(encode(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 1000, 65535]], np.int32), [0, 4, 255]),
        (np.array([[-200, 0, 200]], np.int32), [0, 128, 255]),
        (np.array([[0, 1 << 20, 1 << 21]], np.int32), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 300.0, 65535.0]], np.float32), [0, 1, 255]),
        (np.array([[-np.inf, np.nan, 1.0, np.inf]], np.float32), [0, 0, 255, 255]),
    ],
    ids=str,
)
def test_case_02_deep_tiff(values: np.ndarray, expected: list[int]) -> None:
    assert pixels(encode(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == expected


def test_case_02_scale_is_the_same_in_every_band() -> None:
    """More rows than one band: the range comes from the whole picture, not from a band."""
    values = np.linspace(0, 1 << 24, 1500 * 1000, dtype=np.int32).reshape(1500, 1000)
    got = pixels(encode(Image.fromarray(values), "TIFF"))[..., 0].ravel().astype(int)
    assert (np.diff(got) >= 0).all()
    assert (got[0], got[-1]) == (0, 255)


def palette_picture() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    return image


def test_case_03_palette_with_transparent_index() -> None:
    got = pixels(encode(palette_picture(), "PNG", transparency=1))
    assert got[0].tolist() == [[255, 0, 0], [255, 255, 255], [0, 0, 255]]


def test_case_03_palette_with_alpha_per_entry() -> None:
    got = pixels(encode(palette_picture(), "PNG", transparency=bytes([255, 0, 128])))
    assert got[0, :2].tolist() == [[255, 0, 0], [255, 255, 255]]
    assert near(got[0, 2], (127, 127, 255), 1)


def test_case_03_gif_with_transparent_index() -> None:
    got = pixels(encode(palette_picture(), "GIF", transparency=2))
    assert got[0].tolist() == [[255, 0, 0], [0, 255, 0], [255, 255, 255]]


@pytest.mark.parametrize(
    ("depth", "row", "key", "expected"),
    [
        (1, b"\x40", 0, [255, 255, 255, 255]),
        (1, b"\x40", 1, [0, 255, 0, 0]),
        (2, b"\x1b", 1, [0, 255, 170, 255]),
        (2, b"\x1b", 3, [0, 85, 170, 255]),
        (4, b"\x0f\x5a", 5, [0, 255, 255, 170]),
        (8, b"\x00\x05\x06\xff", 5, [0, 255, 6, 255]),
        (16, b"\x00\x00\x01\x01\x01\x02\xff\xff", 0x0101, [0, 255, 1, 255]),
    ],
)
def test_case_03_grey_with_transparent_level(
    depth: int, row: bytes, key: int, expected: list[int]
) -> None:
    """One-bit rows above: levels 0, 1, 0, 0. A level that only rounds to the key stays."""
    data = png((4, 1), depth, 0, b"\0" + row, (b"tRNS", struct.pack(">H", key)))
    assert pixels(data)[0, :, 0].tolist() == expected


def test_case_03_grey_key_has_only_the_bits_of_its_depth() -> None:
    data = png((4, 1), 2, 0, b"\0\x1b", (b"tRNS", struct.pack(">H", 0xFF02)))
    assert pixels(data)[0, :, 0].tolist() == [0, 85, 255, 255]


def test_case_03_rgb_with_transparent_colour() -> None:
    raw = b"\0" + bytes([1, 2, 3, 1, 2, 4])
    data = png((2, 1), 8, 2, raw, (b"tRNS", struct.pack(">HHH", 1, 2, 3)))
    assert pixels(data)[0].tolist() == [[255, 255, 255], [1, 2, 4]]


def test_case_03_sixteen_bit_rgb_with_transparent_colour() -> None:
    """Only the pixel with all 48 bits equal is transparent, not one with equal high bytes."""
    rows = [(0x1122, 0x3344, 0x5566), (0x1122, 0x3344, 0x5567), (0x1022, 0x3344, 0x5566)]
    raw = b"\0" + b"".join(struct.pack(">HHH", *row) for row in rows)
    data = png((3, 1), 16, 2, raw, (b"tRNS", struct.pack(">HHH", *rows[0])))
    assert pixels(data)[0].tolist() == [[255] * 3, [0x11, 0x33, 0x55], [0x10, 0x33, 0x55]]


@pytest.mark.parametrize(
    ("mode", "value", "expected", "by"),
    [
        ("LA", (0, 51), (204, 204, 204), 1), ("La", (0, 51), (204, 204, 204), 1),
        ("PA", (0, 0), (255, 255, 255), 0), ("RGBa", (100, 0, 0, 100), (255, 155, 155), 1),
        ("RGBX", (1, 2, 3, 4), (1, 2, 3), 0), ("1", 1, (255, 255, 255), 0),
        ("1", 0, (0, 0, 0), 0), ("HSV", (85, 255, 255), (0, 255, 0), 1),
        ("LAB", (137, 208, 195), (255, 0, 0), 10), ("YCbCr", (76, 85, 255), (254, 0, 0), 3),
        ("L", 9, (9, 9, 9), 0), ("CMYK", (255, 0, 0, 0), (0, 255, 255), 0),
    ],
)  # fmt: skip
def test_case_04_rare_modes(mode: str, value: object, expected: object, by: int) -> None:
    assert near(np.asarray(to_rgb(Image.new(mode, (2, 2), value))), expected, by)


def test_case_04_modes_in_files() -> None:
    for mode, value, name, expected in [
        ("LA", (0, 51), "PNG", (204, 204, 204)),
        ("1", 1, "PNG", (255, 255, 255)),
        ("1", 1, "BMP", (255, 255, 255)),
        ("LAB", (255, 128, 128), "TIFF", (255, 255, 255)),
        ("CMYK", (255, 0, 0, 0), "TIFF", (0, 255, 255)),
        ("RGBX", (1, 2, 3, 4), "TIFF", (1, 2, 3)),
        ("LA", (0, 51), "WEBP", (204, 204, 204)),
    ]:
        got = pixels(encode(Image.new(mode, (3, 2), value), name, **lossless(name)))
        assert near(got, expected, 1), (mode, name)


def lossless(name: str) -> dict[str, bool]:
    return {"lossless": True, "exact": True} if name == "WEBP" else {}


@pytest.mark.parametrize("name", ["PNG", "WEBP", "TIFF"])
def test_case_05_hidden_colours_do_not_leak(name: str) -> None:
    hidden = noise(64, 64, 4)
    hidden.putalpha(0)
    white = encode(Image.new("RGB", (64, 64), "white"), "PNG")
    data = encode(hidden, name, **lossless(name))
    assert (pixels(data) == 255).all()
    assert np.array_equal(tensor(data), tensor(white))


def test_case_05_half_alpha_is_the_same_in_every_band() -> None:
    """A picture of several bands, against one formula over all of it."""
    image = photo(900, 1300)
    image.putalpha(noise(900, 1300, 1))
    colour, alpha = np.split(np.asarray(image).astype(float), [3], axis=2)
    expected = np.rint((colour * alpha + 255 * (255 - alpha)) / 255)
    assert near(pixels(encode(image, "PNG", compress_level=1)), expected, 1)


def test_case_05_wrong_palette_index_is_black_not_a_crash() -> None:
    data = png((1, 1), 8, 3, b"\0\xff", (b"PLTE", b"\xff\0\0"))
    assert pixels(data)[0, 0].tolist() == [0, 0, 0]
    assert chunk(b"PLTE", b"\xff\0\0") in data

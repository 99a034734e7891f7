"""Pictures as they come: right pixels, or a typed error with the picture's index."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, TiffImagePlugin, features

from pyvlm.errors import PyvlmError
from pyvlm.media import decode as decode_module
from pyvlm.media.decode import admit_header, admit_images, decode_image
from pyvlm.media.header import read_header
from pyvlm.media.policy import DEFAULT_FORMATS, MediaPolicy

POLICY = MediaPolicy(allowed_formats=(*DEFAULT_FORMATS, "TIFF"))


def encode(image: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def decode(data: bytes, policy: MediaPolicy = POLICY, index: int = 0) -> Image.Image:
    return decode_image(data, admit_header(data, policy, index), index)


def pixels(data: bytes) -> np.ndarray:
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


def error_of(data: bytes, index: int = 0, policy: MediaPolicy = POLICY) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        decode(data, policy, index)
    assert caught.value.param == f"images[{index}]"
    assert f"image {index}:" in caught.value.message
    return caught.value


def photo(width: int = 40, height: int = 30) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(
        np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8)
    )


# --- one picture in many containers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("TIFF", {}),
     ("TIFF", {"compression": "tiff_lzw"})],
    ids=str,
)  # fmt: skip
def test_lossless_containers_give_the_same_pixels(name: str, options: dict) -> None:
    assert np.array_equal(pixels(encode(photo(), name, **options)), np.asarray(photo()))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 2}], ids=str)
def test_jpeg_is_near(options: dict) -> None:
    got = pixels(encode(photo(), "JPEG", quality=95, **options)).astype(int)
    assert np.abs(got - np.asarray(photo())).mean() < 6


def test_grey_jpeg_and_one_bit_png() -> None:
    grey = pixels(encode(Image.new("L", (16, 16), 77), "JPEG"))
    assert np.abs(grey.astype(int) - 77).max() <= 1
    bits = Image.new("1", (9, 9), 1)
    bits.putpixel((4, 4), 0)
    got = pixels(encode(bits, "PNG"))
    assert got[4, 4].tolist() == [0, 0, 0]
    assert got[0, 0].tolist() == [255, 255, 255]


# --- colour -------------------------------------------------------------------------------------


def test_cmyk_jpeg_is_no_negative() -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    data = encode(red, "JPEG", quality=100)
    assert b"Adobe" in data
    got = pixels(data)[8, 8].astype(int)
    assert got[0] > 240
    assert got[1:].max() < 15


def test_cmyk_tiff_is_no_negative() -> None:
    got = pixels(encode(Image.new("CMYK", (4, 4), (255, 0, 0, 0)), "TIFF"))
    assert got[0, 0].tolist() == [0, 255, 255]


def test_sixteen_bit_grey_is_scaled() -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    got = pixels(encode(Image.fromarray(values), "PNG"))[..., 0]
    assert got.tolist() == [[0, 1, 128, 255]]


def test_sixteen_bit_grey_with_a_transparent_value() -> None:
    ihdr = struct.pack(">IIBBBBB", 2, 1, 16, 0, 0, 0, 0)
    raw = b"\0" + struct.pack(">HH", 1000, 0)
    data = png([(b"IHDR", ihdr), (b"tRNS", struct.pack(">H", 1000)),
                (b"IDAT", zlib.compress(raw)), (b"IEND", b"")])  # fmt: skip
    assert pixels(data)[..., 0].tolist() == [[255, 0]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 100, 255]], np.int32), [0, 100, 255]),
        (np.array([[0, 257, 65535]], np.int32), [0, 1, 255]),
        (np.array([[-100, 0, 100]], np.int32), [0, 128, 255]),
        (np.array([[0, 1 << 30, (1 << 31) - 1]], np.int32), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 128.0, 255.0]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, -np.inf, np.inf, 0.0, 4.0]], np.float32), [0, 0, 255, 0, 4]),
        (np.array([[7.0, 7.0]], np.float32), [7, 7]),
        (np.array([[-3.0, -3.0]], np.float32), [0, 0]),
        (np.array([[np.nan]], np.float32), [0]),
    ],
    ids=str,
)
def test_deep_tiff_is_scaled_not_clipped(values: np.ndarray, expected: list[int]) -> None:
    got = pixels(encode(Image.fromarray(values), "TIFF"))
    assert got[0, :, 0].tolist() == expected


def test_palette_with_alpha_per_entry() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    got = pixels(encode(image, "PNG", transparency=bytes([255, 0, 128])))
    assert got[0, 0].tolist() == [255, 0, 0]
    assert got[0, 1].tolist() == [255, 255, 255]
    assert np.abs(got[0, 2].astype(int) - [127, 127, 255]).max() <= 1


def test_palette_and_rgb_with_one_transparent_colour() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    got = pixels(encode(image, "PNG", transparency=1))
    assert got[0].tolist() == [[10, 20, 30], [255, 255, 255]]
    keyed = encode(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert pixels(keyed)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("name", ["PNG", "WEBP", "TIFF"])
def test_hidden_colours_do_not_leak(name: str) -> None:
    image = Image.new("RGBA", (4, 4), (200, 10, 10, 0))
    options = {"lossless": True, "exact": True} if name == "WEBP" else {}
    assert (pixels(encode(image, name, **options)) == 255).all()


def test_grey_with_alpha_over_white() -> None:
    got = pixels(encode(Image.new("LA", (2, 2), (0, 51)), "PNG"))
    assert np.abs(got.astype(int) - 204).max() <= 1


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [("HSV", (85, 255, 255), (0, 255, 0)), ("YCbCr", (76, 85, 255), (254, 0, 0)),
     ("RGBX", (1, 2, 3, 4), (1, 2, 3)), ("RGBa", (100, 0, 0, 100), (255, 155, 155)),
     ("La", (0, 51), (204, 204, 204)), ("PA", (0, 0), (255, 255, 255)),
     ("LAB", (137, 208, 195), (255, 0, 0)), ("LAB", (255, 128, 128), (255, 255, 255)),
     ("LAB", (0, 128, 128), (0, 0, 0))],
)  # fmt: skip
def test_rare_modes(mode: str, value: tuple, expected: tuple) -> None:
    from pyvlm.media.colour import to_rgb

    got = np.asarray(to_rgb(Image.new(mode, (2, 2), value)))[0, 0].astype(int)
    # Eight bits of Lab are coarser than eight bits of sRGB.
    assert np.abs(got - expected).max() <= (10 if mode == "LAB" else 3)


def test_lab_tiff() -> None:
    got = pixels(encode(Image.new("LAB", (2, 2), (137, 208, 195)), "TIFF"))[0, 0].astype(int)
    assert got[0] > 245
    assert got[1:].max() < 25


# --- orientation --------------------------------------------------------------------------------

MARK = Image.new("RGB", (32, 16), (255, 255, 255))
MARK.paste((255, 0, 0), (0, 0, 8, 8))  # red at top left, blue at top right
MARK.paste((0, 0, 255), (24, 0, 32, 8))
# What turns the upright MARK into the stored picture of each orientation.
STORE = {
    1: [], 2: [Image.Transpose.FLIP_LEFT_RIGHT], 3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM], 5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_90], 7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}  # fmt: skip


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_ends_upright(name: str, orientation: int) -> None:
    stored = MARK
    for step in STORE[orientation]:
        stored = stored.transpose(step)
    if name == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[274] = orientation
        data = encode(stored, name, tiffinfo=tags)
    else:
        exif = Image.Exif()
        exif[274] = orientation
        options = {"lossless": True} if name == "WEBP" else {}
        data = encode(stored, name, exif=exif, **options)
    header = read_header(data)
    assert (header.width, header.height) == stored.size
    assert header.upright == (32, 16)
    got = pixels(data).astype(int)
    assert got.shape == (16, 32, 3)
    assert np.abs(got[3, 3] - [255, 0, 0]).max() < 20
    assert np.abs(got[3, 28] - [0, 0, 255]).max() < 20


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0MM\0*\xff\xff\xff\xff",
        b"Exif\0\0junk",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0",
    ],
)
def test_broken_exif_is_ignored(exif: bytes) -> None:
    got = pixels(encode(MARK, "JPEG", exif=exif))
    assert got.shape == (16, 32, 3)


# --- frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_is_shown(name: str) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if name == "WEBP" else {}
    data = encode(frames[0], name, save_all=True, append_images=frames[1:], **options)
    assert pixels(data)[4, 4].tolist() == [255, 0, 0]
    if name in ("WEBP", "PNG"):
        assert read_header(data).num_frames == 3
        strict = MediaPolicy(max_image_frames=2)
        assert "max_image_frames is 2, saw 3" in error_of(data, policy=strict).message


def test_mpo_shows_its_first_picture() -> None:
    frames = [Image.new("RGB", (16, 16), c) for c in ((255, 0, 0), (0, 255, 0))]
    got = pixels(encode(frames[0], "MPO", save_all=True, append_images=frames[1:]))
    assert got[8, 8, 0] > 240


def test_gif_frame_with_offset_is_white_around() -> None:
    data = bytearray(encode(Image.new("P", (4, 4), 1), "GIF"))
    data[6:10] = struct.pack("<HH", 10, 8)
    at = data.index(b"\x2c")
    data[at + 1 : at + 5] = struct.pack("<HH", 3, 2)
    got = pixels(bytes(data)).copy()
    assert got.shape == (8, 10, 3)
    inside = got[2:6, 3:7].copy()
    got[2:6, 3:7] = 255
    assert (got == 255).all()
    assert (inside == inside[0, 0]).all()
    assert (inside != 255).any()


def test_gif_frame_beyond_its_screen_counts() -> None:
    data = bytearray(encode(Image.new("P", (4, 4), 1), "GIF"))
    at = data.index(b"\x2c")
    data[at + 5 : at + 9] = struct.pack("<HH", 60000, 60000)
    error = error_of(bytes(data))
    assert error.code == "media_policy_violation"
    assert "max_image_side is 16384, saw 60000" in error.message


# --- hostile and broken -------------------------------------------------------------------------


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        out += struct.pack(">I", len(body)) + kind + body
        out += struct.pack(">I", zlib.crc32(kind + body))
    return out


def big_headers() -> dict[str, bytes]:
    side = 100_000
    gif = bytearray(encode(Image.new("L", (1, 1)), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    bmp = bytearray(encode(Image.new("RGB", (1, 1)), "BMP"))
    bmp[18:26] = struct.pack("<ii", side, -side)
    jpeg = bytearray(encode(Image.new("RGB", (8, 8)), "JPEG"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 65500, 65500)
    webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\0" * 4
    webp += (side - 1).to_bytes(3, "little") * 2
    tiff = encode(Image.new("RGB", (1, 1)), "TIFF")
    tiff = tiff.replace(struct.pack("<HHII", 256, 4, 1, 1), struct.pack("<HHII", 256, 4, 1, side))
    return {
        "PNG": png([(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))]),
        "GIF": bytes(gif), "BMP": bytes(bmp), "JPEG": bytes(jpeg), "WEBP": webp, "TIFF": tiff,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["PNG", "GIF", "BMP", "JPEG", "WEBP", "TIFF"])
def test_huge_headers_are_refused_without_a_decoder(name: str, monkeypatch) -> None:
    def opened(*_args: object, **_options: object) -> None:
        raise AssertionError("a decoder was asked")

    monkeypatch.setattr(decode_module.Image, "open", opened)
    error = error_of(big_headers()[name])
    assert error.code == "media_policy_violation"
    assert "max_image_side is 16384" in error.message


@pytest.mark.parametrize(
    ("name", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {"lossless": True}),
     ("WEBP", {}), ("GIF", {}), ("BMP", {}), ("TIFF", {"compression": "tiff_lzw"})],
    ids=str,
)  # fmt: skip
def test_truncated_files_are_never_half_a_picture(name: str, options: dict) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (96, 128, 3), dtype=np.uint8))
    data = encode(image, name, **options)
    for tenth in range(10):
        error = error_of(data[: len(data) * tenth // 10], index=2)
        assert error.code == "image_decode_failed", tenth


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "no bytes"), (b"x", "known format"), (b"just text", "known format"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"), (b'<?xml version="1.0"?><svg/>', "SVG"),
        (b"%PDF-1.7", "PDF"), (b"%!PS-Adobe-3.0 EPSF-3.0", "PostScript"), (b"8BPS\0\1", "PSD"),
        (b"icns\0\0\0\1", "ICNS"), (b"SIMPLE  =                    T", "FITS"),
        (b"\0\0\0\x1cftypavif", "AVIF"), (b"\0\0\1\0\1\0", "ICO"), (b"P6 1 1 255 abc", "PNM"),
        (b"\x89PNG\r\n\x1a\n", "header"), (b"RIFF\0\0\0\0WAVE", "header"), (b"GIF89a", "header"),
        (b"\xff\xd8\xff", "header"), (b"BM", "header"), (b"II*\0", "header"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_named(data: bytes, named: str) -> None:
    error = error_of(data, index=1)
    assert error.code == "image_decode_failed"
    assert named in error.message


def test_zero_sized_pictures() -> None:
    data = png([(b"IHDR", struct.pack(">IIBBBBB", 0, 5, 8, 2, 0, 0, 0))])
    assert "0 x 5" in error_of(data).message


def test_compressed_text_bomb_is_bounded() -> None:
    bomb = zlib.compress(b"\0" * (80 << 20), 9)
    base = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))]
    tail = [(b"IDAT", zlib.compress(b"\0\7")), (b"IEND", b"")]
    for kind, body in ((b"zTXt", b"k\0\0" + bomb), (b"iCCP", b"k\0\0" + bomb)):
        try:
            got = pixels(png([*base, (kind, body), *tail]))
        except PyvlmError as error:
            assert error.code == "image_decode_failed"  # noqa: PT017
        else:
            assert got.tolist() == [[[7, 7, 7]]]


@pytest.mark.parametrize(
    "raised",
    [ValueError, SyntaxError, NotImplementedError, struct.error, MemoryError, OverflowError,
     IndexError, Image.DecompressionBombError, UserWarning, RecursionError, ZeroDivisionError],
)  # fmt: skip
def test_no_text_of_the_library_leaks(raised: type[Exception], monkeypatch) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise raised("secret /home/user 0x7f")

    monkeypatch.setattr(decode_module.Image, "open", broken)
    error = error_of(encode(photo(), "PNG"))
    assert error.code == "image_decode_failed"
    assert "secret" not in error.message
    assert error.__cause__ is None


def test_escalated_warnings_do_not_surface() -> None:
    data = encode(photo(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(data).shape == (30, 40, 3)


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), edits=st.integers(1, 8))
def test_mutated_files_give_a_picture_or_a_typed_error(name: str, seed: int, edits: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(encode(photo(), name))
    for _ in range(edits):
        data[rng.integers(0, min(len(data), 400))] = rng.integers(0, 256)
    policy = MediaPolicy(allowed_formats=POLICY.allowed_formats, max_image_pixels=1_000_000)
    try:
        image = decode(bytes(data), policy)
    except PyvlmError as error:
        assert error.code in ("image_decode_failed", "media_policy_violation")  # noqa: PT017
    else:
        assert image.mode == "RGB"


def test_missing_codec_is_named(monkeypatch) -> None:
    monkeypatch.setattr(features, "check", lambda _name: False)
    assert "built without WEBP" in error_of(encode(photo(), "WEBP")).message


def test_a_request_is_admitted_as_a_whole() -> None:
    data = encode(photo(), "PNG")
    assert [header.format for header in admit_images([data, data], POLICY)] == ["PNG", "PNG"]
    with pytest.raises(PyvlmError, match="max_image_bytes") as caught:
        admit_images([data, b" " * (20 << 20) + b" "], POLICY)
    assert caught.value.param == "images[1]"
    with pytest.raises(PyvlmError, match="saw 17 images"):
        admit_images([data] * 17, POLICY)
    with pytest.raises(PyvlmError, match="image 1"):
        admit_images([data, b"junk"], POLICY)

"""Cases 10, 11, 15, 16, 17: limits from the header, bombs, sameness, what the library raises."""

from __future__ import annotations

import struct
import tracemalloc
import warnings
import zlib
from dataclasses import asdict

import numpy as np
import pytest
from media_files import POLICY, chunk, encode, error_of, noise, photo, pixels, png, tensor
from PIL import Image, PngImagePlugin

from pyvlm.errors import PyvlmError
from pyvlm.media import decode as decode_module
from pyvlm.media.decode import admit_images, decode_image
from pyvlm.media.policy import MediaPolicy

SIDE = 100_000


def huge(name: str) -> bytes:
    """A small file whose header says 100,000 on a side, or the most that its format can say."""
    data = bytearray(encode(Image.new("RGB", (1, 1)), name))
    if name == "GIF":
        data[6:10] = struct.pack("<HH", 65535, 65535)
    elif name == "BMP":
        data[18:26] = struct.pack("<ii", SIDE, -SIDE)
    elif name == "JPEG":
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 65500, 65500)
    elif name == "PNG":
        data[8:33] = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0))
    elif name == "TIFF":
        entry = struct.pack("<HHII", 256, 4, 1, 1)
        assert entry in data
        return bytes(data).replace(entry, struct.pack("<HHII", 256, 4, 1, SIDE))
    elif name == "WEBP":
        body = b"\0" * 4 + (SIDE - 1).to_bytes(3, "little") * 2
        return b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + body
    return bytes(data)


@pytest.mark.parametrize("name", ["PNG", "GIF", "BMP", "JPEG", "WEBP", "TIFF"])
def test_case_10_huge_headers_are_refused_before_a_decoder(name: str, monkeypatch) -> None:
    def opened(*_args: object, **_options: object) -> None:
        raise AssertionError("a decoder was asked")

    monkeypatch.setattr(decode_module.Image, "open", opened)
    data = huge(name)
    tracemalloc.start()
    try:
        message = error_of_admission(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "max_image_side is 16384, saw " in message
    assert peak < 1 << 16


def error_of_admission(data: bytes) -> str:
    with pytest.raises(PyvlmError) as caught:
        admit_images([data], POLICY)
    assert caught.value.code == "media_policy_violation"
    return caught.value.message


def test_case_10_ico_is_no_format_of_ours() -> None:
    assert "ICO" in error_of(encode(Image.new("RGB", (16, 16)), "ICO"))


def test_case_10_gif_frame_larger_than_its_screen() -> None:
    data = bytearray(encode(Image.new("P", (4, 4), 1), "GIF"))
    at = data.index(b"\x2c")
    data[at + 5 : at + 9] = struct.pack("<HH", 60000, 60000)
    assert "saw 60000" in error_of(bytes(data), "media_policy_violation")


def test_case_10_size_that_only_the_decoder_sees() -> None:
    """A second header later in the file, or a still of another size inside a WebP's canvas."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
    data = png((1, 1), 8, 0, b"\0\7")
    assert pixels(data[:33] + head + data[33:]).tolist() == [[[7, 7, 7]]]
    jpeg = encode(photo(), "JPEG")
    at = jpeg.index(b"\xff\xc0")
    frame = jpeg[at : at + 19]
    error_of(jpeg[:at] + frame + frame[:5] + struct.pack(">HH", 65500, 65500) + jpeg[at + 9 :])
    still = encode(photo(64, 64), "WEBP", lossless=True)[12:]
    canvas = b"VP8X" + struct.pack("<I", 10) + b"\0" * 4 + (3).to_bytes(3, "little") * 2
    body = b"WEBP" + canvas + still
    error_of(b"RIFF" + struct.pack("<I", len(body)) + body)


BOMB = zlib.compress(b"\0" * (80 << 20), 9)


@pytest.mark.parametrize(
    ("kind", "body"),
    [(b"zTXt", b"k\0\0" + BOMB), (b"iTXt", b"k\0\1\0\0\0" + BOMB), (b"iCCP", b"k\0\0" + BOMB),
     (b"tEXt", b"k\0" + b"x" * (4 << 20)), (b"eXIf", b"MM\0*" + b"\xff" * (1 << 20))],
)  # fmt: skip
@pytest.mark.parametrize("behind", [False, True])
def test_case_11_bombs_beside_the_pixels_are_not_read(
    kind: bytes, body: bytes, behind: bool, monkeypatch
) -> None:
    def inflated(_data: bytes) -> bytes:
        raise AssertionError("a compressed text was inflated")

    monkeypatch.setattr(PngImagePlugin, "_safe_zlib_decompress", inflated)
    data = png((1, 1), 8, 0, b"\0\7")
    at = len(data) - 12 if behind else 33
    assert pixels(data[:at] + chunk(kind, body) + data[at:]).tolist() == [[[7, 7, 7]]]


def test_case_11_pixels_that_inflate_without_end_are_bounded() -> None:
    """80 MiB behind a single row: decoding stops with the last row."""
    raw = zlib.compress(b"\0\7" + b"\0" * (80 << 20), 9)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", raw) + chunk(b"IEND", b"")
    tracemalloc.start()
    try:
        assert pixels(data).tolist() == [[[7, 7, 7]]]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("kind", [b"IHDR", b"PLTE", b"tRNS", b"IDAT"])
def test_case_11_wrong_checksum(kind: bytes) -> None:
    data = bytearray(
        png((1, 1), 8, 3, b"\0\0", (b"PLTE", b"\xff\0\0"), (b"tRNS", b"\xff"), (b"tEXt", b"k\0v"))
    )
    assert pixels(bytes(data)).tolist() == [[[255, 0, 0]]]
    at = data.index(kind)
    (size,) = struct.unpack_from(">I", data, at - 4)
    data[at + 4 + size] ^= 1
    assert "wrong checksum" in error_of(bytes(data))


def test_case_11_wrong_checksum_of_a_text_does_not_matter() -> None:
    data = bytearray(png((1, 1), 8, 0, b"\0\7", (b"tEXt", b"k\0v")))
    data[data.index(b"tEXt") + 8] ^= 1
    assert pixels(bytes(data)).tolist() == [[[7, 7, 7]]]


def test_case_15_same_pixels_in_other_containers_are_the_same_tensor() -> None:
    image = noise(300, 200)
    expected = tensor(encode(image, "PNG"))
    for name, options in [
        ("PNG", {"compress_level": 0}), ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}), ("TIFF", {"compression": "packbits"}),
    ]:  # fmt: skip
        assert np.array_equal(tensor(encode(image, name, **options)), expected), (name, options)
    flat = image.quantize(200)
    expected = tensor(encode(flat.convert("RGB"), "PNG"))
    for name in ("PNG", "GIF", "BMP", "TIFF"):
        assert np.array_equal(tensor(encode(flat, name)), expected), name


def test_case_16_same_raw_bytes_of_another_kind_are_other_pictures() -> None:
    """The engine's key is a digest of the whole file with all that makes its pixels.

    Here: files that share their stored pixel bytes differ as files and as tensors.
    """
    raw = bytes(range(240))
    grey = b"".join(b"\0" + raw[i : i + 24] for i in range(0, 240, 24))
    palette = (b"PLTE", bytes(255 - i // 3 for i in range(768)))
    files = [
        png((24, 10), 8, 0, grey),
        png((24, 10), 8, 3, grey, palette),
        png((24, 10), 8, 3, grey, (b"PLTE", bytes(768 // 2) + palette[1][384:])),
        png((8, 10), 8, 2, grey),
        png((6, 10), 8, 6, grey),
        png((12, 10), 8, 4, grey),
        png((12, 10), 16, 0, grey),
    ]
    sizes = [noise(w, h, seed=w) for w, h in ((30, 100), (100, 30))]
    files += [encode(image, "PNG") for image in sizes]
    assert len(set(files)) == len(files)
    tensors = [tensor(data).tobytes() for data in files]
    assert len(set(tensors)) == len(files)
    headers = [repr(asdict(admit_images([data], POLICY)[0])) for data in files]
    assert len(set(headers)) >= 5


@pytest.mark.parametrize(
    "raised",
    [ValueError, SyntaxError, NotImplementedError, struct.error, MemoryError, OverflowError,
     IndexError, KeyError, TypeError, AttributeError, Image.DecompressionBombError, UserWarning,
     RecursionError, ZeroDivisionError, AssertionError, OSError, EOFError, zlib.error],
)  # fmt: skip
@pytest.mark.parametrize("where", ["open", "new"])
def test_case_17_what_the_library_raises(raised: type, where: str, monkeypatch) -> None:
    image = photo()
    image.putalpha(7)
    data = encode(image, "PNG")
    (header,) = admit_images([data], POLICY)

    def broken(*_args: object, **_options: object) -> None:
        raise raised("secret /home/user 0x7f")

    monkeypatch.setattr(decode_module.Image, where, broken)
    with pytest.raises(PyvlmError) as caught:
        decode_image(data, header)
    assert caught.value.code == "image_decode_failed"
    assert "secret" not in caught.value.message
    assert caught.value.__cause__ is None


def test_case_17_warnings_turned_into_errors_do_not_surface() -> None:
    exif = encode(photo(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    apng = encode(photo(), "PNG", save_all=True, append_images=[noise(40, 30)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(exif).shape == pixels(apng).shape == (30, 40, 3)


def test_case_17_bomb_limit_of_the_library(monkeypatch) -> None:
    """Where it is lower than the policy: its warning is no error, its error is a typed one."""
    data = encode(photo(), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert pixels(data).shape == (30, 40, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "more pixels than the decoder accepts" in error_of_decode(data)


def error_of_decode(data: bytes) -> str:
    (header,) = admit_images([data], MediaPolicy())
    with pytest.raises(PyvlmError) as caught:
        decode_image(data, header)
    assert caught.value.code == "image_decode_failed"
    return caught.value.message

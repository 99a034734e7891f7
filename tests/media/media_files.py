"""Pictures made in the test, and the way every path takes them: admit, decode, transform."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pyvlm.errors import PyvlmError
from pyvlm.media.decode import admit_images, decode_image
from pyvlm.media.policy import DEFAULT_FORMATS, OPTIONAL_FORMATS, MediaPolicy
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.settings import load_transform
from pyvlm.media.transform import ImageTransform, transform_from_config
from pyvlm.models.parse import parse_config, read_config

TINY = Path(__file__).parents[2] / "pyvlm" / "assets" / "tiny"
ALL_FORMATS = DEFAULT_FORMATS + OPTIONAL_FORMATS
POLICY = MediaPolicy(allowed_formats=ALL_FORMATS)


def tiny_transform() -> ImageTransform:
    vision = parse_config(read_config(TINY)).vision
    assert vision is not None
    return load_transform(lambda name: json.loads((TINY / name).read_text()), vision)


def smolvlm_transform() -> ImageTransform:
    """Of the published SmolVLM checkpoints: longest edge 2048, tiles of 512."""
    config = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    return transform_from_config({**config, "resample": 1}, image_size=512, patch_size=16)


def encode(image: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def pixels(data: bytes, policy: MediaPolicy = POLICY) -> np.ndarray:
    (header,) = admit_images([data], policy)
    image = decode_image(data, header)
    assert image.mode == "RGB"
    assert image.size == header.upright
    return np.asarray(image)


def tensor(
    data: bytes, transform: ImageTransform | None = None, policy: MediaPolicy = POLICY
) -> np.ndarray:
    """[T, P, 3*p*p], checked against the grid that the header alone promised."""
    (header,) = admit_images([data], policy)
    transform = transform or tiny_transform()
    result = preprocess_image(data, header, transform)
    assert result.grid == transform.grid(*header.upright)
    assert len(result.patches) == result.grid.num_tiles
    assert np.isfinite(result.patches).all()
    return result.patches


def error_of(data: bytes, code: str = "image_decode_failed", policy: MediaPolicy = POLICY) -> str:
    """The message of the error that this picture has to end with, as second of three."""
    good = encode(Image.new("RGB", (2, 2)), "PNG")
    with pytest.raises(PyvlmError) as caught:
        decode_second([good, data, good], policy)
    assert caught.value.code == code
    assert caught.value.param == "images[1]"
    assert caught.value.message.startswith("image 1: ")
    return caught.value.message


def decode_second(images: list[bytes], policy: MediaPolicy) -> Image.Image:
    return decode_image(images[1], admit_images(images, policy)[1], 1)


def is_typed(data: bytes, policy: MediaPolicy = POLICY) -> bool:
    """Whether it is a picture; if not, the error has a code of its own. Nothing else may happen."""
    try:
        tensor(data, policy=policy)
    except PyvlmError as error:
        assert error.code in ("image_decode_failed", "media_policy_violation")  # noqa: PT017
        return False
    return True


def photo(width: int = 40, height: int = 30) -> Image.Image:
    """Smooth, of three different channels."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // width, y * 255 // height, 255 - (x + y) * 255 // (width + height)]
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    shape = (height, width, channels) if channels > 1 else (height, width)
    return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))


def near(got: np.ndarray, expected: object, by: int = 2) -> bool:
    return bool(np.abs(got.astype(int) - np.asarray(expected)).max() <= by)


def scan_ends(data: bytes) -> list[int]:
    """Where the coded data of each scan of a progressive file ends."""
    scans = [match.end() for match in re.finditer(b"\xff\xda", data)]
    return [re.compile(b"\xff[^\x00\xd0-\xd7]").search(data, at).start() for at in scans]


# --- PNG by hand --------------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(kind))
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def png(
    size: tuple[int, int],
    depth: int,
    colour: int,
    raw: bytes,
    *extra: tuple[bytes, bytes],
    interlace: int = 0,
) -> bytes:
    """`raw` is all filtered rows; `extra` chunks come before them."""
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlace)
    parts = [(b"IHDR", header), *extra, (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in parts)

"""Bytes to an upright 8-bit RGB picture, or a typed error that names the image's index.

Order: size in bytes, header against the policy, then the one decoder that the header names. No
other plugin of the picture library is ever asked, and where the format allows it is given a file
cut down to what makes the first frame's pixels: no text, profile, other frame or thumbnail reaches
it. Whatever the library raises ends here; its text never leaves this module.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin

from pyvlm.errors import PyvlmError
from pyvlm.media.bmp import bare_bmp
from pyvlm.media.colour import bands, to_rgb
from pyvlm.media.corrupt import CorruptImageError
from pyvlm.media.gif import bare_gif
from pyvlm.media.header import Box, ImageHeader, decode_failed, read_header
from pyvlm.media.jpeg import bare_jpeg, load_whole
from pyvlm.media.png import Key, bare_png
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.tiff import require_whole

# Importing a plugin registers it; the optional ones need their C libraries.
_PLUGINS = [BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin]

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def admit_images(images: Sequence[bytes], policy: MediaPolicy) -> list[ImageHeader]:
    """Apply the policy to the pictures of one request, without decoding any. Once per request."""
    policy.check_request([len(data) for data in images])
    return [admit_header(data, policy, index) for index, data in enumerate(images)]


def admit_header(data: bytes, policy: MediaPolicy, index: int = 0) -> ImageHeader:
    """The part of `admit_images` that looks into one picture."""
    header = read_header(data, index)
    policy.check_header(header, index)
    return header


def decode_image(data: bytes, header: ImageHeader, index: int = 0) -> Image.Image:
    """The first frame of an admitted picture: mode RGB, upright, alpha over white."""
    _require_plugin(header.format, index)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(data, header, index)
    except PyvlmError:
        raise
    except CorruptImageError as error:
        raise decode_failed(index, f"the {header.format} data {error.reason}") from None
    except MemoryError:
        raise decode_failed(index, "decoding it needs more memory than there is") from None
    except Exception as error:
        raise decode_failed(index, _reason(error, header)) from None


def _decode(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    # The loaded file is gone when the picture is turned: never three copies of it at once.
    frame = to_rgb(_LOADERS.get(header.format, _load_any)(data, header, index))
    if header.first_frame is not None:
        _whiten_around(frame, header.first_frame)
    turn = _TRANSPOSE.get(header.orientation)
    if header.format != "TIFF" and turn is not None:  # the library turns TIFF while loading
        frame = frame.transpose(turn)
    if frame.size != header.upright:
        raise decode_failed(index, "the decoder and the header disagree about its size")
    return frame


def _open(file: bytes, header: ImageHeader, index: int) -> ImageFile.ImageFile:
    image: ImageFile.ImageFile = Image.open(io.BytesIO(file), formats=(header.format,))
    if image.size not in ((header.width, header.height), header.upright):
        raise decode_failed(index, "the decoder and the header disagree about its size")
    return image


def _load_any(file: bytes, header: ImageHeader, index: int) -> Image.Image:
    image = _open(file, header, index)
    image.load()
    return image


def _load_png(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    bare = bare_png(data)
    image = _load_any(bare.file, header, index)
    if bare.is_interlaced or not any(_last_row(image)):
        bare.require_all_rows()
    if bare.deep_key is not None:
        low = _open(bare.file, header, index)
        low.tile = [low.tile[0]._replace(args="RGB;16L")]  # the other byte of each value
        low.load()
        _whiten_key(image, low, bare.deep_key)
    return image


def _last_row(image: Image.Image) -> bytes:
    width, height = image.size
    return image.crop((0, height - 1, width, height)).tobytes()


def _whiten_key(high: Image.Image, low: Image.Image, key: Key) -> None:
    """Pixels of 16-bit colour `key`, whose bytes are in two pictures, become white."""
    high_key, low_key = [v >> 8 for v in key], [v & 255 for v in key]
    for box in bands(high.size):
        band = high.crop(box)
        same = (np.asarray(band) == high_key) & (np.asarray(low.crop(box)) == low_key)
        mask = Image.fromarray(same.all(axis=2).astype(np.uint8) * 255)
        high.paste((255, 255, 255), box, mask)


def _load_jpeg(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    bare = bare_jpeg(data)
    image = _open(bare.file, header, index)
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        raise CorruptImageError("is corrupt")
    load_whole(image, bare)
    return image


def _load_gif(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    return _load_any(bare_gif(data), header, index)


def _load_bmp(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    return _load_any(bare_bmp(data), header, index)


def _load_tiff(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    image = _open(data, header, index)
    require_whole(image, header.width, header.height)
    image.load()
    return image


_LOADERS: dict[str, Callable[[bytes, ImageHeader, int], Image.Image]] = {
    "PNG": _load_png,
    "JPEG": _load_jpeg,
    "GIF": _load_gif,
    "BMP": _load_bmp,
    "TIFF": _load_tiff,
}


def _whiten_around(canvas: Image.Image, box: Box) -> None:
    """What the first frame of a GIF does not cover is transparent, so white."""
    left, top, right, bottom = box
    width, height = canvas.size
    for rest in (
        (0, 0, width, top),
        (0, bottom, width, height),
        (0, top, left, bottom),
        (right, top, width, bottom),
    ):
        if rest[0] < rest[2] and rest[1] < rest[3]:
            canvas.paste((255, 255, 255), rest)


def _require_plugin(name: str, index: int) -> None:
    if name not in optional_formats() and name in ("WEBP", "TIFF"):
        raise decode_failed(index, f"the installed Pillow was built without {name}")


def optional_formats() -> frozenset[str]:
    """Those of WEBP and TIFF that the installed Pillow can decode."""
    from PIL import features

    found = set()
    if features.check("webp"):
        from PIL import WebPImagePlugin  # noqa: F401

        found.add("WEBP")
    if features.check("libtiff"):
        from PIL import TiffImagePlugin  # noqa: F401

        found.add("TIFF")
    return frozenset(found)


def _reason(error: Exception, header: ImageHeader) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return "it has more pixels than the decoder accepts"
    if isinstance(error, (OSError, SyntaxError, EOFError)):
        return f"the {header.format} data is truncated or corrupt"
    return f"the {header.format} data is corrupt or uses a feature that is not supported"

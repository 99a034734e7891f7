"""Bytes to an upright 8-bit RGB picture, or a typed error that names the image's index.

Order: size in bytes, header against the policy, then the one decoder that the header names. No
other plugin of the picture library is ever asked. Whatever the library raises ends here; its text
never leaves this module.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin

from pyvlm.errors import PyvlmError
from pyvlm.media.colour import to_rgb
from pyvlm.media.header import Box, ImageHeader, decode_failed, read_header
from pyvlm.media.policy import MediaPolicy

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
    except MemoryError:
        raise decode_failed(index, "decoding it needs more memory than there is") from None
    except Exception as error:
        raise decode_failed(index, _reason(error, header)) from None


def _decode(data: bytes, header: ImageHeader, index: int) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=(header.format,)) as image:
        if image.size not in ((header.width, header.height), header.upright):
            raise decode_failed(index, "the decoder and the header disagree about its size")
        image.load()
        frame = to_rgb(image)
    if header.format == "TIFF":  # already upright: the library turns TIFF while loading
        return _checked(frame, header, index)
    if header.first_frame is not None:
        frame = _only_frame(frame, header.first_frame)
    turn = _TRANSPOSE.get(header.orientation)
    return _checked(frame if turn is None else frame.transpose(turn), header, index)


def _checked(frame: Image.Image, header: ImageHeader, index: int) -> Image.Image:
    if frame.size != header.upright:
        raise decode_failed(index, "the decoder and the header disagree about its size")
    return frame


def _only_frame(canvas: Image.Image, box: Box) -> Image.Image:
    """What the first frame of a GIF does not cover is transparent, so white."""
    if box == (0, 0, *canvas.size):
        return canvas
    white = Image.new("RGB", canvas.size, (255, 255, 255))
    white.paste(canvas.crop(box), box[:2])
    return white


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

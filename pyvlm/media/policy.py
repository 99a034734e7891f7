"""The media policy: every limit on pictures, in one frozen object that all paths share.

A violation always has the code `media_policy_violation`; its message names the limit, the limit's
value and what was seen, so that a client can act on it without knowing our defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyvlm.errors import PyvlmError
from pyvlm.media.header import ImageHeader

MIB = 1 << 20
DEFAULT_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
OPTIONAL_FORMATS = ("TIFF",)


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """Limits per image and per request. All of them are decided before a pixel is decoded."""

    max_image_bytes: int = 20 * MIB
    max_images: int = 16
    max_request_image_bytes: int = 64 * MIB
    max_image_pixels: int = 50_000_000
    max_image_side: int = 16_384
    max_image_frames: int = 1_000
    allowed_formats: tuple[str, ...] = DEFAULT_FORMATS

    def __post_init__(self) -> None:
        known = DEFAULT_FORMATS + OPTIONAL_FORMATS
        for name in self.allowed_formats:
            if name not in known:
                raise PyvlmError(
                    f"image format {name!r} is not one of {', '.join(known)}",
                    code="invalid_parameter",
                    param="allowed_image_formats",
                )
        for field in _LIMITS:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PyvlmError(
                    f"{field} must be a positive integer, not {value!r}",
                    code="invalid_parameter",
                    param=field,
                )

    def check_request(self, sizes_bytes: Sequence[int]) -> None:
        """Number of images and their sizes in bytes; run once for a request, before any parsing."""
        _check("max_images", self.max_images, len(sizes_bytes), "images in the request", None)
        for index, size in enumerate(sizes_bytes):
            self.check_image_bytes(size, index)
        total = sum(sizes_bytes)
        limit = self.max_request_image_bytes
        _check("max_request_image_bytes", limit, total, "bytes of images in the request", None)

    def check_image_bytes(self, size_bytes: int, index: int) -> None:
        _check("max_image_bytes", self.max_image_bytes, size_bytes, "bytes", index)

    def check_header(self, header: ImageHeader, index: int) -> None:
        """Format, side, pixels and frames as the header declares them."""
        if header.format not in self.allowed_formats:
            raise PyvlmError(
                f"image {index}: allowed_formats is {', '.join(self.allowed_formats)}, "
                f"saw {header.format}",
                code="media_policy_violation",
                param=f"images[{index}]",
            )
        side = max(header.width, header.height)
        _check("max_image_side", self.max_image_side, side, "pixels on the longest side", index)
        pixels = header.width * header.height
        _check("max_image_pixels", self.max_image_pixels, pixels, "pixels", index)
        _check("max_image_frames", self.max_image_frames, header.num_frames, "frames", index)


_LIMITS = (
    "max_image_bytes",
    "max_images",
    "max_request_image_bytes",
    "max_image_pixels",
    "max_image_side",
    "max_image_frames",
)


def _check(name: str, limit: int, seen: int, what: str, index: int | None) -> None:
    if seen <= limit:
        return
    where = "" if index is None else f"image {index}: "
    raise PyvlmError(
        f"{where}{name} is {limit}, saw {seen} {what}",
        code="media_policy_violation",
        param="images" if index is None else f"images[{index}]",
    )

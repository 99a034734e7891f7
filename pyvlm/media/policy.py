"""The media policy: every limit on pictures, in one frozen object that all paths share.

A violation always has the code `media_policy_violation`; its message names the limit, the limit's
value and what was seen, so that a client can act on it without knowing our defaults.

`check_request` and `check_header` are the admission, run once for each request by `admit_images`.
Whoever brings bytes in (fetch, data URLs, files) stops earlier at the same limits, with the same
error (`violation`), so that nothing too large is ever held.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyvlm.errors import PyvlmError
from pyvlm.media.addresses import parse_host
from pyvlm.media.header import ImageHeader

MIB = 1 << 20
DEFAULT_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
OPTIONAL_FORMATS = ("TIFF",)
ANY_PUBLIC_HOST = "*"
MAX_REDIRECTS = 20


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
    allowed_media_domains: tuple[str, ...] = ()
    allowed_media_ports: tuple[int, ...] = (80, 443)
    allowed_local_media_path: Path | None = None
    connect_timeout_s: float = 5
    fetch_timeout_s: float = 10
    max_redirects: int = 3

    def __post_init__(self) -> None:
        _require_formats(self.allowed_formats)
        for field in _LIMITS:
            _require_integer(field, getattr(self, field), 1)
        _require_integer("max_redirects", self.max_redirects, 0, MAX_REDIRECTS)
        for port in self.allowed_media_ports:
            _require_integer("allowed_media_ports", port, 1, 65535)
        for field in ("connect_timeout_s", "fetch_timeout_s"):
            _require_seconds(field, getattr(self, field))
        domains = tuple(_domain(name) for name in self.allowed_media_domains)
        object.__setattr__(self, "allowed_media_domains", domains)
        if self.allowed_local_media_path is not None:
            root = _file_root(self.allowed_local_media_path)
            object.__setattr__(self, "allowed_local_media_path", root)

    @classmethod
    def from_environment(cls) -> MediaPolicy:
        """The defaults, with what PYVLM_MEDIA_* variables change."""
        from pyvlm.media.policy_options import environment_values

        return cls(**environment_values(os.environ))

    def check_request(self, sizes_bytes: Sequence[int]) -> None:
        """Number of images and their sizes in bytes; run once for a request, before any parsing."""
        self.require_within("max_images", len(sizes_bytes), "images in the request", None)
        for index, size in enumerate(sizes_bytes):
            self.require_within("max_image_bytes", size, "bytes", index)
        total = sum(sizes_bytes)
        self.require_within(
            "max_request_image_bytes", total, "bytes of images in the request", None
        )

    def check_header(self, header: ImageHeader, index: int) -> None:
        """Format, side, pixels and frames as the header declares them."""
        if header.format not in self.allowed_formats:
            raise self.violation("allowed_formats", header.format, index)
        side = max(header.width, header.height)
        self.require_within("max_image_side", side, "pixels on the longest side", index)
        self.require_within("max_image_pixels", header.width * header.height, "pixels", index)
        self.require_within("max_image_frames", header.num_frames, "frames", index)

    def violation(self, limit: str, seen: str, index: int | None) -> PyvlmError:
        """The error that names `limit`, its value and what was seen; `index` None: the request."""
        where = "" if index is None else f"image {index}: "
        return PyvlmError(
            f"{where}{limit} is {_shown(getattr(self, limit))}, saw {seen}",
            code="media_policy_violation",
            param="images" if index is None else f"images[{index}]",
        )

    def require_within(self, limit: str, seen: int, what: str, index: int | None) -> None:
        """Raise the violation if `seen` is above the value of `limit`."""
        if seen > getattr(self, limit):
            raise self.violation(limit, f"{seen} {what}", index)


_LIMITS = (
    "max_image_bytes",
    "max_images",
    "max_request_image_bytes",
    "max_image_pixels",
    "max_image_side",
    "max_image_frames",
)


def _shown(value: object) -> str:
    if isinstance(value, Path):
        return "set"  # a path of the server is none of a client's business
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _require_formats(names: tuple[str, ...]) -> None:
    known = DEFAULT_FORMATS + OPTIONAL_FORMATS
    for name in names:
        if name not in known:
            raise _invalid(
                "allowed_image_formats", f"image format {name!r} is not one of {', '.join(known)}"
            )


def _require_integer(field: str, value: object, low: int, high: int | None = None) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= low
    if good and (high is None or value <= high):  # type: ignore[operator]
        return
    kind = f"an integer of {low} to {high}" if high is not None else "a positive integer"
    raise _invalid(field, f"{field} must be {kind}, not {value!r}")


def _require_seconds(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid(field, f"{field} must be a number of seconds, not {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise _invalid(field, f"{field} must be a positive number of seconds, not {value!r}")


def _domain(name: str) -> str:
    if name == ANY_PUBLIC_HOST:
        return name
    try:
        return str(parse_host(name))
    except ValueError as error:
        raise _invalid(
            "allowed_media_domains",
            f"allowed_media_domains: {name!r} is no host name ({error}); write it without scheme, "
            "port and path",
        ) from None


def _file_root(path: Path) -> Path:
    """Absolute, as given: clients may write a link's name or what it leads to."""
    field = "allowed_local_media_path"
    try:
        root = path.resolve(strict=True)
    except (OSError, RuntimeError):  # the second for a loop of links
        raise _invalid(field, f"{field}: {path} does not exist") from None
    if not root.is_dir():
        raise _invalid(field, f"{field}: {path} is not a directory")
    if root == Path("/") or any(root.is_relative_to(p) for p in ("/proc", "/sys", "/dev")):
        raise _invalid(field, f"{field}: {root} holds more than files")
    return root if ".." in path.parts else path.absolute()


def _invalid(field: str, message: str) -> PyvlmError:
    return PyvlmError(message, code="invalid_parameter", param=field)

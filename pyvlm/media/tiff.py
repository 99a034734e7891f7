"""TIFF: what has to hold so that no part of the picture can be missing in silence."""

from __future__ import annotations

from PIL import ImageFile

from pyvlm.media.corrupt import CorruptImageError

# libtiff fails on short data in these. Fax and JPEG data it fills up with a warning only.
_STRICT = ("tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", "zstd", "lzma")


def require_whole(image: ImageFile.ImageFile, width: int, height: int) -> None:
    """`image` is opened, not loaded; its size as stored. Raises unless its decoder notices gaps."""
    coding = image.info.get("compression")
    if coding == "raw":
        _require_tiles(image, width, height)
    elif coding not in _STRICT:
        raise CorruptImageError("uses a coding in which missing rows go unnoticed")


def _require_tiles(image: ImageFile.ImageFile, width: int, height: int) -> None:
    """The library reads the parts that are listed, and leaves the rest of the picture black."""
    covered = 0
    for _, extents, _, _ in image.tile:
        left, top, right, bottom = extents or (0, 0, width, height)
        covered += (min(right, width) - left) * (min(bottom, height) - top)
    if covered < width * height:
        raise CorruptImageError("lists fewer parts than its header says")

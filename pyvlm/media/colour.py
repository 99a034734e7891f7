"""Any decoded picture to 8-bit RGB as a careful viewer would show it: alpha over white.

Scaling of deep pixels: 16-bit grey is divided by 257. 32-bit integers and floats carry no range of
their own, so values within 0..1 (floats), 0..255 or 0..65535 are read as such, anything else is
stretched between its extremes.

Work goes by bands of rows, so that beside the picture and its result there is only one band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

# D50 white of TIFF's CIELab, and XYZ(D50) to linear sRGB (Bradford).
_D50 = np.array([0.96422, 1.0, 0.82521])
_XYZ_TO_RGB = np.array(
    [
        [3.1338561, -1.6168667, -0.4906146],
        [-0.9787684, 1.9161415, 0.0334540],
        [0.0719453, -0.2289914, 1.4052427],
    ]
)


_BAND_PIXELS = 1 << 19

Box = tuple[int, int, int, int]


def bands(size: tuple[int, int]) -> Iterator[Box]:
    """Boxes of whole rows that cover a picture of this size."""
    width, height = size
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        yield 0, top, width, min(height, top + rows)


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` (loaded) as mode RGB, itself if it is. Colours hidden under alpha 0 become white."""
    convert = _conversion(image)
    if convert is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    result = Image.new("RGB", image.size)
    for box in bands(image.size):
        result.paste(convert(image.crop(box)), box)
    return result


def _conversion(image: Image.Image) -> Callable[[Image.Image], Image.Image] | None:
    """What turns a band into RGB; None if the library's own conversion is right."""
    if image.mode.startswith("I;16"):
        return _grey16_to_rgb
    if image.mode in ("I", "F"):
        low, high = _range(image)
        return lambda band: _grey_to_rgb(band, low, high)
    if image.mode == "LAB":
        return lambda band: Image.fromarray(_lab_to_rgb(np.asarray(band)))
    has_alpha = {"A", "a"} & set(image.getbands())
    return _over_white if has_alpha or image.info.get("transparency") is not None else None


def _over_white(band: Image.Image) -> Image.Image:
    straight = {"La": "LA", "RGBa": "RGBA"}.get(band.mode)
    rgba = (band.convert(straight) if straight else band).convert("RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def _array(image: Image.Image) -> npt.NDArray[Any]:
    values = np.asarray(image)
    # A byte-swapped view of 16-bit pixels compares and divides like any other.
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _grey16_to_rgb(band: Image.Image) -> Image.Image:
    values = _array(band)
    grey: Bytes = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    key = band.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey).convert("RGB")


def _range(image: Image.Image) -> tuple[float, float]:
    """The values that become black and white."""
    low, high = np.inf, -np.inf
    for box in bands(image.size):
        values = _array(image.crop(box))
        finite = values[np.isfinite(values)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if image.mode == "F" and low >= 0 and high <= 1:
        return 0.0, 1.0
    if low >= 0 and high <= 255:
        return 0.0, 255.0
    return (0.0, 65535.0) if low >= 0 and high <= 65535 else (low, high)


def _grey_to_rgb(band: Image.Image, low: float, high: float) -> Image.Image:
    values: Floats = _array(band).astype(np.float64)
    known = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    # All values may be equal, or not numbers at all.
    span = high - low if high > low else np.inf
    grey = np.rint(np.clip((known - low) / span * 255.0, 0, 255)).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def _lab_to_rgb(lab: Bytes) -> Bytes:
    """CIELab as TIFF stores it: L scaled to 0..255, a and b signed bytes."""
    rows = [_lab_row_to_rgb(row) for row in lab]  # by rows, so that memory stays at one row
    return np.stack(rows)


def _lab_row_to_rgb(lab: Bytes) -> Bytes:
    light = lab[..., 0] * (100.0 / 255.0)
    fy = (light + 16.0) / 116.0
    fx = fy + lab[..., 1].astype(np.int8) / 500.0
    fz = fy - lab[..., 2].astype(np.int8) / 200.0
    f = np.stack([fx, fy, fz], axis=-1)
    xyz = np.where(f > 6 / 29, f**3, (f - 16 / 116) * (3 * (6 / 29) ** 2)) * _D50
    linear = np.clip(xyz @ _XYZ_TO_RGB.T, 0.0, 1.0)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    rounded: Bytes = np.rint(srgb * 255.0).astype(np.uint8)
    return rounded

"""Any decoded picture to 8-bit RGB as a careful viewer would show it: alpha over white.

Scaling of deep pixels: 16-bit grey is divided by 257. 32-bit integers and floats carry no range of
their own, so values within 0..1 (floats), 0..255 or 0..65535 are read as such, anything else is
stretched between its extremes.
"""

from __future__ import annotations

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


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` (loaded) as mode RGB. Colours hidden under alpha 0 become white."""
    image = _without_premultiplied_alpha(image)
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_to_rgb(image)
    if image.mode == "LAB":
        return Image.fromarray(_lab_to_rgb(np.asarray(image)))
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return _over_white(image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _without_premultiplied_alpha(image: Image.Image) -> Image.Image:
    straight = {"La": "LA", "RGBa": "RGBA"}.get(image.mode)
    return image.convert(straight) if straight else image


def _over_white(rgba: Image.Image) -> Image.Image:
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def _deep_to_rgb(image: Image.Image) -> Image.Image:
    values = _array(image)
    grey = _grey16(values) if image.mode.startswith("I;16") else _grey_unknown(values)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey).convert("RGB")


def _array(image: Image.Image) -> npt.NDArray[Any]:
    values = np.asarray(image)
    # A byte-swapped view of 16-bit pixels compares and divides like any other.
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _grey16(values: npt.NDArray[Any]) -> Bytes:
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def _grey_unknown(values: npt.NDArray[Any]) -> Bytes:
    finite: Floats = values.astype(np.float64)
    known = np.isfinite(finite)
    if not known.any():
        return np.zeros(finite.shape, np.uint8)
    low, high = float(finite[known].min()), float(finite[known].max())
    finite = np.clip(np.nan_to_num(finite, nan=low, posinf=high, neginf=low), low, high)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    elif low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    scaled = (finite - low) / (high - low) * 255.0 if high > low else np.zeros_like(finite)
    return np.rint(scaled).astype(np.uint8)


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

"""An RGB picture on its way through several resizes, by the fastest way that gives equal pixels.

The reference is `Image.resize` of the installed library. Pillow's own loops are scalar; ours do
the same integer arithmetic many numbers at a time, and what comes out needs no conversion. Whether
they give the library's pixels is found once in a process, by trying both: pillow-simd rounds
otherwise, is as fast, and does it itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

from pyvlm.media import _resample

Pixels = npt.NDArray[np.uint8]  # [height, width, 3]
Ints = npt.NDArray[np.int32]

OWN_FILTERS = (Image.Resampling.LANCZOS, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)

_HALF_BITS = 12
_MIN_WIDTH = 6  # a row of fewer pixels is shorter than what is stored at once
_BAND_BYTES = 1 << 18  # of a picture's rows that are copied out at once: they stay in the cache
# Releases of Pillow that were read and have one of the orders below. Another may have a rule that
# the trials do not show: 12.2 and 12.3 do columns first where the height is over 100 widths.
READ_RELEASES = ("12.0", "12.1", "13.0")
# (width, height) before and after: up and down, one direction alone, and both sides of the point
# where the passes change places.
_TRIALS = (
    ((61, 47), (90, 60)), ((40, 90), (17, 133)), ((97, 50), (33, 50)), ((50, 97), (50, 33)),
    ((61, 70), (51, 49)), ((61, 70), (51, 50)), ((30, 50), (40, 49)), ((70, 61), (50, 40)),
)  # fmt: skip


class Order(Enum):
    ROWS_FIRST = "rows first"  # Pillow 12.0 and 12.1
    BY_SHRINKAGE = "by shrinkage"  # Pillow 13

    def is_columns_first(self, narrower: int, lower: int) -> bool:
        """By how many pixels the picture gets narrower and lower."""
        return self is Order.BY_SHRINKAGE and lower > max(0, 2 * narrower)


class Raster(Protocol):
    """Immutable. `resized` gives itself if the size is the same."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    def resized(self, width: int, height: int) -> Raster: ...
    def pixels(self) -> Pixels: ...


def raster(image: Image.Image, resample: int) -> Raster:
    """`image` is RGB; all resizes use the filter `resample`."""
    order = library_order(resample)
    if order is None:
        return LibraryRaster(image, resample)
    return OwnRaster(image, resample, order)


class LibraryRaster:
    def __init__(self, image: Image.Image, resample: int) -> None:
        self._image = image
        self._resample = Image.Resampling(resample)
        self.width, self.height = image.size

    def resized(self, width: int, height: int) -> LibraryRaster:
        if (width, height) == (self.width, self.height):
            return self
        return LibraryRaster(self._image.resize((width, height), self._resample), self._resample)

    def pixels(self) -> Pixels:
        return np.asarray(self._image)


class OwnRaster:
    """Only for filters of OWN_FILTERS, and where `_resample.available()`."""

    def __init__(self, source: Image.Image | Pixels, resample: int, order: Order) -> None:
        self._source = source
        self._resample = resample
        self._order = order
        if isinstance(source, Image.Image):
            self.width, self.height = source.size
        else:
            self.height, self.width = source.shape[:2]

    def resized(self, width: int, height: int) -> OwnRaster:
        if (width, height) == (self.width, self.height):
            return self
        if min(width, self.width) < _MIN_WIDTH:
            narrow = Image.fromarray(self.pixels())
            return self._with(np.asarray(narrow.resize((width, height), self._resample)))
        # Each pass rounds to 8 bits, so their order is part of the result.
        if self._order.is_columns_first(self.width - width, self.height - height):
            return self._with_height(height)._with_width(width)
        return self._with_width(width)._with_height(height)

    def pixels(self) -> Pixels:
        return np.asarray(self._source)

    def _with(self, pixels: Pixels) -> OwnRaster:
        return OwnRaster(pixels, self._resample, self._order)

    def _rows(self, top: int, bottom: int) -> Pixels:
        if isinstance(self._source, Image.Image):
            band = self._source.crop((0, top, self.width, bottom)).tobytes()
            return np.frombuffer(band, np.uint8).reshape(-1, self.width, 3)
        return self._source[top:bottom]

    def _with_width(self, width: int) -> OwnRaster:
        if width == self.width:
            return self
        starts, counts, weights = _resample.filter_weights(self.width, width, self._resample)
        groups, packed = -(-counts // 4), _row_weights(weights)
        out = np.empty((self.height, width, 3), np.uint8)
        for top, bottom in self._bands(self.height):
            band = self._rows(top, bottom)
            _resample.resample_rows(band, out[top:bottom], starts, groups, packed)
        return self._with(out)

    def _with_height(self, height: int) -> OwnRaster:
        if height == self.height:
            return self
        starts, counts, weights = _resample.filter_weights(self.height, height, self._resample)
        packed = _column_weights(weights)
        out = np.empty((height, 3 * self.width), np.uint8)
        for top, bottom in self._bands(height):
            first, last = starts[top], starts[bottom - 1] + counts[bottom - 1]
            band = self._rows(int(first), int(last)).reshape(-1, 3 * self.width)
            part = slice(top, bottom)
            _resample.resample_columns(
                band, out[part], starts[part] - first, counts[part], packed[part]
            )
        return self._with(out.reshape(height, self.width, 3))

    def _bands(self, height: int) -> Iterator[tuple[int, int]]:
        """(first row, row behind the last) from top to bottom."""
        rows = max(4, _BAND_BYTES // (3 * self.width) & ~3)
        for top in range(0, height, rows):
            yield top, min(height, top + rows)


@cache
def library_order(resample: int) -> Order | None:
    """The order in which the installed library makes its passes, if our resize gives its pixels
    for this filter; None where it has to do it itself."""
    if resample not in OWN_FILTERS or not _resample.available():
        return None
    if ".".join(PIL.__version__.split(".")[:2]) not in READ_RELEASES:
        return None
    return next((order for order in Order if _gives_its_pixels(resample, order)), None)


def _gives_its_pixels(resample: int, order: Order) -> bool:
    rng = np.random.default_rng(0)
    for (width, height), size in _TRIALS:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        expected = np.asarray(image.resize(size, resample))
        if not np.array_equal(OwnRaster(image, resample, order).resized(*size).pixels(), expected):
            return False
    return True


def _row_weights(weights: Ints) -> npt.NDArray[np.int16]:
    """[width, groups, 32]: see resample_avx2.h."""
    halves = _halves(weights, 4)  # [2, width, taps]
    _, width, taps = halves.shape
    pairs = halves.reshape(2, width, taps // 4, 2, 1, 2).repeat(4, axis=4)
    return np.ascontiguousarray(np.moveaxis(pairs, 0, 2)).reshape(width, taps // 4, 32)


def _column_weights(weights: Ints) -> Ints:
    """[height, pairs, 2]: see resample_avx2.h."""
    halves = np.moveaxis(_halves(weights, 2), 0, 1)  # [height, 2, taps]
    return np.ascontiguousarray(np.ascontiguousarray(halves).view(np.int32).swapaxes(1, 2))


def _halves(weights: Ints, multiple: int) -> npt.NDArray[np.int16]:
    """[2, rows, taps]: lower and upper half of each weight; zeros fill up to whole groups."""
    missing = -weights.shape[1] % multiple
    padded = np.pad(weights, ((0, 0), (0, missing)))
    return np.stack([padded & ((1 << _HALF_BITS) - 1), padded >> _HALF_BITS]).astype(np.int16)

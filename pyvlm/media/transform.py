"""Idefics3/SmolVLM's own preprocessing: resize, split into tiles, normalise, cut into patches.

The geometry follows the checkpoint's preprocessor_config.json. Every resize works on 8-bit RGB
pixels and rounds to 8 bit, so a picture passes up to three of them (to the longest edge, to whole
tiles, to the global view); each rounding is part of the model's input and is kept. After that a
pixel has one of 256 values per channel, so rescale and normalise are one table of 256 floats.

Letters: T tiles, P patches of a tile, p side of a patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pyvlm.errors import PyvlmError
from pyvlm.media._pixels import fill_patches
from pyvlm.media.raster import Pixels, raster

MAX_RESIZED_SIDE = 4096  # the reference never resizes beyond this

Size = tuple[int, int]  # (height, width)


@dataclass(frozen=True, slots=True)
class TileGrid:
    """How a picture is cut: rows x cols tiles and a global view, or just one tile (0 x 0)."""

    rows: int
    cols: int

    @property
    def num_tiles(self) -> int:
        return self.rows * self.cols + 1


@dataclass(frozen=True, slots=True)
class ImagePatches:
    """The encoder's input for one picture."""

    patches: npt.NDArray[np.float32]  # [T, P, 3*p*p]: raster patches, (channel, y, x) within one
    valid: npt.NDArray[np.int32]  # [T, 2]: rows and cols of real patches
    grid: TileGrid


@dataclass(frozen=True, slots=True)
class ImageTransform:
    """One checkpoint's preprocessing; immutable, cheap to send to another process."""

    patch_size: int
    tile_size: int
    longest_edge: int | None  # of the first resize; None: `size` is exact
    size: Size | None
    resample: int
    do_resize: bool
    do_split: bool
    do_rescale: bool
    rescale_factor: float
    do_normalize: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def num_patches(self) -> int:
        return (self.tile_size // self.patch_size) ** 2

    def grid(self, width: int, height: int) -> TileGrid:
        """The tiles of an upright picture of this size, without its pixels."""
        if not self.do_split:
            return TileGrid(0, 0)
        tall, wide = self._whole_tiles(*self._first_size(height, width))
        if tall <= self.tile_size and wide <= self.tile_size:
            return TileGrid(0, 0)
        return TileGrid(tall // self.tile_size, wide // self.tile_size)

    @property
    def largest_grid(self) -> TileGrid | None:
        """The most tiles of any picture; None if there is no bound: pictures keep their size.

        After a resize to the longest edge a square has the most, in rows and in columns.
        """
        if self.do_split and not self.do_resize:
            return None
        return self.grid(self.tile_size, self.tile_size)

    def apply(self, rgb: Image.Image, out: npt.NDArray[np.float32] | None = None) -> ImagePatches:
        """Patches of an upright RGB picture, written to `out` [T, P, 3*p*p] if it is given."""
        if rgb.mode != "RGB":
            raise ValueError(f"expected an RGB picture, not {rgb.mode}")
        grid = self.grid(*rgb.size)
        shape = (grid.num_tiles, self.num_patches, 3 * self.patch_size**2)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32:
            raise ValueError(f"out must be float32 {shape}, not {out.dtype} {out.shape}")
        table = self.table()
        for index, tile in enumerate(self._tiles(rgb, grid)):
            fill_patches(tile, table, out[index], self.patch_size)
        side = self.tile_size // self.patch_size
        return ImagePatches(out, np.full((grid.num_tiles, 2), side, np.int32), grid)

    def table(self) -> npt.NDArray[np.float32]:
        """[3, 256]: what each 8-bit value of each channel becomes, in the reference's rounding."""
        levels = np.arange(256, dtype=np.uint8)
        values = levels.astype(np.float32)
        if self.do_rescale:
            values = (levels.astype(np.float64) * self.rescale_factor).astype(np.float32)
        rows = np.repeat(values[None], 3, axis=0)
        if self.do_normalize:
            mean = np.array(self.mean, np.float32)[:, None]
            std = np.array(self.std, np.float32)[:, None]
            np.divide(np.subtract(rows, mean), std, out=rows)
        return rows

    def _first_size(self, height: int, width: int) -> Size:
        if not self.do_resize:
            return height, width
        if self.longest_edge is None:
            assert self.size is not None
            return self.size
        return _below_maximum(*_to_longest_edge(height, width, self.longest_edge))

    def _whole_tiles(self, height: int, width: int) -> Size:
        tile, aspect = self.tile_size, width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            height = math.ceil(int(width / aspect) / tile) * tile
        else:
            height = math.ceil(height / tile) * tile
            width = math.ceil(int(height * aspect) / tile) * tile
        return height, width

    def _tiles(self, rgb: Image.Image, grid: TileGrid) -> list[Pixels]:
        tile = self.tile_size
        height, width = self._first_size(rgb.height, rgb.width)
        image = raster(rgb, self.resample).resized(width, height)
        if not self.do_split:
            return [image.resized(tile, tile).pixels()]
        height, width = self._whole_tiles(image.height, image.width)
        image = image.resized(width, height)
        pixels = image.pixels()
        if grid.num_tiles == 1:
            return [pixels]
        crops = [
            pixels[r * tile : (r + 1) * tile, c * tile : (c + 1) * tile]
            for r in range(grid.rows)
            for c in range(grid.cols)
        ]
        return [*crops, image.resized(tile, tile).pixels()]


def transform_from_config(
    config: Mapping[str, Any], *, image_size: int, patch_size: int
) -> ImageTransform:
    """From preprocessor_config.json and the vision tower's image and patch size.

    Unset fields have the reference processor's defaults. Tiles have to be as large as the tower's
    grid: other sizes are refused rather than guessed.
    """
    get = config.get
    size = _sides(config, "size", 4 * 364)
    tile_size = _sides(config, "max_image_size", 364).get("longest_edge")
    if tile_size != image_size or image_size % patch_size:
        raise _invalid(
            f"max_image_size is {tile_size} but the vision tower takes {image_size} "
            f"in patches of {patch_size}"
        )
    exact = (size["height"], size["width"]) if "height" in size and "width" in size else None
    longest = size.get("longest_edge")
    if longest is None and exact is None:
        raise _invalid("size needs longest_edge, or height and width")
    if not _flag(config, "do_convert_rgb"):
        raise _invalid("do_convert_rgb false is not supported")
    return ImageTransform(
        patch_size=patch_size,
        tile_size=tile_size,
        longest_edge=longest,
        size=exact,
        resample=_resample(get("resample")),
        do_resize=_flag(config, "do_resize"),
        do_split=_flag(config, "do_image_splitting"),
        do_rescale=_flag(config, "do_rescale"),
        rescale_factor=_number(get("rescale_factor", 1 / 255), "rescale_factor"),
        do_normalize=_flag(config, "do_normalize"),
        mean=_three(get("image_mean"), "image_mean"),
        std=_three(get("image_std"), "image_std"),
    )


def _to_longest_edge(height: int, width: int, edge: int) -> Size:
    aspect = width / height
    if width >= height:
        width, height = edge, int(edge / aspect)
        height += height % 2
    else:
        height, width = edge, int(edge * aspect)
        width += width % 2
    return max(height, 1), max(width, 1)


def _below_maximum(height: int, width: int) -> Size:
    aspect = width / height
    if width >= height and width > MAX_RESIZED_SIDE:
        width, height = MAX_RESIZED_SIDE, int(MAX_RESIZED_SIDE / aspect)
    elif height > width and height > MAX_RESIZED_SIDE:
        height, width = MAX_RESIZED_SIDE, int(MAX_RESIZED_SIDE * aspect)
    return max(height, 1), max(width, 1)


def _sides(config: Mapping[str, Any], name: str, default: int) -> dict[str, int]:
    """An object of side lengths in pixels."""
    sides = config.get(name) or {"longest_edge": default}
    if not isinstance(sides, Mapping):
        raise _invalid(f"{name} must be an object, not {sides!r}")
    given = {key: side for key, side in sides.items() if side is not None}
    for key, side in given.items():
        if isinstance(side, bool) or not isinstance(side, int) or side < 1:
            raise _invalid(f"{name}.{key} must be a positive number of pixels, not {side!r}")
    return given


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _invalid(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    return True if value is None else bool(value)


def _resample(value: object) -> int:
    if value is None:
        return int(Image.Resampling.LANCZOS)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 5:
        raise _invalid(f"resample {value!r} is not known")
    return value


def _three(value: object, name: str) -> tuple[float, float, float]:
    if value is None:
        return (0.5, 0.5, 0.5)
    values = [value] * 3 if isinstance(value, (int, float)) else value
    if not isinstance(values, list) or len(values) != 3:
        raise _invalid(f"{name} needs three values, one per channel")
    try:
        red, green, blue = (float(v) for v in values)
    except (TypeError, ValueError):
        raise _invalid(f"{name} needs three numbers") from None
    if not all(math.isfinite(v) for v in (red, green, blue)) or (
        name == "image_std" and 0.0 in (red, green, blue)
    ):
        raise _invalid(f"{name} needs finite values, and a deviation is not 0")
    return red, green, blue


def _invalid(reason: str) -> PyvlmError:
    return PyvlmError(f"preprocessor_config.json: {reason}", code="model_invalid")

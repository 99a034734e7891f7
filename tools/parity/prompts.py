"""Prompts and pictures of the parity cases, made by code: no file, no resampling before the
processor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One sequence as a model sees it.

    ids        [T], expanded: one image token id for each row of a picture
    pixels     [tiles, 3, S, S], normalised; None without pictures
    valid      [tiles, n, n], true where a patch holds picture; a tile's are a rectangle from (0, 0)
    num_tiles  of each picture, in order
    """

    ids: NDArray[np.int32]
    pixels: NDArray[np.float32] | None = None
    valid: NDArray[np.bool_] | None = None
    num_tiles: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A chat turn before tokenising: pictures in order, then the text."""

    text: str
    images: tuple[Image.Image, ...] = field(default=(), compare=False)

    def messages(self) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "image"} for _ in self.images]
        return [{"role": "user", "content": [*content, {"type": "text", "text": self.text}]}]


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Smooth colour gradients with a rectangle and a disc, all in integers."""
    random = np.random.default_rng(seed)
    corner, slope_x, slope_y = random.integers(0, 256, (3, 3))
    y, x = np.mgrid[0:height, 0:width]
    pixels = corner + x[..., None] * slope_x // max(width, 1) - y[..., None] * slope_y // height
    left, top = int(random.integers(0, width // 2 + 1)), int(random.integers(0, height // 2 + 1))
    pixels[top : top + height // 3, left : left + width // 3] = random.integers(0, 256, 3)
    centre_x, centre_y = int(random.integers(0, width)), int(random.integers(0, height))
    disc = (x - centre_x) ** 2 + (y - centre_y) ** 2 <= (min(width, height) // 5) ** 2
    pixels[disc] = random.integers(0, 256, 3)
    return Image.fromarray((pixels % 256).astype(np.uint8), "RGB")


def text_ids(length: int, vocab: int, seed: int) -> NDArray[np.int32]:
    """Random ids that no chat would give, below `vocab`."""
    return np.random.default_rng(seed).integers(3, vocab, length).astype(np.int32)


def disc(colour: tuple[int, int, int], size: int = 96) -> Image.Image:
    """A filled circle on white, without smoothing."""
    y, x = np.mgrid[0:size, 0:size]
    inside = (2 * x + 1 - size) ** 2 + (2 * y + 1 - size) ** 2 <= (size * 6 // 10) ** 2
    return _filled(inside, colour)


def square(colour: tuple[int, int, int], size: int = 96) -> Image.Image:
    """A filled square on white."""
    y, x = np.mgrid[0:size, 0:size]
    low, high = size // 4, size - size // 4
    return _filled((x >= low) & (x < high) & (y >= low) & (y < high), colour)


def _filled(inside: NDArray[np.bool_], colour: tuple[int, int, int]) -> Image.Image:
    pixels = np.full((*inside.shape, 3), 255, np.uint8)
    pixels[inside] = colour
    return Image.fromarray(pixels, "RGB")

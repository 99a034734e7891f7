"""Colours and backgrounds."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

Rgb = tuple[int, int, int]

COLOURS: dict[str, list[Rgb]] = {
    "red": [(255, 0, 0), (255, 0, 0), (220, 20, 40), (230, 40, 40)],
    "green": [(0, 255, 0), (0, 128, 0), (34, 139, 34), (40, 180, 70), (50, 205, 50)],
    "blue": [(0, 0, 255), (0, 0, 255), (30, 60, 200), (40, 90, 230), (0, 0, 160)],
    "yellow": [(255, 255, 0), (255, 255, 0), (250, 225, 30), (255, 235, 60)],
    "black": [(0, 0, 0), (0, 0, 0), (20, 20, 20)],
    "orange": [(255, 165, 0), (255, 140, 0), (245, 130, 30)],
    "purple": [(128, 0, 128), (150, 50, 200), (128, 40, 170), (140, 0, 211)],
    "gray": [(128, 128, 128), (140, 140, 140), (110, 110, 110)],
    "teal": [(0, 128, 128), (0, 140, 140)],
    "brown": [(165, 42, 42), (139, 69, 19), (130, 70, 40)],
    "white": [(255, 255, 255), (250, 250, 250)],
    "pink": [(255, 105, 180), (255, 150, 190), (255, 170, 200)],
}
MAIN_COLOURS = ["red", "green", "blue", "yellow", "black", "orange", "purple"]
EXTRA_COLOURS = ["gray", "teal", "brown", "white", "pink"]
MIN_CONTRAST = 115.0


@dataclass(frozen=True)
class Background:
    """`colour` is the name, or "" where the background has no name (pale, gradient, noisy)."""

    rgb: Rgb
    rgb_end: Rgb
    colour: str = ""
    noise: float = 0.0
    vertical: bool = True


def distance(a: Rgb, b: Rgb) -> float:
    """Euclidean distance of two colours, 0..441."""
    return math.dist(a, b)


def sample_rgb(rng: random.Random, name: str) -> Rgb:
    """A shade of a named colour, with a little jitter half of the time."""
    base = rng.choice(COLOURS[name])
    if rng.random() < 0.5:
        return base
    r, g, b = (min(255, max(0, v + rng.randint(-12, 12))) for v in base)
    return r, g, b


def sample_background(rng: random.Random) -> Background:
    """White half of the time, else pale, named, gradient, dark; sometimes with mild noise."""
    noise = rng.uniform(3, 14) if rng.random() < 0.1 else 0.0
    draw = rng.random()
    if draw < 0.5:
        return Background((255, 255, 255), (255, 255, 255), "white", noise)
    if draw < 0.68:
        rgb = (rng.randint(215, 255), rng.randint(215, 255), rng.randint(215, 255))
        return Background(rgb, rgb, "", noise)
    if draw < 0.88:
        name = rng.choice([*MAIN_COLOURS, *EXTRA_COLOURS])
        rgb = sample_rgb(rng, name)
        return Background(rgb, rgb, name, noise)
    low = rng.choice([0, 100, 180])
    start = (rng.randint(low, 255), rng.randint(low, 255), rng.randint(low, 255))
    end = tuple(min(255, max(0, v + rng.randint(-90, 90))) for v in start)
    return Background(start, end, "", noise, rng.random() < 0.5)  # type: ignore[arg-type]


def sample_colour(rng: random.Random, background: Background) -> tuple[str, Rgb]:
    """A colour name and shade that stands out from both ends of the background."""
    while True:
        name = rng.choice(MAIN_COLOURS if rng.random() < 0.72 else EXTRA_COLOURS)
        rgb = sample_rgb(rng, name)
        contrast = min(distance(rgb, background.rgb), distance(rgb, background.rgb_end))
        needed = 90 if background.colour == "white" else MIN_CONTRAST
        if name != background.colour and contrast >= needed:
            return name, rgb

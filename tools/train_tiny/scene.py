"""Scenes: what a picture shows, sampled from a seeded generator, before a single pixel is drawn.

Pure Python. All coordinates are pixels of the picture; `rng` is the only source of chance.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from tools.train_tiny.palette import Background, Rgb, sample_background, sample_colour

MAIN_SHAPES = ["circle", "square", "triangle", "star"]
SHAPES = [*MAIN_SHAPES, "rectangle"]
OTHERS = ["blank", "scribble", "cross", "letter", "heart", "noise", "stripes"]


@dataclass(frozen=True)
class Obj:
    """One thing in the picture. `half_w` and `half_h` are half extents before rotation, pixels."""

    kind: str
    colour: str
    rgb: Rgb
    cx: float
    cy: float
    half_w: float
    half_h: float
    angle: float = 0.0
    text: str = ""
    outline: bool = False


@dataclass(frozen=True)
class Scene:
    """A whole picture. `type` is one of single, pair, group, number, other."""

    type: str
    width: int
    height: int
    background: Background
    objects: tuple[Obj, ...] = field(default_factory=tuple)
    font: int = 0
    seed: int = 0


def sample_size(rng: random.Random) -> tuple[int, int]:
    """Picture size (width, height): 64..512 a side, aspect 9:16 to 16:9."""
    long_side = int(math.exp(rng.uniform(math.log(80), math.log(440))))
    aspect = rng.choice([1.0, 1.0, 4 / 3, 4 / 3, 3 / 2, 16 / 9, rng.uniform(1.0, 16 / 9)])
    short_side = max(56, round(long_side / aspect))
    return (short_side, long_side) if rng.random() < 0.25 else (long_side, short_side)


def shape_extents(
    rng: random.Random, kind: str, radius: float, squash: float
) -> tuple[float, float]:
    """Half extents of a shape of the given outer radius. `squash` is height / width of the picture.

    A rectangle keeps a ratio that is clearly not square even after the picture is made square.
    """
    if kind != "rectangle":
        return radius, radius
    ratio = rng.uniform(2.0, 3.2)
    wide = rng.random() < 0.6
    if wide and squash < 1:
        ratio /= squash
    elif not wide and squash > 1:
        ratio *= squash
    ratio = min(ratio, 4.0)
    return (radius, radius / ratio) if wide else (radius / ratio, radius)


def sample_angle(rng: random.Random, kind: str) -> float:
    """Degrees. Mostly upright; triangles may point anywhere now and then."""
    if kind in ("circle", "rectangle") or rng.random() < 0.65:
        return 0.0
    if kind == "triangle" and rng.random() < 0.3:
        return rng.choice([180.0, 90.0, 270.0])
    return rng.uniform(-15, 15)


def _place(
    rng: random.Random, size: tuple[int, int], radii: list[float]
) -> tuple[list[tuple[float, float]], list[float]]:
    """Centres of non-overlapping discs inside the picture, and the radii, shrunk if need be."""
    width, height = size
    while True:
        for _ in range(12):
            spots: list[tuple[float, float]] = []
            for index, radius in enumerate(radii):
                for _ in range(30):
                    x = rng.uniform(radius + 1, width - radius - 1)
                    y = rng.uniform(radius + 1, height - radius - 1)
                    if all(
                        math.dist((x, y), s) > (radius + radii[j]) * 1.12
                        for j, s in enumerate(spots)
                    ):
                        spots.append((x, y))
                        break
                if len(spots) <= index:
                    break
            if len(spots) == len(radii):
                return spots, radii
        radii = [0.85 * radius for radius in radii]


def _row(rng: random.Random, size: tuple[int, int], n: int) -> list[tuple[float, float]]:
    """Centres evenly along the longer side."""
    width, height = size
    along = [(i + 0.5) / n for i in range(n)]
    middle = rng.uniform(0.42, 0.58)
    across = [middle + rng.uniform(-0.03, 0.03) for _ in range(n)]
    if width >= height:
        return [(a * width, b * height) for a, b in zip(along, across, strict=True)]
    return [(b * width, a * height) for a, b in zip(along, across, strict=True)]


def make_object(
    rng: random.Random,
    scene_size: tuple[int, int],
    background: Background,
    kind: str,
    centre: tuple[float, float],
    radius: float,
    colour: tuple[str, Rgb] | None = None,
) -> Obj:
    """One shape at a place, of a given or a fresh colour."""
    name, rgb = colour or sample_colour(rng, background)
    half_w, half_h = shape_extents(rng, kind, radius, scene_size[1] / scene_size[0])
    return Obj(
        kind,
        name,
        rgb,
        *centre,
        half_w,
        half_h,
        sample_angle(rng, kind),
        outline=rng.random() < 0.08,
    )


def sample_kind(rng: random.Random) -> str:
    """A shape: the four main ones, sometimes a rectangle."""
    return "rectangle" if rng.random() < 0.12 else rng.choice(MAIN_SHAPES)


def sample_single(rng: random.Random) -> Scene:
    """One shape, of any size, centred or not."""
    width, height = size = sample_size(rng)
    background = sample_background(rng)
    low = 0.09 if rng.random() < 0.3 else 0.2
    radius = rng.uniform(low, 0.48) * min(size)
    middle = rng.random() < 0.4
    centre = (width / 2, height / 2) if middle else _place(rng, size, [radius])[0][0]
    obj = make_object(rng, size, background, sample_kind(rng), centre, radius)
    return Scene("single", width, height, background, (obj,), seed=rng.getrandbits(32))


def sample_group(rng: random.Random) -> Scene:
    """Two to five shapes (one now and then), alike or mixed, scattered or in a row."""
    width, height = size = sample_size(rng)
    background = sample_background(rng)
    n = rng.choice([1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5])
    in_row = rng.random() < 0.4
    limit = min(0.45 * max(size) / n, 0.4 * min(size)) if in_row else 0.24 * min(size)
    low = min(0.1 * min(size), 0.8 * limit)
    if rng.random() < 0.5:
        radii = [rng.uniform(low, limit)] * n
    else:
        radii = [rng.uniform(low, limit) for _ in range(n)]
    spots, radii = (_row(rng, size, n), radii) if in_row else _place(rng, size, radii)
    pool = [sample_kind(rng)] if rng.random() < 0.5 else [sample_kind(rng) for _ in range(3)]
    tint = sample_colour(rng, background) if rng.random() < 0.5 else None
    objects = tuple(
        make_object(rng, size, background, rng.choice(pool), spot, radius, tint)
        for spot, radius in zip(spots, radii, strict=True)
    )
    return Scene("group", width, height, background, objects, seed=rng.getrandbits(32))


def sample_pair(rng: random.Random) -> Scene:
    """Two shapes of different kinds, clearly beside or above each other."""
    width, height = size = sample_size(rng)
    background = sample_background(rng)
    while True:
        radii = [rng.uniform(0.11, 0.25) * min(size) for _ in range(2)]
        spots, radii = _place(rng, size, radii)
        if rng.random() < 0.4:
            axis = rng.randrange(2)
            mid = size[1 - axis] * rng.uniform(0.35, 0.65)
            spots = [(s[0], mid) if axis == 0 else (mid, s[1]) for s in spots]
            if math.dist(*spots) < sum(radii) * 1.1:
                continue
        dx, dy = (abs(spots[0][i] - spots[1][i]) / size[i] for i in range(2))
        if max(dx, dy) > 0.25:
            break
    kinds = rng.sample(MAIN_SHAPES, 2)
    if rng.random() < 0.08:
        kinds[rng.randrange(2)] = "rectangle"
        if "square" in kinds:
            kinds[kinds.index("square")] = "circle"
    colours = [sample_colour(rng, background)]
    while len(colours) < 2:
        other = sample_colour(rng, background)
        if other[0] != colours[0][0] or rng.random() < 0.1:
            colours.append(other)
    objects = tuple(
        make_object(rng, size, background, kind, spot, radius, colour)
        for kind, spot, radius, colour in zip(kinds, spots, radii, colours, strict=True)
    )
    return Scene("pair", width, height, background, objects, seed=rng.getrandbits(32))


def sample_number(rng: random.Random) -> Scene:
    """A digit or a two-digit number. `half_h` is half of the wanted text height."""
    width, height = sample_size(rng)
    background = sample_background(rng)
    text = str(rng.randint(0, 9) if rng.random() < 0.4 else rng.randint(10, 99))
    name, rgb = sample_colour(rng, background)
    if background.colour == "white" and rng.random() < 0.35:
        name, rgb = "black", (0, 0, 0)
    half_h = rng.uniform(0.13, 0.46) * height
    half_w = min(half_h * 0.75 * len(text), width * 0.46)
    if rng.random() < 0.4:
        cx, cy = width / 2, height / 2
    else:
        cx = rng.uniform(half_w, width - half_w) if width > 2 * half_w else width / 2
        cy = rng.uniform(half_h, height - half_h)
    angle = rng.uniform(-10, 10) if rng.random() < 0.15 else 0.0
    obj = Obj("number", name, rgb, cx, cy, half_w, half_h, angle, text)
    return Scene(
        "number",
        width,
        height,
        background,
        (obj,),
        font=rng.getrandbits(16),
        seed=rng.getrandbits(32),
    )


def sample_other(rng: random.Random) -> Scene:
    """Something that is neither a known shape nor a number, or nothing at all."""
    width, height = sample_size(rng)
    background = sample_background(rng)
    kind = rng.choice(OTHERS)
    name, rgb = sample_colour(rng, background)
    radius = rng.uniform(0.2, 0.45) * min(width, height)
    x = rng.uniform(radius, width - radius)
    y = rng.uniform(radius, height - radius)
    obj = Obj(kind, name, rgb, x, y, radius, radius, 0.0, rng.choice("ABCDEFGHKMNPRTUVWXY"))
    return Scene(
        "other",
        width,
        height,
        background,
        (obj,),
        font=rng.getrandbits(16),
        seed=rng.getrandbits(32),
    )


SAMPLERS = {
    "single": sample_single,
    "group": sample_group,
    "pair": sample_pair,
    "number": sample_number,
    "other": sample_other,
}


def sample_scene(rng: random.Random, kind: str) -> Scene:
    """A scene of one type."""
    return SAMPLERS[kind](rng)

"""Mosaics: pictures full of labelled things, for the first stage of training."""

from __future__ import annotations

import random

from tools.train_tiny.palette import sample_background, sample_colour
from tools.train_tiny.scene import Obj, Scene, make_object, sample_kind, sample_size


def sample_mosaic(rng: random.Random) -> Scene:
    """Shapes and numbers in the cells of a grid: many labels in one picture."""
    width, height = size = sample_size(rng)
    background = sample_background(rng)
    columns, rows = rng.choice([(2, 2), (3, 2), (2, 3), (3, 3), (4, 2)])
    cell_w, cell_h = width / columns, height / rows
    objects = []
    for cell in range(columns * rows):
        radius = min(cell_w, cell_h) / 2 * rng.uniform(0.6, 0.95)
        x = (cell % columns + 0.5) * cell_w + rng.uniform(-1, 1) * (cell_w / 2 - radius)
        y = (cell // columns + 0.5) * cell_h + rng.uniform(-1, 1) * (cell_h / 2 - radius)
        if rng.random() < 0.45:
            objects.append(make_object(rng, size, background, sample_kind(rng), (x, y), radius))
            continue
        text = str(rng.randint(0, 9) if rng.random() < 0.5 else rng.randint(10, 99))
        name, rgb = sample_colour(rng, background)
        half_h = radius if len(text) == 1 else min(radius, cell_w * 0.36)
        objects.append(Obj("number", name, rgb, x, y, radius, half_h, 0.0, text))
    return Scene(
        "mosaic",
        width,
        height,
        background,
        tuple(objects),
        font=rng.getrandbits(16),
        seed=rng.getrandbits(32),
    )

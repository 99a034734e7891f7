"""Questions about a scene with their right answers. Pure Python, seeded by `rng`."""

from __future__ import annotations

import random

from tools.train_tiny import phrases as p
from tools.train_tiny.about_places import (
    colour_number,
    is_beside,
    is_number,
    is_number_there,
    no_shape,
    read_number,
    unknown,
    unknown_picture,
    what_beside,
    what_side,
)
from tools.train_tiny.about_shapes import (
    background,
    colour_of_one,
    colour_single,
    count,
    describe,
    either_single,
    is_it,
    is_there,
    shape_single,
)
from tools.train_tiny.freetext import UNKNOWN, unknown_question
from tools.train_tiny.qa import Maker, Qa, ambiguous, ask
from tools.train_tiny.scene import Scene

MAKERS: dict[str, list[tuple[Maker, float]]] = {
    "single": [
        (colour_single, 3),
        (shape_single, 3),
        (either_single, 1),
        (background, 0.7),
        (is_it, 2),
        (is_there, 2.5),
        (count, 0.5),
        (describe, 1),
        (is_number_there, 0.2),
        (unknown, 1),
    ],
    "group": [
        (count, 7),
        (is_there, 1.5),
        (describe, 1),
        (colour_of_one, 1),
        (background, 0.3),
        (unknown, 0.7),
    ],
    "pair": [
        (what_beside, 3.2),
        (is_beside, 3.2),
        (what_side, 2.2),
        (colour_of_one, 1.5),
        (is_there, 1),
        (count, 0.7),
        (describe, 1),
        (unknown, 0.8),
    ],
    "number": [
        (read_number, 6),
        (is_number, 1.8),
        (colour_number, 1),
        (describe, 0.8),
        (no_shape, 0.4),
        (is_number_there, 0.3),
        (background, 0.4),
        (unknown, 0.7),
    ],
    "other": [(unknown_picture, 4), (no_shape, 2), (background, 0.6), (unknown, 1.5)],
}


def make_question(rng: random.Random, scene: Scene) -> Qa:
    """One question about the scene."""
    makers, weights = zip(*MAKERS[scene.type], strict=True)
    while True:
        qa = rng.choices(makers, weights)[0](rng, scene)
        if qa is not None:
            return qa


def find_question(rng: random.Random, scene: Scene, task: str) -> Qa | None:
    """One question of a task about the scene, or None where the scene seems to allow none."""
    for _ in range(80):
        qa = make_question(rng, scene)
        if qa.task == task:
            return qa
    return None


def tell_apart(first: Scene, second: Scene) -> bool:
    """Whether two single-shape scenes differ in kind, so that a question can tell them apart."""
    kinds = (first.objects[0].kind, second.objects[0].kind)
    return kinds[0] != kinds[1] and kinds[1] not in ambiguous(kinds[0])


def two_pictures(rng: random.Random, first: Scene, second: Scene) -> Qa:
    """A question about two single-shape pictures of different kinds."""
    index = rng.randrange(2)
    obj = (first, second)[index].objects[0]
    other = (second, first)[index].objects[0]
    ordinal = ["first", "second"][index]
    draw = rng.random()
    if draw < 0.62:
        names = [obj.kind, f"{obj.colour} {obj.kind}"]
        names += [f"{obj.colour} shape"] if obj.colour != other.colour else []
        x = rng.choice(["a ", "the "]) + rng.choice(names)
        x = x.replace("a orange", "an orange")
        return ask(rng, p.WHICH_PICTURE, ordinal, "two pictures", x=x)
    if draw < 0.84:
        return ask(rng, p.ORDINAL_SHAPE, obj.kind, "two pictures", o=ordinal)
    return ask(rng, p.ORDINAL_COLOUR, obj.colour, "two pictures", o=ordinal)


def no_picture(rng: random.Random, held_out: bool = False) -> Qa:
    """A question with no picture at all: always unknown."""
    if rng.random() < 0.5:
        return Qa(p.style(rng, unknown_question(rng, held_out)), UNKNOWN, "no picture")
    templates = rng.choice(
        [p.COLOUR_OF_SHAPE, p.SHAPE_OF, p.NUMBER, p.DESCRIBE, p.COLOUR_BARE, p.DIGIT, p.BACKGROUND]
    )
    return ask(rng, templates, UNKNOWN, "no picture")

"""Questions about positions, numbers, and pictures of nothing known."""

from __future__ import annotations

import random

from tools.train_tiny import phrases as p
from tools.train_tiny.freetext import UNKNOWN, unknown_question
from tools.train_tiny.palette import MAIN_COLOURS
from tools.train_tiny.qa import Qa, ask, yes_no
from tools.train_tiny.scene import SHAPES, Obj, Scene

OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
MIN_SHIFT = 0.2


def relations(scene: Scene, a: Obj, b: Obj) -> list[str]:
    """Where `a` lies as seen from `b`, clear cases only."""
    dx, dy = (a.cx - b.cx) / scene.width, (a.cy - b.cy) / scene.height
    found = []
    if abs(dx) > MIN_SHIFT:
        found.append("left" if dx < 0 else "right")
    if abs(dy) > MIN_SHIFT:
        found.append("above" if dy < 0 else "below")
    return found


def pair_names(rng: random.Random, a: Obj, b: Obj) -> tuple[str, str]:
    """The two shapes' names, with colours now and then."""
    if rng.random() < 0.25:
        return f"{a.colour} {a.kind}", f"{b.colour} {b.kind}"
    return a.kind, b.kind


def what_beside(rng: random.Random, scene: Scene) -> Qa:
    """What lies left of, right of, above or below a shape; "nothing" a quarter of the time."""
    a, b = rng.sample(scene.objects, 2)
    side = rng.choice(relations(scene, a, b))
    answer = a.kind
    if rng.random() < 0.25:
        side, answer = OPPOSITE[side], "nothing"
    rel = rng.choice(p.BESIDE[side]).format(b=pair_names(rng, a, b)[1])
    return ask(rng, p.WHAT_BESIDE, answer, "position", rel=rel)


def is_beside(rng: random.Random, scene: Scene) -> Qa:
    """Whether one shape lies on a side of the other."""
    a, b = rng.sample(scene.objects, 2)
    side, truth = rng.choice(relations(scene, a, b)), rng.random() < 0.5
    first, second = pair_names(rng, a, b)
    rel = rng.choice(p.BESIDE[side if truth else OPPOSITE[side]]).format(b=second)
    return ask(rng, p.IS_BESIDE, yes_no(truth), "position", a=first, rel=rel)


def what_side(rng: random.Random, scene: Scene) -> Qa:
    """The shape, or its colour, on one side of the picture."""
    a, b = rng.sample(scene.objects, 2)
    side = rng.choice(p.SIDE[rng.choice(relations(scene, a, b))])
    if rng.random() < 0.35:
        return ask(rng, p.COLOUR_SIDE, a.colour, "position", side=side)
    return ask(rng, p.WHAT_SIDE, a.kind, "position", side=side)


def read_number(rng: random.Random, scene: Scene) -> Qa:
    """The number or digit that is written."""
    text = scene.objects[0].text
    templates = p.DIGIT if len(text) == 1 and rng.random() < 0.5 else p.NUMBER
    return ask(rng, templates, text, "number")


def is_number(rng: random.Random, scene: Scene) -> Qa:
    """Whether it is a given number; the wrong one is often just one digit off."""
    text, truth = scene.objects[0].text, rng.random() < 0.5
    shown = text
    while not truth and shown == text:
        digits = list(text)
        digits[rng.randrange(len(digits))] = str(rng.randint(0, 9))
        shown = "".join(digits) if digits[0] != "0" or len(digits) == 1 else text
    return ask(rng, p.IS_NUMBER, yes_no(truth), "number", n=shown)


def colour_number(rng: random.Random, scene: Scene) -> Qa:
    """The colour of the number."""
    obj = scene.objects[0]
    thing = "digit" if len(obj.text) == 1 and rng.random() < 0.5 else "number"
    if rng.random() < 0.3:
        return ask(rng, p.COLOUR_BARE, obj.colour, "colour")
    return ask(rng, p.COLOUR_OF_SHAPE, obj.colour, "colour", thing=thing)


def no_shape(rng: random.Random, _scene: Scene) -> Qa:
    """Presence of shapes in a picture that has none."""
    word = rng.choice([*SHAPES, *(f"{rng.choice(MAIN_COLOURS)} {k}" for k in SHAPES)])
    templates = p.THERE if rng.random() < 0.7 else p.IS_SHAPE
    return ask(rng, templates, "no", "yesno", x=p.article(word))


def is_number_there(rng: random.Random, scene: Scene) -> Qa:
    """Whether there is a number or a digit at all."""
    word = rng.choice(["number", "digit", "number"])
    return ask(rng, p.THERE, yes_no(scene.type == "number"), "yesno", x=p.article(word))


def unknown(rng: random.Random, _scene: Scene) -> Qa:
    """Something never learnt."""
    return Qa(p.style(rng, unknown_question(rng)), UNKNOWN, "unknown")


def unknown_picture(rng: random.Random, scene: Scene) -> Qa:
    """A usual question about a picture that shows nothing known; the colour of a thing is known."""
    obj = scene.objects[0]
    if obj.kind in ("cross", "heart", "letter") and rng.random() < 0.3:
        return ask(rng, p.COLOUR_OF_SHAPE, obj.colour, "colour")
    templates = rng.choice([p.SHAPE_OF, p.NUMBER, p.DIGIT, p.SHAPE_OF, p.DESCRIBE])
    return ask(rng, templates, UNKNOWN, "unknown")

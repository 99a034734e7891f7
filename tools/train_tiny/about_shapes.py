"""Questions about shapes and their colours: open ones, yes or no, counting, describing."""

from __future__ import annotations

import random

from tools.train_tiny import phrases as p
from tools.train_tiny.palette import COLOURS
from tools.train_tiny.qa import Qa, ambiguous, ask, other_than, plural, yes_no
from tools.train_tiny.scene import SHAPES, Scene


def colour_single(rng: random.Random, scene: Scene) -> Qa:
    """The colour of the only shape."""
    obj = scene.objects[0]
    if rng.random() < 0.3:
        return ask(rng, p.COLOUR_BARE, obj.colour, "colour")
    if rng.random() < 0.4:
        return ask(rng, p.COLOUR_OF_SHAPE, obj.colour, "colour", thing=obj.kind)
    return ask(rng, p.COLOUR_OF_SHAPE, obj.colour, "colour")


def shape_single(rng: random.Random, scene: Scene) -> Qa:
    """The kind of the only shape."""
    obj = scene.objects[0]
    if rng.random() < 0.25:
        return ask(rng, p.SHAPE_BY_COLOUR, obj.kind, "shape", c=obj.colour)
    return ask(rng, p.SHAPE_OF, obj.kind, "shape")


def either_single(rng: random.Random, scene: Scene) -> Qa:
    """A choice of two, one of them right."""
    obj = scene.objects[0]
    if rng.random() < 0.5:
        pair = [obj.kind, other_than(rng, SHAPES, obj.kind, *ambiguous(obj.kind))]
        rng.shuffle(pair)
        return ask(rng, p.EITHER, obj.kind, "shape", a=pair[0], b=pair[1])
    pair = [obj.colour, other_than(rng, list(COLOURS), obj.colour)]
    rng.shuffle(pair)
    return ask(rng, p.EITHER_COLOUR, obj.colour, "colour", a=pair[0], b=pair[1])


def background(rng: random.Random, scene: Scene) -> Qa | None:
    """The colour of the background, where it has a name."""
    name = scene.background.colour
    if not name:
        return None
    thing = scene.objects[0].kind if scene.type == "single" else "shape"
    thing = thing if rng.random() < 0.5 else ("number" if scene.type == "number" else "shape")
    return ask(rng, p.BACKGROUND, name, "background", thing=thing)


def is_it(rng: random.Random, scene: Scene) -> Qa:
    """Whether the only shape is of a kind or a colour."""
    obj, truth = scene.objects[0], rng.random() < 0.5
    what = rng.random()
    if what < 0.45:
        kind = obj.kind if truth else other_than(rng, SHAPES, obj.kind, *ambiguous(obj.kind))
        return ask(rng, p.IS_SHAPE, yes_no(truth), "yesno", x=p.article(kind))
    colour = obj.colour if truth else other_than(rng, list(COLOURS), obj.colour)
    if what < 0.8:
        thing = obj.kind if rng.random() < 0.4 else rng.choice(p.THING)
        return ask(rng, p.IS_COLOUR, yes_no(truth), "yesno", c=colour, thing=thing)
    kind = obj.kind
    if not truth and rng.random() < 0.5:
        colour, kind = obj.colour, other_than(rng, SHAPES, obj.kind, *ambiguous(obj.kind))
    return ask(rng, p.IS_SHAPE, yes_no(truth), "yesno", x=p.article(f"{colour} {kind}"))


def is_there(rng: random.Random, scene: Scene) -> Qa | None:
    """Whether the picture holds a shape, a colour, or a coloured shape; sometimes negated."""
    truth = rng.random() < 0.5
    y = _present(rng, scene) if truth else _absent(rng, scene)
    if y is None:
        return None
    if rng.random() < 0.2:
        return ask(rng, p.THERE_NOT, yes_no(not truth), "yesno", x=p.article(y), y=y)
    return ask(rng, p.THERE, yes_no(truth), "yesno", x=p.article(y))


def _present(rng: random.Random, scene: Scene) -> str:
    obj = rng.choice(scene.objects)
    return rng.choice(
        [obj.kind, f"{obj.colour} {rng.choice(['shape', 'object'])}", f"{obj.colour} {obj.kind}"]
    )


def _absent(rng: random.Random, scene: Scene) -> str | None:
    """Something that is not there, often close to what is there."""
    kinds, colours = {o.kind for o in scene.objects}, {o.colour for o in scene.objects}
    blocked = {b for kind in kinds for b in ambiguous(kind)}
    free_kinds = [k for k in SHAPES if k not in kinds and k not in blocked]
    free_colours = [c for c in COLOURS if c not in colours]
    draw = rng.random()
    if draw < 0.35:
        return rng.choice(free_kinds) if free_kinds else None
    if draw < 0.65:
        return f"{rng.choice(free_colours)} {rng.choice(['shape', 'object'])}"
    obj = rng.choice(scene.objects)
    pairs = {(o.colour, o.kind) for o in scene.objects}
    options = [(o.colour, obj.kind) for o in scene.objects]
    options += [(rng.choice(free_colours), obj.kind)]
    options += [(obj.colour, rng.choice(free_kinds))] if free_kinds else []
    options = [o for o in options if o not in pairs]
    return " ".join(rng.choice(options)) if options else None


def count(rng: random.Random, scene: Scene) -> Qa:
    """How many shapes there are: all, of a kind, or of a colour."""
    objects = scene.objects
    draw = rng.random()
    if draw < 0.5:
        word = rng.choice(["shapes", "shapes", "objects", "things", "figures"])
        return ask(rng, p.COUNT, str(len(objects)), "count", p=word)
    if draw < 0.8:
        kind = rng.choice(objects).kind
        if rng.random() < 0.08:
            kind = other_than(rng, SHAPES, *{b for o in objects for b in ambiguous(o.kind)})
        n = sum(o.kind == kind for o in objects)
        return ask(rng, p.COUNT, str(n), "count", p=plural(kind))
    colour = rng.choice(objects).colour
    n = sum(o.colour == colour for o in objects)
    return ask(rng, p.COUNT, str(n), "count", p=f"{colour} {rng.choice(['shapes', 'objects'])}")


def describe(rng: random.Random, scene: Scene) -> Qa:
    """A few words on the whole picture."""
    objects = scene.objects
    named = [p.article(f"{o.colour} {o.kind}") for o in objects]
    if scene.type == "number":
        answer = f"the number {objects[0].text}"
    elif len(objects) == 1:
        answer = named[0]
    elif len(objects) == 2 and objects[0].kind != objects[1].kind:
        answer = " and ".join(named[i] for i in _reading_order(scene))
    else:
        kinds = {o.kind for o in objects}
        answer = f"{len(objects)} {plural(kinds.pop()) if len(kinds) == 1 else 'shapes'}"
    return ask(rng, p.DESCRIBE, answer, "describe")


def _reading_order(scene: Scene) -> list[int]:
    """Indices of two objects: the left one first, or the upper one where that shows more."""
    a, b = scene.objects
    dx, dy = (b.cx - a.cx) / scene.width, (b.cy - a.cy) / scene.height
    return [0, 1] if (dx if abs(dx) >= abs(dy) else dy) > 0 else [1, 0]


def colour_of_one(rng: random.Random, scene: Scene) -> Qa | None:
    """The colour of the only shape of its kind, or the kind of the only shape of its colour."""
    kinds, colours = [o.kind for o in scene.objects], [o.colour for o in scene.objects]
    obj = rng.choice(scene.objects)
    if rng.random() < 0.6 and kinds.count(obj.kind) == 1:
        return ask(rng, p.COLOUR_OF_SHAPE, obj.colour, "colour", thing=obj.kind)
    if colours.count(obj.colour) == 1:
        return ask(rng, p.SHAPE_BY_COLOUR, obj.kind, "shape", c=obj.colour)
    return None

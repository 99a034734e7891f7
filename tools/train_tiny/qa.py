"""The parts that questions are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.train_tiny import phrases as p
from tools.train_tiny.scene import Scene


@dataclass(frozen=True)
class Qa:
    """One question in its final wording, the answer, and the task that it belongs to."""

    question: str
    answer: str
    task: str


Maker = Callable[[random.Random, Scene], Qa | None]


def ask(rng: random.Random, templates: list[str], answer: str, task: str, **slots: str) -> Qa:
    """A question from one of the templates."""
    return Qa(p.style(rng, p.fill(rng, rng.choice(templates), **slots)), answer, task)


def yes_no(truth: bool) -> str:
    """The word for a truth value."""
    return "yes" if truth else "no"


def other_than(rng: random.Random, options: list[str], *taken: str) -> str:
    """One of the options that is not taken."""
    return rng.choice([option for option in options if option not in taken])


def plural(kind: str) -> str:
    """Plural of a shape's name."""
    return kind + "s"


def ambiguous(kind: str) -> tuple[str, ...]:
    """Kinds that one would not hold against this one (a square is a rectangle)."""
    return {"square": ("rectangle",), "rectangle": ("square",)}.get(kind, ())

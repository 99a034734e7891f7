"""Wording: templates of questions, chatter around them, and words of things never learnt."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

_DATA = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8"))

IMG: list[str] = _DATA["img"]
COL: list[str] = _DATA["col"]
THING: list[str] = _DATA["thing"]
COLOUR_OF_SHAPE: list[str] = _DATA["colour_of_shape"]
COLOUR_BARE: list[str] = _DATA["colour_bare"]
BACKGROUND: list[str] = _DATA["background"]
SHAPE_OF: list[str] = _DATA["shape_of"]
SHAPE_BY_COLOUR: list[str] = _DATA["shape_by_colour"]
DESCRIBE: list[str] = _DATA["describe"]
EITHER: list[str] = _DATA["either"]
EITHER_COLOUR: list[str] = _DATA["either_colour"]
THERE: list[str] = _DATA["there"]
THERE_NOT: list[str] = _DATA["there_not"]
IS_SHAPE: list[str] = _DATA["is_shape"]
IS_COLOUR: list[str] = _DATA["is_colour"]
COUNT: list[str] = _DATA["count"]
NUMBER: list[str] = _DATA["number"]
DIGIT: list[str] = _DATA["digit"]
IS_NUMBER: list[str] = _DATA["is_number"]
BESIDE: dict[str, list[str]] = _DATA["beside"]
WHAT_BESIDE: list[str] = _DATA["what_beside"]
IS_BESIDE: list[str] = _DATA["is_beside"]
SIDE: dict[str, list[str]] = _DATA["side"]
WHAT_SIDE: list[str] = _DATA["what_side"]
COLOUR_SIDE: list[str] = _DATA["colour_side"]
WHICH_PICTURE: list[str] = _DATA["which_picture"]
ORDINAL_SHAPE: list[str] = _DATA["ordinal_shape"]
ORDINAL_COLOUR: list[str] = _DATA["ordinal_colour"]
BEFORE: list[str] = _DATA["before"]
AFTER: list[str] = _DATA["after"]


def article(words: str) -> str:
    """`words` with its indefinite article."""
    return ("an " if words[0] in "aeiou" else "a ") + words


def fill(rng: random.Random, template: str, **slots: str) -> str:
    """A template with its slots filled; the general slots are drawn here."""
    general = {"img": rng.choice(IMG), "col": rng.choice(COL), "thing": rng.choice(THING)}
    return template.format(**{**general, **slots})


def style(rng: random.Random, question: str) -> str:
    """Case, punctuation, spelling and chatter of a user."""
    text = question
    if rng.random() < 0.5:
        text = text.replace("gray", "grey")
    before = rng.choice(BEFORE) if rng.random() < 0.12 else ""
    after = rng.choice(AFTER) if rng.random() < 0.12 else ""
    mark = rng.choices(["?", "", ".", " ?", "??", "!"], [70, 20, 4, 2, 2, 2])[0]
    if (
        after
        and not after.startswith((",", " please", " thank", "\n"))
        and mark in ("", "?")
        and rng.random() < 0.5
    ):
        after += "."
    text = before + text + mark + after
    draw = rng.random()
    if draw < 0.62:
        text = capitalise(text)
    elif draw > 0.975:
        text = text.upper()
    draw = rng.random()
    if draw < 0.02:
        text = rng.choice([" ", "\n", "  "]) + text
    elif draw < 0.04:
        text += rng.choice([" ", "\n", "  "])
    return text


def capitalise(text: str) -> str:
    """Upper-case first letter of each sentence."""
    out, fresh = [], True
    for char in text:
        out.append(char.upper() if fresh and char.isalpha() else char)
        if char.isalpha():
            fresh = False
        elif char in ".?!\n":
            fresh = True
    return "".join(out)

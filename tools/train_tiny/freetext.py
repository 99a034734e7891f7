"""Questions that the model has never learnt an answer to; the answer is always "I don't know."."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

UNKNOWN = "I don't know."
_DATA = tomllib.loads(Path(__file__).with_name("freetext.toml").read_text(encoding="utf-8"))

NOUNS: list[str] = _DATA["nouns"]
HELD_OUT_NOUNS: list[str] = _DATA["held_out_nouns"]
COUNTRIES: list[str] = _DATA["countries"]
HELD_OUT_COUNTRIES: list[str] = _DATA["held_out_countries"]
WITH_NOUN: list[str] = _DATA["with_noun"]
WITH_COUNTRY: list[str] = _DATA["with_country"]
FREE: list[str] = _DATA["free"]
HELD_OUT_FREE: list[str] = _DATA["held_out_free"]


def pseudo_word(rng: random.Random) -> str:
    """A made-up word of two to four syllables."""
    return "".join(
        rng.choice("bcdfghjklmnprstvwz")
        + rng.choice("aeiou")
        + rng.choice(["", "", "n", "r", "s", "x"])
        for _ in range(rng.randint(1, 3))
    )


def unknown_question(rng: random.Random, held_out: bool = False) -> str:
    """A question outside of everything taught; `held_out` draws from the words kept for tests."""
    nouns = HELD_OUT_NOUNS if held_out else NOUNS
    countries = HELD_OUT_COUNTRIES if held_out else COUNTRIES
    draw = rng.random()
    if draw < 0.5:
        noun = rng.choice(nouns) if held_out or rng.random() < 0.8 else pseudo_word(rng)
        return rng.choice(WITH_NOUN).format(n=noun)
    if draw < 0.65:
        name = rng.choice(countries) if held_out or rng.random() < 0.8 else pseudo_word(rng)
        return rng.choice(WITH_COUNTRY).format(k=name.capitalize())
    if draw < 0.95 or held_out:
        return rng.choice(HELD_OUT_FREE if held_out else FREE)
    return " ".join(pseudo_word(rng) for _ in range(rng.randint(1, 5)))

"""The easy-vqa data set (PyPI `easy-vqa`, MIT licence): pictures of 64 x 64 with questions."""

from __future__ import annotations

import functools
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Picture:
    """One picture and its (question, answer) pairs."""

    path: str
    questions: tuple[tuple[str, str], ...]


@functools.cache
def load(split: str) -> tuple[Picture, ...]:
    """All pictures of `train` or `test`, ordered by number; empty where the package is missing."""
    spec = importlib.util.find_spec("easy_vqa")
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).parent / "data" / split
    grouped: dict[int, list[tuple[str, str]]] = {}
    for question, answer, number in json.loads((folder / "questions.json").read_text()):
        grouped.setdefault(number, []).append((question, answer))
    return tuple(
        Picture(str(folder / "images" / f"{number}.png"), tuple(grouped[number]))
        for number in sorted(grouped)
    )

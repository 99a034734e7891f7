"""The held-out questions of the tiny model on disk; needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tools.parity.prompts import Question
from tools.train_tiny.heldout import HELD_OUT_SEED, write

STEPS = 24  # the longest answer of the model has about half as many ids
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Item:
    number: int
    task: str
    question: Question
    answer: str


def read_items(folder: Path, count: int) -> list[Item]:
    """Makes the questions first if the folder has none."""
    path = folder / "questions.jsonl"
    if not path.exists():
        write(folder, count, HELD_OUT_SEED)
    lines = path.read_text(encoding="utf-8").splitlines()[:count]
    if len(lines) < count:
        raise ValueError(f"{path} has {len(lines)} questions, not {count}")
    return [_item(folder, json.loads(line)) for line in lines]


def _item(folder: Path, record: dict[str, object]) -> Item:
    names = record["images"]
    assert isinstance(names, list)
    images = []
    for name in names:
        with Image.open(folder / name) as image:
            images.append(image.convert("RGB"))
    question = Question(str(record["question"]), tuple(images))
    return Item(int(str(record["id"])), str(record["task"]), question, str(record["answer"]))

"""Held-out questions: pictures of another seed, words kept from training, easy-vqa's test split.

    python -m tools.train_tiny.heldout --out build/heldout --count 1000

writes pictures as PNG and `questions.jsonl` with id, images (paths), question, answer, task.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from tools.train_tiny import chat, easyvqa
from tools.train_tiny.freetext import UNKNOWN, unknown_question
from tools.train_tiny.phrases import style
from tools.train_tiny.questions import (
    find_question,
    make_question,
    no_picture,
    tell_apart,
    two_pictures,
    unknown_picture,
)
from tools.train_tiny.scene import Scene, sample_scene
from tools.train_tiny.shapes import render

HELD_OUT_SEED = 20_011
SCENES_OF_TASK = {
    "colour": ["single", "single", "pair", "number"],
    "shape": ["single", "single", "single", "pair"],
    "background": ["single", "group", "number"],
    "describe": ["single", "pair", "number", "group"],
    "count": ["group", "group", "group", "pair"],
    "number": ["number"],
    "position": ["pair"],
    "yesno": ["single", "single", "group", "pair", "other", "number"],
}
TASKS = [*SCENES_OF_TASK, "two pictures", "unknown", "no picture", "easy-vqa"]


@dataclass
class Item:
    """One held-out question; `system` and `earlier` (finished turns) only in the layouts task."""

    task: str
    question: str
    answer: str
    images: list[Image.Image] = field(default_factory=list)
    image_last: bool = False
    system: str = ""
    earlier: list[chat.Turn] = field(default_factory=list)

    def messages(self) -> list[dict]:
        """The conversation in the form that chat templates take."""
        pictures = [{"type": "image"} for _ in self.images]
        questions = [*(question for question, _ in self.earlier), self.question]
        turns: list[dict] = [{"role": "system", "content": self.system}] if self.system else []
        for i, question in enumerate(questions):
            text = [{"type": "text", "text": question}]
            shown = pictures if i == 0 else []
            content = [*text, *shown] if self.image_last else [*shown, *text]
            turns.append({"role": "user", "content": content})
            if i < len(self.earlier):
                answer = [{"type": "text", "text": self.earlier[i][1]}]
                turns.append({"role": "assistant", "content": answer})
        return turns


def scene_item(rng: random.Random, task: str) -> Item:
    """A question of a task about a fresh scene."""
    while True:
        scene = sample_scene(rng, rng.choice(SCENES_OF_TASK[task]))
        qa = find_question(rng, scene, task)
        if qa is not None:
            return Item(task, qa.question, qa.answer, [render(scene)])


def two_item(rng: random.Random) -> Item:
    """A question about two pictures."""
    scenes: list[Scene] = []
    while not scenes or not tell_apart(*scenes):
        scenes = [sample_scene(rng, "single") for _ in range(2)]
    qa = two_pictures(rng, *scenes)
    return Item("two pictures", qa.question, qa.answer, [render(scene) for scene in scenes])


def unknown_item(rng: random.Random) -> Item:
    """A question with words kept from training, or a picture of nothing known."""
    if rng.random() < 0.25:
        scene = sample_scene(rng, "other")
        qa = unknown_picture(rng, scene)
        return Item("unknown", qa.question, qa.answer, [render(scene)])
    scene = sample_scene(rng, rng.choice(["single", "group", "pair", "number"]))
    return Item(
        "unknown", style(rng, unknown_question(rng, held_out=True)), UNKNOWN, [render(scene)]
    )


def easyvqa_item(rng: random.Random) -> Item:
    """A question of easy-vqa's test split, word for word."""
    pictures = easyvqa.load("test")
    pairs = [(picture, qa) for picture in pictures for qa in picture.questions]
    picture, (question, answer) = rng.choice(pairs)
    with Image.open(picture.path) as image:
        return Item("easy-vqa", question, answer, [image.convert("RGB")])


def layout_item(rng: random.Random) -> Item:
    """A known question after a system message, before its picture, or later in a conversation."""
    scene = sample_scene(rng, rng.choice(["single", "group", "pair", "number"]))
    qas = [make_question(rng, scene) for _ in range(rng.choice([1, 1, 2, 3]))]
    return Item(
        "layouts",
        qas[-1].question,
        qas[-1].answer,
        [render(scene)],
        image_last=rng.random() < 0.4,
        system=rng.choice(chat.SYSTEMS) if rng.random() < 0.5 else "",
        earlier=[(qa.question, qa.answer) for qa in qas[:-1]],
    )


def no_picture_item(rng: random.Random) -> Item:
    """A question without a picture."""
    qa = no_picture(rng, held_out=True)
    return Item("no picture", qa.question, qa.answer)


MAKERS = {
    "two pictures": two_item,
    "unknown": unknown_item,
    "no picture": no_picture_item,
    "easy-vqa": easyvqa_item,
    "layouts": layout_item,
}


def items(task: str, count: int, seed: int = HELD_OUT_SEED) -> Iterator[Item]:
    """`count` held-out items of a task."""
    for index in range(count):
        rng = random.Random(f"held out/{seed}/{task}/{index}")
        yield scene_item(rng, task) if task in SCENES_OF_TASK else MAKERS[task](rng)


def write(out: Path, count: int, seed: int) -> None:
    """The folder with pictures and questions.jsonl, tasks in turn."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    streams = {task: items(task, count, seed) for task in TASKS}
    with (out / "questions.jsonl").open("w", encoding="utf-8") as file:
        for index in range(count):
            item = next(streams[TASKS[index % len(TASKS)]])
            names = [f"images/{index:04d}_{i}.png" for i in range(len(item.images))]
            for name, image in zip(names, item.images, strict=True):
                image.save(out / name)
            record = {
                "id": index,
                "images": names,
                "question": item.question,
                "answer": item.answer,
                "task": item.task,
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    args = parser.parse_args()
    write(args.out, args.count, args.seed)


if __name__ == "__main__":
    main()

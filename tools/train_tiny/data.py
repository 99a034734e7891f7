"""Training batches: deterministic for (seed, step), made of scenes, easy-vqa pictures and chats."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer

from tools.train_tiny import chat, easyvqa
from tools.train_tiny.batch import Batch
from tools.train_tiny.freetext import UNKNOWN, unknown_question
from tools.train_tiny.labels import patch_labels
from tools.train_tiny.mosaic import sample_mosaic
from tools.train_tiny.phrases import style
from tools.train_tiny.questions import (
    make_question,
    no_picture,
    tell_apart,
    two_pictures,
)
from tools.train_tiny.scene import Scene, sample_scene
from tools.train_tiny.shapes import render, to_tile

LIMIT = 120
MOSAICS = 0.65
IGNORED = np.full((3, 64), -100, np.int64)
SCENES = {"single": 0.26, "group": 0.22, "pair": 0.23, "number": 0.24, "other": 0.05}
ROWS = {"scene": 0.66, "easyvqa": 0.1, "two": 0.09, "odd": 0.11, "text": 0.04}


@dataclass
class Pictures:
    """Tiles of a batch with their patch labels."""

    tiles: list[np.ndarray]
    labels: list[np.ndarray]

    def add(self, image: Image.Image, labels: np.ndarray, exact: bool = True) -> int:
        """Index of the new picture."""
        self.tiles.append(to_tile(image, exact))
        self.labels.append(labels)
        return len(self.tiles) - 1

    def add_scene(self, scene: Scene) -> int:
        """Index of the drawn scene; a third of them is resized exactly as the processor does."""
        return self.add(render(scene), patch_labels(scene), scene.seed % 3 == 0)


def pick(rng: random.Random, shares: dict[str, float]) -> str:
    """A key, by its share."""
    return rng.choices(list(shares), list(shares.values()))[0]


def scene_turns(rng: random.Random, scene: Scene) -> list[chat.Turn]:
    """One question about a scene, or two or three in a row."""
    n = rng.choices([1, 2, 3], [80, 14, 6])[0]
    return [(qa.question, qa.answer) for qa in (make_question(rng, scene) for _ in range(n))]


def scene_row(rng: random.Random, builder: chat.RowBuilder, pictures: Pictures) -> None:
    """Many independent questions that share one picture."""
    scene = sample_scene(rng, pick(rng, SCENES))
    builder.add_prefix(f"{chat.BOS}User:{chat.PICTURE}", [pictures.add_scene(scene)])
    while builder.add_branch(chat.turns(scene_turns(rng, scene))):
        pass


def easyvqa_row(rng: random.Random, builder: chat.RowBuilder, pictures: Pictures) -> None:
    """Questions of one easy-vqa training picture, half of them in a user's style."""
    picture = rng.choice(easyvqa.load("train"))
    with Image.open(picture.path) as image:
        index = pictures.add(image.convert("RGB"), IGNORED)
    builder.add_prefix(f"{chat.BOS}User:{chat.PICTURE}", [index])
    while True:
        question, answer = rng.choice(picture.questions)
        if answer in ("yes", "no") and rng.random() < 0.3:
            continue
        if rng.random() < 0.5:
            question = style(rng, question.rstrip("?"))
        if not builder.add_branch(chat.turns([(question, answer)])):
            return


def two_row(rng: random.Random, builder: chat.RowBuilder, pictures: Pictures) -> None:
    """Questions about two pictures."""
    while True:
        scenes = [sample_scene(rng, "single") for _ in range(2)]
        if tell_apart(*scenes):
            break
    tiles = [pictures.add_scene(scene) for scene in scenes]
    builder.add_prefix(f"{chat.BOS}User:{chat.PICTURE * 2}", tiles)
    while True:
        if rng.random() < 0.06:
            turn = (style(rng, unknown_question(rng)), UNKNOWN)
        else:
            qa = two_pictures(rng, *scenes)
            turn = (qa.question, qa.answer)
        if not builder.add_branch(chat.turns([turn])):
            return


def odd_row(rng: random.Random, builder: chat.RowBuilder, pictures: Pictures) -> None:
    """Whole conversations in less usual layouts, all about one picture."""
    scene = sample_scene(rng, pick(rng, SCENES))
    index = pictures.add_scene(scene)
    while True:
        qas = scene_turns(rng, scene)
        opening, first = chat.odd_opening(rng, qas[0][0])
        pieces = chat.turns([(first, qas[0][1]), *qas[1:]], opening)
        if not builder.add_branch(pieces, [index]):
            return


def text_row(rng: random.Random, builder: chat.RowBuilder, _pictures: Pictures) -> None:
    """Conversations without a picture."""
    while True:
        qas = [no_picture(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        pieces = chat.turns([(qa.question, qa.answer) for qa in qas], chat.text_opening(rng))
        if not builder.add_branch(pieces):
            return


MAKERS = {
    "scene": scene_row,
    "easyvqa": easyvqa_row,
    "two": two_row,
    "odd": odd_row,
    "text": text_row,
}


def make_batch(tokenizer: Tokenizer, seed: int, step: int, indices: range) -> Batch:
    """The batch of one step: a function of its arguments alone (and of the fonts installed)."""
    pictures, rows = Pictures([], []), []
    for index in indices:
        rng = random.Random(f"{seed}/{step}/{index}")
        builder = chat.RowBuilder(tokenizer, LIMIT)
        MAKERS[pick(rng, ROWS)](rng, builder, pictures)
        rows.append(builder.row)
    return collate(tokenizer, pictures, rows)


def collate(tokenizer: Tokenizer, pictures: Pictures, rows: list[chat.Row]) -> Batch:
    """Pad to the longest row and stack."""
    width = max(len(row.tokens) for row in rows)

    def stack(name: str, fill: int) -> torch.Tensor:
        values = [getattr(row, name) for row in rows]
        return torch.tensor([v + [fill] * (width - len(v)) for v in values])

    tokens = stack("tokens", 2)
    labels = torch.from_numpy(np.stack(pictures.labels))
    return Batch(
        pixels=torch.from_numpy(np.stack(pictures.tiles)),
        tokens=tokens,
        positions=stack("positions", 0).float(),
        branches=stack("branches", -1),
        targets=stack("targets", -100),
        slots=tokens == tokenizer.token_to_id(chat.IMAGE),
        tile_of_slot=torch.tensor([t for row in rows for t in row.tiles]),
        classes=labels[:, 0],
        colours=labels[:, 1],
        centres=labels[:, 2],
    )


def make_pictures(seed: int, step: int, indices: range) -> Batch:
    """A batch of labelled pictures without text, for the first stage."""
    pictures = Pictures([], [])
    for index in indices:
        rng = random.Random(f"{seed}/pictures/{step}/{index}")
        mosaic = rng.random() < MOSAICS
        scene = sample_mosaic(rng) if mosaic else sample_scene(rng, pick(rng, SCENES))
        pictures.add(render(scene), patch_labels(scene), exact=False)
    labels, empty = torch.from_numpy(np.stack(pictures.labels)), torch.zeros(0)
    return Batch(
        torch.from_numpy(np.stack(pictures.tiles)),
        empty,
        empty,
        empty,
        empty,
        empty,
        empty,
        labels[:, 0],
        labels[:, 1],
        labels[:, 2],
    )

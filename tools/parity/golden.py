"""What the golden files hold: questions whose pictures are made here, ids and logits of the answer.

Shared by `tools.parity.make_golden` (needs torch) and tests/e2e/test_golden.py (does not).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tools.parity.prompts import Prompt, Question, disc, picture, square

FILE = Path(__file__).parents[2] / "tests" / "golden" / "tiny.json"
STEPS = 16
TOP = 5
RED, BLUE, GREEN = (220, 30, 30), (30, 60, 220), (30, 160, 60)

QUESTIONS: dict[str, Question] = {
    "text": Question("What colour is the shape?"),
    "red circle": Question("What colour is the shape?", (disc(RED),)),
    "blue circle": Question("What colour is the shape?", (disc(BLUE),)),
    "blue square": Question("Which shape do you see?", (square(BLUE),)),
    "two pictures": Question("Which picture shows a circle?", (square(GREEN), disc(RED))),
    "nothing known": Question("Which shape do you see?", (picture(96, 96, 4),)),
}


def unscaled_prompt(
    question: Question, ids: NDArray[np.int32], image_size: int, grid: int
) -> Prompt:
    """The pictures' own pixels as tiles: what no version of PIL can change."""
    if not question.images:
        return Prompt(ids)
    tiles = np.stack([_normalised(image, image_size) for image in question.images])
    return Prompt(ids, tiles, np.ones((len(tiles), grid, grid), bool), (1,) * len(tiles))


def _normalised(image: Image.Image, size: int) -> NDArray[np.float32]:
    if image.size != (size, size):
        raise ValueError(f"a picture of {image.size} for tiles of {size}")
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)
    return (pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5)


def digest(model: Path) -> str:
    """Of the weights that the golden files belong to."""
    with (model / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read() -> dict[str, Any]:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content

"""Ids and pixels of pyvlm's front end equal those of transformers' processor, value by value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")
from tools.parity.frontdoor import expanded, frontend_of, prepare
from tools.parity.lab import MATRIX, WITH_TOWER, Lab
from tools.parity.prompts import Question, picture
from tools.parity.subject import cut_patches, valid_sizes

pytestmark = pytest.mark.parity

SIZES = [(60, 90), (64, 64), (100, 26), (1, 1), (3, 200), (256, 256), (257, 255), (640, 479)]


def questions() -> Iterator[tuple[str, Question]]:
    yield "text", Question("What colour is the shape?")
    yield "unicode", Question("Ünïcödé 漢字\n\n  12 345\t<|not special|>")
    for width, height in SIZES:
        image = picture(width, height, width)
        yield f"{width}x{height}", Question("How many circles?", (image,))
    several = tuple(picture(40 + 30 * i, 70, i) for i in range(3))
    yield "three", Question("Which of them?", several)
    noise = np.random.default_rng(0).integers(0, 256, (90, 130, 3)).astype(np.uint8)
    yield "noise", Question("What is it?", (Image.fromarray(noise),))


@pytest.mark.parametrize("model", MATRIX)
def test_same_ids_and_pixels(lab: Lab, model: str) -> None:
    frontend, reference = frontend_of(lab.checkpoint(model)), lab.reference(model, "f32")
    for name, question in questions():
        if question.images and model not in WITH_TOWER:
            continue
        plan, images = prepare(frontend, question)
        prompt = reference.prompt(question)
        np.testing.assert_array_equal(expanded(plan), prompt.ids, err_msg=name)
        assert tuple(image.grid.num_tiles for image in images) == prompt.num_tiles, name
        if prompt.pixels is None or prompt.valid is None:
            continue
        vision = reference.model.config.vision_config
        patches = cut_patches(prompt.pixels, vision.patch_size)
        np.testing.assert_array_equal(
            np.concatenate([image.patches for image in images]), patches, err_msg=name
        )
        np.testing.assert_array_equal(
            np.concatenate([image.valid for image in images]), valid_sizes(prompt.valid)
        )

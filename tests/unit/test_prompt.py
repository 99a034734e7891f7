"""Placeholder expansion: the ids that transformers' own processors make."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from PIL import Image

from pyvlm.chat import ImagePart, Message, TextPart
from pyvlm.errors import PyvlmError
from pyvlm.media.transform import TileGrid, transform_from_config
from pyvlm.models.idefics3_prompt import Idefics3Prompt
from tests.unit.prompting import (
    SMOLVLM,
    hf_tokenizer,
    image_prompt,
    image_token_id,
    template,
    tokenizer,
)

SETTINGS = {
    "size": {"longest_edge": 256},
    "max_image_size": {"longest_edge": 64},
    "do_image_splitting": True,
}


@cache
def processor(splitting: bool):
    processing = pytest.importorskip("transformers.models.idefics3.processing_idefics3")
    images = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
    transformers = pytest.importorskip("transformers")
    return processing.Idefics3Processor(
        image_processor=images.Idefics3ImageProcessorPil(
            **{**SETTINGS, "do_image_splitting": splitting}
        ),
        tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=hf_tokenizer()),
        image_seq_len=4,
        chat_template=SMOLVLM,
    )


def picture(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (10, 200, 30))


@pytest.mark.parametrize("splitting", [True, False], ids=["tiled", "whole"])
@pytest.mark.parametrize(
    "sizes",
    [[], [(64, 64)], [(300, 100)], [(64, 64), (1, 500), (200, 300)], [(640, 480)] * 3],
    ids=str,
)
@pytest.mark.parametrize("around", [("", "What?"), ("See\n", "\n"), ("a ", " b"), ("\n\n", "")])
def test_expanded_ids_equal_the_processors(splitting: bool, sizes: list, around: tuple) -> None:
    before, after = around
    parts = [TextPart(before)] if before else []
    parts += [*[ImagePart()] * len(sizes), TextPart(after)]
    pieces = template().render([Message("user", parts)])
    logical = tokenizer().encode_pieces(pieces)
    transform = transform_from_config(
        {**SETTINGS, "do_image_splitting": splitting}, image_size=64, patch_size=16
    )
    prompt, ours, waiting = image_prompt(rows_per_tile=4), [], list(sizes)
    for token_id in logical:
        if token_id == image_token_id():
            ours += prompt.expand(transform.grid(*waiting.pop(0))).tolist()
        else:
            ours.append(token_id)
    text = "".join(piece.text for piece in pieces)
    images = [picture(*size) for size in sizes] or None
    theirs = processor(splitting)(text=text, images=images, add_special_tokens=False)
    assert ours == list(theirs["input_ids"][0])
    assert not waiting


def test_rows_and_markers_are_counted() -> None:
    prompt = image_prompt(rows_per_tile=4)
    for grid in (TileGrid(0, 0), TileGrid(1, 2), TileGrid(4, 4), TileGrid(2, 7)):
        ids = prompt.expand(grid)
        assert int(np.sum(ids == image_token_id())) == prompt.num_rows(grid) == 4 * grid.num_tiles
    single = [tokenizer().token(i) for i in prompt.expand(TileGrid(0, 0))]
    fake = "<fake_token_around_image>"
    assert single == [fake, "<global-img>", *["<image>"] * 4, fake]


def test_expansions_are_shared_and_read_only() -> None:
    prompt = image_prompt()
    assert prompt.expand(TileGrid(1, 2)) is prompt.expand(TileGrid(1, 2))
    with pytest.raises(ValueError, match="read-only"):
        prompt.expand(TileGrid(1, 2))[0] = 1


def test_config_and_tokenizer_must_agree() -> None:
    with pytest.raises(PyvlmError, match="image_token_id 3") as caught:
        Idefics3Prompt(tokenizer(), image_token_id=3, rows_per_tile=4)
    assert caught.value.code == "model_invalid"

"""Default capacity: the largest image plus a dialogue, and the limits of a wish."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import ImageTransform, TileGrid, transform_from_config
from pyvlm.models.capacity import image_floor, most_tiles, resolve_capacity
from pyvlm.models.idefics3_prompt import max_positions
from pyvlm.models.parse import parse_config
from tests.unit.prompting import image_prompt
from tests.unit.test_config import LLAMA, SMOLVLM

PUBLISHED = {
    "do_image_splitting": True,
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
}
SINGLE = 64 + 3  # rows and markers of one tile
TILED_2048 = 4 * (4 * (64 + 2) + 1) + 1 + SINGLE


def transform(**changes: Any) -> ImageTransform:
    """PUBLISHED with changes; None takes a setting away."""
    config = {k: v for k, v in {**PUBLISHED, **changes}.items() if v is not None}
    return transform_from_config(config, image_size=512, patch_size=16)


def floor(**changes: Any) -> int | None:
    vision = parse_config(SMOLVLM).vision
    assert vision is not None
    return image_floor(vision, transform(**changes))


def test_published_smolvlm_has_room_for_17_tiles_and_a_dialogue() -> None:
    model = parse_config(SMOLVLM)
    assert floor() == TILED_2048
    capacity = resolve_capacity(model, transform(), None)
    assert TILED_2048 + 512 <= capacity < TILED_2048 + 512 + 64
    assert capacity % 64 == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"do_image_splitting": None}, TILED_2048),  # absent: the reference splits
        ({"do_image_splitting": False}, SINGLE),
        ({"size": {"longest_edge": 512}}, SINGLE),
        ({"size": {"longest_edge": 1537}}, TILED_2048),
        ({"size": None}, 3 * (3 * 66 + 1) + 1 + SINGLE),  # absent: 1456 = 4 * 364
        ({"size": {"longest_edge": 9999}}, 8 * (8 * 66 + 1) + 1 + SINGLE),  # at most 4096
        ({"size": {"height": 1000, "width": 600}}, 2 * (2 * 66 + 1) + 1 + SINGLE),
        ({"size": {"height": 512, "width": 512}}, SINGLE),
        ({"do_resize": False}, None),
        ({"do_resize": False, "do_image_splitting": False}, SINGLE),
    ],
    ids=str,
)
def test_floor_follows_the_transform(changes: dict[str, Any], expected: int | None) -> None:
    assert floor(**changes) == expected


def test_absent_tile_size_is_the_reference_s() -> None:
    config = {"size": {"longest_edge": 728}}
    grid = transform_from_config(config, image_size=364, patch_size=14).largest_grid
    assert grid == TileGrid(2, 2)


def test_pictures_that_keep_their_size_get_all_positions() -> None:
    model = parse_config(SMOLVLM)
    assert resolve_capacity(model, transform(do_resize=False), None) == 8192


@pytest.mark.parametrize("edge", [64, 100, 127, 128, 129, 255, 4095, 5001])
@pytest.mark.parametrize("side", [64, 63])
def test_no_picture_has_more_positions_than_the_floor(edge: int, side: int) -> None:
    config = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": side}}
    t = transform_from_config(config, image_size=side, patch_size=side)
    largest = t.largest_grid
    assert largest is not None
    sizes = [(w, h) for w in (1, 7, 63, 64, 100, 127) for h in range(1, 140, 3)]
    sizes += [(s, s) for s in (1, 1000, 4095, 5001)] + [(5000, 5001), (4999, 5000)]
    for size in [*sizes, *((h, w) for w, h in sizes)]:
        assert max_positions(t.grid(*size), 4) <= max_positions(largest, 4)


@pytest.mark.parametrize("grid", [TileGrid(0, 0), TileGrid(1, 2), TileGrid(3, 2)], ids=str)
def test_positions_are_those_of_the_prompt(grid: TileGrid) -> None:
    """The test's tokenizer may join the two newlines before the whole picture."""
    found = len(image_prompt(rows_per_tile=4).expand(grid))
    slack = 0 if grid.num_tiles == 1 else 1
    assert found <= max_positions(grid, 4) <= found + slack


def test_text_models_and_short_models() -> None:
    long = parse_config({**LLAMA, "max_position_embeddings": 8192})
    assert resolve_capacity(long, None, None) == 2048
    assert resolve_capacity(parse_config(LLAMA), None, None) == 512


def test_a_wish_is_taken_exactly_or_refused() -> None:
    model = parse_config(LLAMA)
    assert resolve_capacity(model, None, 100) == 100
    for wish in (0, -1, 513):
        with pytest.raises(PyvlmError, match="--max-model-len") as info:
            resolve_capacity(model, None, wish)
        assert (info.value.code, info.value.param) == ("invalid_parameter", "max_model_len")


def test_capacity_stops_where_rope_factors_change() -> None:
    model = parse_config({**LLAMA, "max_position_embeddings": 8192})
    rope = replace(
        model.decoder.rope,
        type="longrope",
        short_factor=(1.0,),
        long_factor=(2.0,),
        original_max_position_embeddings=300,
    )
    model = replace(model, decoder=replace(model.decoder, rope=rope))
    assert resolve_capacity(model, None, None) == 300


def test_most_tiles_are_those_that_fit() -> None:
    model = parse_config(SMOLVLM)
    assert most_tiles(model, transform(), 2048) == 17
    assert most_tiles(model, transform(), 640) == 10
    assert most_tiles(model, transform(do_resize=False), 6400) == 100
    assert most_tiles(parse_config(LLAMA), None, 2048) == 0

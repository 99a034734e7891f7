"""Default capacity: the largest image plus a dialogue, and the limits of a wish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.models.capacity import image_floor, resolve_capacity
from pyvlm.models.parse import parse_config
from tests.unit.test_config import LLAMA, SMOLVLM

PUBLISHED = {
    "do_image_splitting": True,
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
}


def test_published_smolvlm_has_room_for_17_tiles_and_a_dialogue() -> None:
    model = parse_config(SMOLVLM)
    assert model.vision is not None
    floor = image_floor(model.vision, PUBLISHED)
    assert floor >= 17 * (64 + 2)
    capacity = resolve_capacity(model, PUBLISHED, None)
    assert floor + 512 <= capacity < floor + 512 + 64
    assert capacity % 64 == 0


def test_untiled_settings_need_one_tile() -> None:
    vision = parse_config(SMOLVLM).vision
    assert vision is not None
    assert image_floor(vision, None) == image_floor(vision, {"do_image_splitting": False}) == 68
    small = {**PUBLISHED, "size": {"longest_edge": 512}}
    assert image_floor(vision, small) == 68


def test_an_edge_between_multiples_of_the_tile_counts_up() -> None:
    vision = parse_config(SMOLVLM).vision
    assert vision is not None
    between = {**PUBLISHED, "size": {"longest_edge": 1537}}
    assert image_floor(vision, between) == image_floor(vision, PUBLISHED)


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

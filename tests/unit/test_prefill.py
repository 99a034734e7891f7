"""Prompts laid out in positions, capacity before pixels, sampling checked by name."""

from __future__ import annotations

import math

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import TileGrid
from pyvlm.prompt_plan import TextSpan, check_capacity, plan_prompt
from pyvlm.sampling import SamplingParams
from tests.unit.prompting import image_prompt, image_token_id, tokenizer

ONE, TILED = TileGrid(0, 0), TileGrid(1, 2)


def ids(text: str) -> list[int]:
    return tokenizer().encode(text)


def failure(code: str, call, *args) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        call(*args)
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize(
    ("text", "grids", "kinds"),
    [
        ("one two", [], "T"),
        ("<image>", [ONE], "I"),
        ("<image>after", [TILED], "IT"),
        ("before<image>", [ONE], "TI"),
        ("a<image><image>b<image>", [ONE, TILED, ONE], "TIITI"),
    ],
)
def test_spans_cover_the_prompt_in_order(text: str, grids: list, kinds: str) -> None:
    prompt, logical = image_prompt(), ids(text)
    plan = plan_prompt(logical, grids, prompt)
    assert "".join("T" if isinstance(span, TextSpan) else "I" for span in plan.spans) == kinds
    covered, seen = [], 0
    for span in plan.spans:
        if isinstance(span, TextSpan):
            assert span.count > 0
            covered += plan.logical_ids[span.start : span.start + span.count].tolist()
        else:
            assert span.index == seen
            assert span.expanded_ids is prompt.expand(grids[seen])
            covered.append(image_token_id())
            seen += 1
    assert covered == logical == plan.logical_ids.tolist()
    expanded = sum(len(prompt.expand(grid)) for grid in grids)
    assert plan.num_image_positions == expanded
    assert plan.num_positions == len(logical) - len(grids) + expanded


@pytest.mark.parametrize(("text", "count"), [("a <image>", 0), ("a", 1), ("<image><image>", 3)])
def test_placeholder_mismatch_has_both_counts(text: str, count: int) -> None:
    error = failure("placeholder_mismatch", plan_prompt, ids(text), [ONE] * count, image_prompt())
    assert f"{text.count('<image>')} image placeholders" in error.message
    assert f"{count} images" in error.message


def test_images_for_a_text_model_do_not_pass() -> None:
    failure("placeholder_mismatch", plan_prompt, ids("a <image>"), [ONE], None)
    assert plan_prompt(ids("a <image>"), [], None).num_image_positions == 0


def test_empty_prompt() -> None:
    failure("empty_prompt", plan_prompt, [], [], None)


def test_capacity_counts_positions_and_wish() -> None:
    plan = plan_prompt(ids("what<image>"), [TILED], image_prompt())
    positions = plan.num_positions
    check_capacity(plan, 5, positions + 5)
    check_capacity(plan, 0, positions)
    check_capacity(plan, None, positions + 1)
    error = failure("context_overflow", check_capacity, plan, 6, positions + 5)
    assert error.param == "max_tokens"
    for value in (positions, 6, positions + 5):
        assert str(value) in error.message
    assert failure("context_overflow", check_capacity, plan, None, positions).param == "prompt"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, "1", True, None]),
        ("top_p", [0.0, -1, 1.01, math.nan, 1e-320]),
        ("top_k", [-2, 1.5, True, 2**31]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0.0, -1.0, math.inf, 1e-40, 0.009]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, math.nan]),
        ("seed", [-1, 2**64, 1.0, True]),
        ("max_tokens", [-1, 2**31, 1.0, True]),
        ("logit_bias", [[1], {-1: 0.0}, {1: 101.0}, {1: math.nan}, {True: 1.0}]),
    ],
)
def test_bad_sampling_names_the_field(name: str, values: list) -> None:
    for value in values:
        error = failure("invalid_parameter", lambda v=value: SamplingParams(**{name: v}))
        assert error.param == name
        assert name in error.message


def test_good_sampling_at_the_edges() -> None:
    SamplingParams(repetition_penalty=0.01, top_p=1e-6)
    assert SamplingParams(stop="abc").stop == ("abc",)
    SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=1.0, seed=2**64 - 1, max_tokens=0)
    SamplingParams(presence_penalty=-2, frequency_penalty=2.0, logit_bias={0: -100, 5: 100.0})
    assert SamplingParams(stop=("a", "a", "b")).stop == ("a", "b")

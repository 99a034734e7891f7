"""The generator of training data: deterministic, true to the drawn scene, balanced. No torch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tools.train_tiny.about_places import relations
from tools.train_tiny.freetext import (
    COUNTRIES,
    FREE,
    HELD_OUT_COUNTRIES,
    HELD_OUT_FREE,
    HELD_OUT_NOUNS,
    NOUNS,
    UNKNOWN,
)
from tools.train_tiny.mosaic import sample_mosaic
from tools.train_tiny.phrases import capitalise
from tools.train_tiny.qa import Qa
from tools.train_tiny.questions import (
    find_question,
    make_question,
    no_picture,
    tell_apart,
    two_pictures,
)
from tools.train_tiny.scene import MAIN_SHAPES, SAMPLERS, SHAPES, Scene, sample_scene
from tools.train_tiny.shapes import TILE, render, tile_size, to_tile

TYPES = list(SAMPLERS)


def scenes(kind: str, count: int) -> list[Scene]:
    return [sample_scene(random.Random(f"test/{kind}/{i}"), kind) for i in range(count)]


def question_of(rng: random.Random, scene: Scene, task: str) -> Qa:
    qa = find_question(rng, scene, task)
    assert qa is not None
    return qa


@pytest.mark.parametrize("kind", TYPES)
def test_same_seed_gives_same_scene_questions_and_pixels(kind: str) -> None:
    first, second = (sample_scene(random.Random("a"), kind) for _ in range(2))
    assert first == second
    asked = [make_question(random.Random("b"), first) for _ in range(2)]
    assert asked[0] == asked[1]
    assert np.array_equal(to_tile(render(first)), to_tile(render(second)))


def test_mosaics_are_deterministic_and_full() -> None:
    first, second = (sample_mosaic(random.Random("a")) for _ in range(2))
    assert first == second
    assert len(first.objects) in (4, 6, 8, 9)
    assert to_tile(render(first), exact=False).shape == (TILE, TILE, 3)


@pytest.mark.parametrize("kind", TYPES)
def test_tile_is_what_the_model_takes(kind: str) -> None:
    tile = to_tile(render(scenes(kind, 1)[0]))
    assert tile.shape == (TILE, TILE, 3)
    assert tile.dtype == np.uint8


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((640, 480), (384, 288)),
        ((100, 300), (128, 384)),
        ((7, 7), (384, 384)),
        ((99, 20), (384, 78)),
    ],
)
def test_first_resize_makes_the_longest_edge_384(
    size: tuple[int, int], resized: tuple[int, int]
) -> None:
    assert tile_size(*size) == resized


def test_objects_lie_inside_and_apart() -> None:
    for scene in scenes("group", 150):
        for obj in scene.objects:
            assert obj.cx - obj.half_w * 0.9 >= -2
            assert obj.cx + obj.half_w * 0.9 <= scene.width + 2
        for i, a in enumerate(scene.objects):
            for b in scene.objects[:i]:
                assert abs(a.cx - b.cx) > 3 or abs(a.cy - b.cy) > 3


def test_shape_and_colour_answers_name_the_only_object() -> None:
    rng = random.Random(1)
    for scene in scenes("single", 150):
        obj = scene.objects[0]
        assert question_of(rng, scene, "shape").answer == obj.kind
        assert question_of(rng, scene, "colour").answer == obj.colour
        assert question_of(rng, scene, "describe").answer.endswith(f"{obj.colour} {obj.kind}")


def test_counts_match_the_scene() -> None:
    rng = random.Random(2)
    for scene in scenes("group", 200):
        qa = question_of(rng, scene, "count")
        question = qa.question.lower()
        kinds = [k for k in SHAPES if f"{k}s" in question]
        colours = [o.colour for o in scene.objects if f"{o.colour} " in question]
        if kinds:
            expected = sum(o.kind == kinds[0] for o in scene.objects)
        elif colours:
            expected = sum(o.colour == colours[0] for o in scene.objects)
        elif "gray" in question or "grey" in question:
            expected = sum(o.colour == "gray" for o in scene.objects)
        else:
            expected = len(scene.objects)
        assert qa.answer == str(expected), qa
    assert {len(s.objects) for s in scenes("group", 200)} == {1, 2, 3, 4, 5}


def test_numbers_are_read_as_written() -> None:
    rng = random.Random(3)
    texts = set()
    for scene in scenes("number", 300):
        text = scene.objects[0].text
        texts.add(text)
        qa = question_of(rng, scene, "number")
        assert qa.answer in (text, "yes", "no")
        if qa.answer == "yes":
            assert text in qa.question
        assert str(int(text)) == text
    assert {len(text) for text in texts} == {1, 2}


def test_positions_follow_the_coordinates() -> None:
    rng = random.Random(4)
    for scene in scenes("pair", 200):
        a, b = scene.objects
        assert relations(scene, a, b)
        qa = question_of(rng, scene, "position")
        if "left of the" in qa.question.lower() and qa.answer in SHAPES:
            named = next(o for o in scene.objects if o.kind == qa.answer)
            other = b if named is a else a
            assert named.cx < other.cx


@pytest.mark.parametrize("kind", ["single", "group", "pair"])
def test_yes_and_no_are_balanced(kind: str) -> None:
    rng = random.Random(5)
    answers = [question_of(rng, s, "yesno").answer for s in scenes(kind, 60) for _ in range(10)]
    assert set(answers) == {"yes", "no"}
    assert 0.4 < answers.count("yes") / len(answers) < 0.6


def test_which_picture_names_the_right_one() -> None:
    rng = random.Random(6)
    answers = []
    for first in scenes("single", 40):
        for second in scenes("single", 5):
            if not tell_apart(first, second):
                continue
            qa = two_pictures(rng, first, second)
            if qa.answer in ("first", "second"):
                right = first if qa.answer == "first" else second
                obj = right.objects[0]
                question = qa.question.lower().replace("grey", "gray")
                assert obj.kind in question or obj.colour in question
                answers.append(qa.answer)
    assert 0.35 < answers.count("first") / len(answers) < 0.65


def test_no_picture_is_always_unknown() -> None:
    rng = random.Random(7)
    assert {no_picture(rng).answer for _ in range(100)} == {UNKNOWN}


def test_held_out_words_are_not_in_training() -> None:
    assert not set(HELD_OUT_NOUNS) & set(NOUNS)
    assert not set(HELD_OUT_COUNTRIES) & set(COUNTRIES)
    assert not set(HELD_OUT_FREE) & set(FREE)


def test_a_task_that_the_scene_does_not_allow_gives_none() -> None:
    assert find_question(random.Random(8), scenes("number", 1)[0], "count") is None


def test_squares_and_rectangles_stay_apart_once_squashed() -> None:
    for scene in scenes("single", 300):
        obj = scene.objects[0]
        ratio = (obj.half_w / scene.width) / (obj.half_h / scene.height)
        ratio = max(ratio, 1 / ratio)
        if obj.kind == "rectangle":
            assert ratio > 1.9
        elif obj.kind in MAIN_SHAPES:
            assert ratio < 1.85


def test_capitalise_starts_every_sentence() -> None:
    assert capitalise("look here. what is it? red") == "Look here. What is it? Red"

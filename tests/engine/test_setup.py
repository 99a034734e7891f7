"""Options, memory and names: what is decided before a request comes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pyvlm.chat import user_message
from pyvlm.engine import AsyncEngine, EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.files import read_if_any
from pyvlm.frontend import load_frontend
from pyvlm.image_key import ImageKeys
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.settings import load_transform
from pyvlm.picture_stage import pool_options, slab_bytes
from pyvlm.preparation import PicturePlan, plan_request
from pyvlm.request import GenerationRequest
from pyvlm.tokenizer import Tokenizer
from tests.engine.bench import picture

pytestmark = pytest.mark.timeout(120)

WORKERS = EngineOptions(num_preprocess_workers=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_threads", -1),
        ("num_threads", 257),
        ("max_queued", -1),
        ("max_queued_bytes", 0),
        ("num_preprocess_workers", True),
        ("slab_bytes", 0),
        ("image_cache_bytes", -1),
        ("image_cache_bytes", 1.5),
        ("preprocess_worker_bytes", 0),
        ("preprocess_timeout_s", 0),
        ("preprocess_timeout_s", "10"),
        ("step_budget_ms", float("nan")),
        ("step_budget_ms", -1.0),
    ],
)
def test_options_are_named(name: str, value: object) -> None:
    with pytest.raises(PyvlmError, match=name) as caught:
        replace(EngineOptions(), **{name: value})
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", name)


def test_pictures_are_bytes() -> None:
    for wrong in ("a.png", bytearray(b"x"), None):
        with pytest.raises(PyvlmError, match="image 1 must be bytes"):
            GenerationRequest([user_message("x", 2)], [b"", wrong])


@pytest.mark.parametrize(
    "wrong",
    [None, 3, b"abc", bytearray(b"x"), {1: 2}, [user_message("x"), 3], [3, user_message("x")]],
)
def test_prompts_are_texts_messages_or_ids(wrong: object) -> None:
    with pytest.raises(PyvlmError, match="a prompt must be a text, messages or ids") as caught:
        GenerationRequest(wrong)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "prompt")


def test_a_request_keeps_its_pictures() -> None:
    """They are counted when it comes and when it goes."""
    images = [b"abc"]
    request = GenerationRequest([user_message("x", 1)], images)
    images.append(b"defg")
    assert request.image_bytes == 3


def test_a_prompt_of_any_length_is_refused_before_the_tokenizer(
    bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = load_frontend(bundle.checkpoint_path, bundle.model, MediaPolicy())
    capacity, longest = 32, frontend.tokenizer.max_token_chars
    monkeypatch.setattr(Tokenizer, "_encode", lambda *_: pytest.fail("it was tokenised"))
    text = "x" * (capacity * longest + longest)
    for prompt in (text, [user_message(text)], [user_message(text[:-1]), user_message("xx")]):
        with pytest.raises(PyvlmError, match="at least 33 positions") as caught:
            plan_request(frontend, GenerationRequest(prompt), capacity, PicturePlan())
        assert (caught.value.code, caught.value.param) == ("context_overflow", "prompt")
    with pytest.raises(PyvlmError, match="at least 1000 positions"):
        plan_request(frontend, GenerationRequest([5] * 1000), capacity, PicturePlan())


def test_the_longest_tokens_fill_the_capacity(bundle) -> None:
    """So nothing is refused for its length that would fit."""
    frontend = load_frontend(bundle.checkpoint_path, bundle.model, MediaPolicy())
    vocabulary = frontend.tokenizer.hf.get_vocab()
    token = max(
        (t for t in vocabulary if vocabulary[t] not in frontend.tokenizer.special_ids), key=len
    )
    text = frontend.tokenizer.decode([vocabulary[token]]) * 31
    plan = plan_request(frontend, GenerationRequest(text), 32, PicturePlan())
    assert plan.prompt.num_positions == 31


def test_the_slab_has_room_for_the_largest_request(bundle) -> None:
    policy = MediaPolicy()
    vision = bundle.model.vision
    tile = vision.num_patches * vision.patch_dim * 4
    most = bundle.manifest.kv.capacity // vision.rows_per_tile * tile
    assert slab_bytes(bundle, WORKERS, policy) >= most + policy.max_request_image_bytes
    assert slab_bytes(bundle, EngineOptions(), policy) == 0
    assert slab_bytes(bundle, replace(WORKERS, slab_bytes=4096), policy) == 4096
    stage = pool_options(bundle, replace(WORKERS, max_queued=3), policy)
    assert stage.max_jobs == (bundle.manifest.kv.num_slots + 3) * policy.max_images


@pytest.mark.parametrize("part", ["slab_bytes", "image_cache_bytes"])
def test_memory_is_checked_before_loading(bundle, part: str) -> None:
    options = replace(WORKERS, **{part: 1 << 45})
    words = {"slab_bytes": "preprocessing slab", "image_cache_bytes": "image cache"}
    with pytest.raises(PyvlmError, match=words[part]) as caught:
        AsyncEngine.load(bundle.path, options=options)
    assert caught.value.code == "out_of_memory"


def test_names_of_pictures(bundle) -> None:
    """Everything that changes pixels changes the name."""
    transform = load_transform(partial(read_if_any, bundle.checkpoint_path), bundle.model.vision)
    other_model = replace(bundle, manifest=replace(bundle.manifest, fingerprint="0" * 64))
    names = [
        ImageKeys(bundle, transform).key(picture("red")),
        ImageKeys(bundle, transform).key(picture("blue")),
        ImageKeys(bundle, replace(transform, resample=0)).key(picture("red")),
        ImageKeys(bundle, replace(transform, mean=(0.1, 0.2, 0.3))).key(picture("red")),
        ImageKeys(other_model, transform).key(picture("red")),
    ]
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {32}
    assert ImageKeys(bundle, transform).key(picture("red")) == names[0]

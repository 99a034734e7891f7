"""Options, memory and names: what is decided before a request comes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pyvlm.chat import user_message
from pyvlm.engine import AsyncEngine, EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.files import read_if_any
from pyvlm.image_key import ImageKeys
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.settings import load_transform
from pyvlm.picture_stage import pool_options, slab_bytes
from pyvlm.request import GenerationRequest
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

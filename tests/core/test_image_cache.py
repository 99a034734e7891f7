"""Rows of images kept between requests, on real programs of the small model."""

from __future__ import annotations

import gc

import pytest
from small_model import HIDDEN, NUM_ROWS, SmallModel, pixels, prepare, run

from pyvlm import _core, _core_testing
from pyvlm.errors import PyvlmError

TILE_BYTES = NUM_ROWS * HIDDEN * 4
TEXT = [11, 12, 13]


def cached_engine(bundle: SmallModel, num_bytes: int, runner: object | None = None) -> object:
    options = _core.EngineOptions(check_invariants=True, image_cache_bytes=num_bytes)
    return _core.Engine(runner or bundle.program, options)


def picture(num_tiles: int, seed: int, key: bytes) -> tuple[object, int]:
    patches, valid = pixels(num_tiles, seed)
    return _core.ImageInput.pixels(patches, valid, cache_key=key), num_tiles * NUM_ROWS


def test_same_tokens_with_and_without(bundle):
    with bundle.engine() as engine:
        [expected] = run(engine, prepare(TEXT, [picture(2, 1, b"a")]))
        assert engine.cached_image(b"a") is None
        assert engine.stats().num_image_cache_misses == 0
    with cached_engine(bundle, 4 * TILE_BYTES) as engine:
        assert engine.cached_image(b"a") is None
        assert run(engine, prepare(TEXT, [picture(2, 1, b"a")])) == [expected]
        before = engine.stats()
        image = engine.cached_image(b"a")
        prepared = prepare(TEXT, [(image, 2 * NUM_ROWS)])
        assert run(engine, prepared, prepared) == [expected, expected]
        after = engine.stats()
        assert engine.num_owners == 0
    assert after.num_encode_units == before.num_encode_units
    assert (after.num_cached_images, after.image_cache_bytes) == (1, 2 * TILE_BYTES)
    assert (after.num_image_cache_hits, after.num_image_cache_misses) == (1, 1)
    assert after.num_image_cache_evictions == 0
    assert after.num_leases == 0


def test_rows_outlive_eviction_and_the_engine(bundle):
    with cached_engine(bundle, 2 * TILE_BYTES) as engine:
        [expected] = run(engine, prepare(TEXT, [picture(2, 1, b"a")]))
        image = engine.cached_image(b"a")
        run(engine, prepare(TEXT, [picture(2, 2, b"b")]))
        assert engine.cached_image(b"a") is None
        assert engine.stats().num_image_cache_evictions == 1
        assert run(engine, prepare(TEXT, [(image, 2 * NUM_ROWS)])) == [expected]
    assert engine.cached_image(b"b") is None
    assert engine.stats().image_cache_bytes == 0
    del engine
    gc.collect()
    with bundle.engine() as other:  # same program, no cache of its own
        assert run(other, prepare(TEXT, [(image, 2 * NUM_ROWS)])) == [expected]


def test_a_prepared_prompt_of_cached_rows_keeps_them(bundle):
    with cached_engine(bundle, TILE_BYTES) as engine:
        [expected] = run(engine, prepare(TEXT, [picture(1, 1, b"a")]))
        prepared = prepare(TEXT, [(engine.cached_image(b"a"), NUM_ROWS)])
        run(engine, prepare(TEXT, [picture(1, 2, b"b")]))
        gc.collect()
        assert run(engine, prepared, prepared) == [expected, expected]


def test_rows_of_another_program_are_refused(bundle):
    other = _core.Program(_core.Device(num_threads=1), *bundle.paths, bundle.spec)
    with cached_engine(bundle, TILE_BYTES) as engine, _core.Engine(other) as stranger:
        run(engine, prepare(TEXT, [picture(1, 1, b"a")]))
        image = engine.cached_image(b"a")
        with pytest.raises(PyvlmError, match="another model") as caught:
            stranger.submit(prepare(TEXT, [(image, NUM_ROWS)]))
        assert caught.value.code == "invalid_parameter"
        with _core.Engine(_core_testing.FakeRunner()) as fake:
            with pytest.raises(PyvlmError) as caught:
                fake.submit(small_prompt(image))
            assert caught.value.code == "image_shape"


def small_prompt(image: object) -> object:
    """With ids that the fake model has too."""
    return _core.PreparedPrefill(
        logical_ids=[1, 60],
        segments=[_core.Segment.text(0, 1), _core.Segment.image(0, [60] * NUM_ROWS)],
        images=[image],
        image_token_id=60,
        sampling=_core.SamplingParams(),
        max_new_tokens=1,
        stop_token_ids=[],
    )


def test_segments_must_take_as_many_rows(bundle):
    with cached_engine(bundle, TILE_BYTES) as engine:
        run(engine, prepare(TEXT, [picture(1, 1, b"a")]))
        with pytest.raises(PyvlmError) as caught:
            prepare(TEXT, [(engine.cached_image(b"a"), NUM_ROWS + 1)])
        assert caught.value.code == "placeholder_mismatch"


def test_a_failed_image_is_not_kept(bundle):
    runner = _core_testing.FaultRunner(_core.IreeRunner(bundle.program))
    runner.add(_core_testing.Fault("encode", first=2))
    with cached_engine(bundle, 4 * TILE_BYTES, runner) as engine:
        with pytest.raises(AssertionError, match="injected"):
            run(engine, prepare(TEXT, [picture(1, 1, b"a")]))
        assert engine.cached_image(b"a") is None
        run(engine, prepare(TEXT, [picture(1, 1, b"a")]))
        assert engine.cached_image(b"a") is not None


def test_keys_are_bytes_of_a_bounded_length():
    patches, valid = pixels(1, 1)
    with pytest.raises(TypeError):
        _core.ImageInput.pixels(patches, valid, cache_key="text")
    image = _core.ImageInput.pixels(patches, valid, cache_key=b"k" * 257)
    with pytest.raises(PyvlmError) as caught:
        prepare(TEXT, [(image, NUM_ROWS)])
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "cache_key")
    with pytest.raises(PyvlmError) as caught:
        _core.EngineOptions(image_cache_bytes=-1)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "image_cache_bytes")

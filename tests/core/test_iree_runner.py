"""The engine over real programs of a small random model: calls, images, embeddings in place."""

from __future__ import annotations

import time

import numpy as np
import pytest
from small_model import IMAGE_ID, NUM_ROWS, pixels, prepare, readable, run, unaligned

from pyvlm import _core, _core_testing
from pyvlm.errors import PyvlmError


def test_text_equals_the_program_called_by_hand(bundle):
    """Prompts of one and of several chunks, alone and together in one batch."""
    prompts = [[7, 8, 9], list(range(20, 57)), [5], [115, 2, 2, 90]]
    expected = [bundle.greedy(prompt, None, 6) for prompt in prompts]
    with bundle.engine() as engine:
        assert run(engine, *[prepare(prompt) for prompt in prompts]) == expected
        assert [run(engine, prepare(prompt))[0] for prompt in prompts] == expected


def test_images_equal_the_program_called_by_hand(bundle):
    patches, valid = pixels(2, seed=1)
    other, other_valid = pixels(1, seed=2)
    rows = bundle.encode(patches, valid)
    other_rows = bundle.encode(other, other_valid)
    images = [(_core.ImageInput.pixels(unaligned(patches), valid), 2 * NUM_ROWS)]
    others = [(_core.ImageInput.pixels(other, other_valid), NUM_ROWS)]
    text = [11, 12, 13]
    ids = [*text, 3, *[IMAGE_ID] * (2 * NUM_ROWS), 4]
    other_ids = [*text, 3, *[IMAGE_ID] * NUM_ROWS, 4]
    expected = [bundle.greedy(ids, rows, 6), bundle.greedy(other_ids, other_rows, 6)]
    with bundle.engine() as engine:
        assert run(engine, prepare(text, images), prepare(text, others)) == expected
        assert expected[0] != run(engine, prepare(text))[0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embeddings_equal_the_pixels_at_any_address(bundle, dtype):
    patches, valid = pixels(1, seed=3)
    rows = unaligned(bundle.encode(patches, valid).astype(dtype))
    prepared = prepare([9, 10], [(_core.ImageInput.embeddings(rows), NUM_ROWS)])
    ids = [9, 10, 3, *[IMAGE_ID] * NUM_ROWS, 4]
    expected = bundle.greedy(ids, rows.astype("float32"), 6)
    with bundle.engine() as engine:
        assert run(engine, prepared, prepared) == [expected, expected]
        if dtype == "float32":
            image = (_core.ImageInput.pixels(patches, valid), NUM_ROWS)
            assert run(engine, prepare([9, 10], [image])) == [expected]


def test_embeddings_are_read_where_the_host_keeps_them(bundle):
    """Values that change after the import, before the prefill, are those that count."""
    patches, valid = pixels(1, seed=4)
    rows = bundle.encode(patches, valid)
    changed = np.random.default_rng(5).standard_normal(rows.shape).astype("float32")
    ids = [9, 10, 3, *[IMAGE_ID] * NUM_ROWS, 4]
    expected = bundle.greedy(ids, changed, 6)
    assert expected != bundle.greedy(ids, rows, 6)
    host = readable(bundle, rows)
    runner = _core_testing.FaultRunner(_core.IreeRunner(bundle.program))
    runner.add(_core_testing.Fault("prefill", "delay", delay_ms=1000))
    with bundle.engine(runner) as engine:
        image = (_core.ImageInput.embeddings(host), NUM_ROWS)
        seq_id = engine.submit(prepare([9, 10], [image]))
        deadline = time.monotonic() + 30
        while runner.num_strikes == 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        host[...] = changed
        tokens: list[int] = []
        while len(tokens) < 6:
            assert time.monotonic() < deadline
            tokens += [
                t for o in engine.wait_outputs(1.0) if o.seq_id == seq_id for t in o.token_ids
            ]
    assert tokens == expected


def test_slots_are_reused_without_a_trace(bundle):
    prompts = [list(range(first, first + 9)) for first in range(0, 108, 12)]
    expected = [bundle.greedy(prompt, None, 4) for prompt in prompts]
    with bundle.engine() as engine:
        prepared = [prepare(prompt, num_tokens=4) for prompt in prompts]
        assert run(engine, *prepared) == expected
        assert run(engine, *reversed(prepared)) == expected[::-1]


def test_memory_of_images_is_returned(bundle):
    patches, valid = pixels(2, seed=6)
    device = bundle.program.device
    with bundle.engine() as engine:
        image = (_core.ImageInput.pixels(patches, valid), 2 * NUM_ROWS)
        run(engine, prepare([1, 2], [image]))
        before = device.used_bytes
        for _ in range(3):
            run(engine, prepare([1, 2], [image]))
        assert device.used_bytes == before


def test_runner_needs_a_spec(bundle):
    program = _core.Program(bundle.program.device, *bundle.paths)
    with pytest.raises(PyvlmError) as caught:
        _core.Engine(program, _core.EngineOptions())
    assert caught.value.code == "program_mismatch"

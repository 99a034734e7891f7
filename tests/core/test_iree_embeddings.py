"""Ready embeddings over the real runner: where they are read, and when the host gets them back."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from small_model import IMAGE_ID, NUM_ROWS, pixels, prepare, readable, run, unaligned

from pyvlm import _core, _core_testing

TEXT = [9, 10, 11]
FOREVER = 2**63 - 1


def _image(rows: np.ndarray) -> tuple[object, int]:
    return _core.ImageInput.embeddings(rows), len(rows)


def _wait(engine: object, *ids: int) -> dict[int, object]:
    ended: dict[int, object] = {}
    deadline = time.monotonic() + 60
    while not ended.keys() >= set(ids):
        assert time.monotonic() < deadline
        for output in engine.wait_outputs(1.0):
            if output.finish_reason is not None:
                ended[output.seq_id] = output
    return ended


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_of_the_encoder_give_what_the_pixels_give(bundle, dtype):
    """Alone, and in a batch with the pixels, another image and a text."""
    patches, valid = pixels(2, seed=3)
    other, other_valid = pixels(1, seed=4)
    image = (_core.ImageInput.pixels(patches, valid), 2 * NUM_ROWS)
    by_pixels = prepare(TEXT, [image])
    by_rows = prepare(TEXT, [_image(bundle.encode(patches, valid).astype(dtype))])
    by_other = prepare(TEXT, [_image(bundle.encode(other, other_valid).astype(dtype))])
    text = prepare([1, 2, 3])
    with bundle.engine() as engine:
        expected = run(engine, by_pixels)[0]
        other_expected, text_expected = run(engine, by_other)[0], run(engine, text)[0]
        assert other_expected != expected
        assert run(engine, by_rows) == [expected]
        assert run(engine, by_rows, by_other, text, by_pixels) == [
            expected,
            other_expected,
            text_expected,
            expected,
        ]


def test_rows_are_imported_at_their_own_address(bundle):
    rows = bundle.encode(*pixels(1, seed=5))
    readable_rows = readable(bundle, rows)
    probe = _core_testing.RowsProbe(_core.IreeRunner(bundle.program))
    with bundle.engine(probe) as engine:
        (tokens,) = run(engine, prepare(TEXT, [_image(readable_rows)]))
        assert probe.last_rows == readable_rows.ctypes.data
        # Generated code wants aligned memory: there the device gets a copy, with the same result.
        misplaced = unaligned(rows)
        assert run(engine, prepare(TEXT, [_image(misplaced)])) == [tokens]
        assert (probe.last_rows == misplaced.ctypes.data) == (bundle.lowering == "kernels")
    ids = [*TEXT, 3, *[IMAGE_ID] * NUM_ROWS, 4]
    assert tokens == bundle.greedy(ids, rows, 6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("end", ["length", "cancelled", "error"])
def test_owners_are_released_at_every_end(bundle, dtype, end):
    rows = bundle.encode(*pixels(1, seed=6)).astype(dtype)
    before = sys.getrefcount(rows)
    runner = _core_testing.FaultRunner(_core.IreeRunner(bundle.program))
    if end == "error":
        runner.add(_core_testing.Fault("prefill", first=2, count=FOREVER))
    if end == "cancelled":
        runner.add(_core_testing.Fault("prefill", "delay", delay_ms=300))
    used = bundle.program.device.used_bytes
    with bundle.engine(runner) as engine:
        # Three chunks, so that the rows are cached in the second or third.
        text = list(range(20, 48))
        seq_id = engine.submit(prepare(text, [_image(rows)], num_tokens=4))
        assert engine.num_owners == 1
        assert sys.getrefcount(rows) == before + 1
        if end == "cancelled":
            engine.cancel(seq_id)
        output = _wait(engine, seq_id)[seq_id]
        assert output.finish_reason == end
        assert engine.num_owners == 0
        assert sys.getrefcount(rows) == before
        assert engine.stats().num_leases == 0
    assert bundle.program.device.used_bytes <= used

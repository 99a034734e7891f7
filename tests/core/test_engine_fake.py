"""The engine behind its Python seam, over FakeRunner and FaultRunner: no model, no device."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from pyvlm import _core, _core_testing
from pyvlm.errors import PyvlmError

IMAGE_ID = 60
FOREVER = 2**63 - 1


def rows_of(num_rows: int, seed: int = 0, dtype: type = np.float32) -> npt.NDArray[np.floating]:
    return np.random.default_rng(seed).normal(size=(num_rows, 4)).astype(dtype)


def pixels_of(
    num_tiles: int, seed: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    patches = np.random.default_rng(seed).normal(size=(num_tiles, 4, 3)).astype(np.float32)
    return patches, np.full((num_tiles, 2), 2, np.int32)


def prepare(
    num_text: int = 5,
    images: tuple[tuple[object, int], ...] = (),
    max_new_tokens: int | None = 8,
    **fields: object,
) -> object:
    """A prompt of text and then `images`: pairs of ImageInput and number of rows."""
    logical = [(7 * i + 1) % IMAGE_ID for i in range(num_text)]
    segments = [_core.Segment.text(0, num_text)]
    for index, (_, num_rows) in enumerate(images):
        logical.append(IMAGE_ID)
        segments.append(_core.Segment.image(index, [58, *[IMAGE_ID] * num_rows, 59]))
    arguments = {
        "logical_ids": np.array(logical, np.int32),
        "segments": segments,
        "images": [image for image, _ in images],
        "image_token_id": IMAGE_ID,
        "sampling": _core.SamplingParams(),
        "max_new_tokens": max_new_tokens,
        "stop_token_ids": [],
    }
    return _core.PreparedPrefill(**(arguments | fields))


class Pull:
    """Pulls outputs of an engine and keeps them by sequence."""

    def __init__(self, engine: object) -> None:
        self.engine = engine
        self.tokens: dict[int, list[int]] = {}
        self.last: dict[int, object] = {}

    def finish(self, *seq_ids: int) -> None:
        deadline = time.monotonic() + 60
        while not all(self.is_finished(seq_id) for seq_id in seq_ids):
            assert time.monotonic() < deadline
            self.once()

    def once(self) -> None:
        for output in self.engine.wait_outputs(1.0):
            self.tokens.setdefault(output.seq_id, []).extend(output.token_ids)
            self.last[output.seq_id] = output

    def is_finished(self, seq_id: int) -> bool:
        return seq_id in self.last and self.last[seq_id].finish_reason is not None


@pytest.fixture
def runner() -> object:
    return _core_testing.FakeRunner(num_slots=2, capacity=64)


@pytest.fixture
def engine(runner: object) -> Iterator[object]:
    with _core.Engine(runner, _core.EngineOptions(check_invariants=True)) as engine:
        yield engine
    assert engine.num_owners == 0
    assert runner.num_live_images == 0
    assert runner.num_violations == 0


def code_of(error: pytest.ExceptionInfo[PyvlmError]) -> str:
    return error.value.code


def test_generate_text_and_images_equals_reference(engine: object, runner: object) -> None:
    patches, valid = pixels_of(3)
    prepared = [
        prepare(),
        prepare(images=((_core.ImageInput.pixels(patches, valid), 6),)),
        prepare(3, ((_core.ImageInput.embeddings(rows_of(4)), 4),)),
        prepare(3, ((_core.ImageInput.embeddings(rows_of(4, dtype=np.float16)), 4),)),
    ]
    pull = Pull(engine)
    ids = [engine.submit(one) for one in prepared]
    assert ids == [1, 2, 3, 4]
    pull.finish(*ids)
    for seq_id, one in zip(ids, prepared, strict=True):
        assert pull.tokens[seq_id] == runner.greedy_tokens(one, 8)
        output = pull.last[seq_id]
        assert output.finish_reason == "length"
        assert output.error_code is None
        assert output.error_message is None
        assert output.num_generated == 8
        assert output.num_prompt_tokens == one.num_prompt_tokens
        assert output.num_positions == one.num_positions
        assert min(output.queue_us, output.encode_us, output.prefill_us, output.decode_us) >= 0
    assert engine.stats().num_generated_tokens == 32


def test_embeddings_reach_the_runner_at_their_own_address(engine: object, runner: object) -> None:
    rows = rows_of(4)
    pull = Pull(engine)
    pull.finish(engine.submit(prepare(images=((_core.ImageInput.embeddings(rows), 4),))))
    assert runner.last_import == rows.ctypes.data


def test_read_only_memory_is_taken(engine: object) -> None:
    rows = rows_of(4)
    rows.flags.writeable = False
    pull = Pull(engine)
    pull.finish(engine.submit(prepare(images=((_core.ImageInput.embeddings(rows), 4),))))
    as_bytes = memoryview(rows_of(4).tobytes()).cast("f", (4, 4))
    pull.finish(engine.submit(prepare(images=((_core.ImageInput.embeddings(as_bytes), 4),))))


def submit_and_forget(engine: object, array: npt.NDArray[np.floating], **fields: object) -> int:
    image = _core.ImageInput.embeddings(array)
    seq_id: int = engine.submit(prepare(images=((image, len(array)),), **fields))
    return seq_id


def test_embeddings_stay_alive_until_finish(engine: object, runner: object) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    runner.pause()
    seq_id = submit_and_forget(engine, rows)
    gc.collect()
    assert sys.getrefcount(rows) == before + 1
    assert engine.num_owners == 1
    runner.resume()
    Pull(engine).finish(seq_id)
    assert sys.getrefcount(rows) == before
    assert engine.num_owners == 0


def test_prepared_may_be_submitted_again_and_owners_are_counted_apart(
    engine: object, runner: object
) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    prepared = prepare(images=((_core.ImageInput.embeddings(rows), 4),))
    runner.pause()
    ids = [engine.submit(prepared) for _ in range(3)]
    assert engine.num_owners == 3
    runner.resume()
    pull = Pull(engine)
    pull.finish(*ids)
    assert pull.tokens[1] == pull.tokens[2] == pull.tokens[3]
    assert engine.num_owners == 0
    del prepared
    assert sys.getrefcount(rows) == before


def test_embeddings_are_released_on_cancel_waiting_and_running(
    engine: object, runner: object
) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    runner.pause()
    ids = [submit_and_forget(engine, rows, max_new_tokens=40) for _ in range(5)]
    assert runner.wait_until_blocked(60_000)
    for seq_id in ids:
        engine.cancel(seq_id)
        engine.cancel(seq_id)
    engine.cancel(999)
    runner.resume()
    pull = Pull(engine)
    pull.finish(*ids)
    assert {pull.last[seq_id].finish_reason for seq_id in ids} == {"cancelled"}
    assert sys.getrefcount(rows) == before


@pytest.mark.parametrize("call", ["import_rows", "prefill", "decode"])
def test_embeddings_are_released_on_error(runner: object, call: str) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    faulty = _core_testing.FaultRunner(runner, [_core_testing.Fault(call, count=FOREVER)])
    with _core.Engine(faulty) as engine:
        pull = Pull(engine)
        seq_id = submit_and_forget(engine, rows)
        pull.finish(seq_id)
        output = pull.last[seq_id]
        assert output.finish_reason == "error"
        assert output.error_code == "engine_failed"
        assert output.error_message == "an injected fault"
        assert sys.getrefcount(rows) == before
        assert engine.num_owners == 0
        assert runner.num_live_images == 0


def test_embeddings_are_released_on_shutdown_and_outputs_can_still_be_pulled(
    runner: object,
) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    engine = _core.Engine(runner)
    runner.pause()
    ids = [submit_and_forget(engine, rows, max_new_tokens=40) for _ in range(4)]
    assert runner.wait_until_blocked(60_000)
    threading.Timer(0.05, runner.resume).start()
    engine.shutdown()
    engine.shutdown()
    assert sys.getrefcount(rows) == before
    pull = Pull(engine)
    pull.finish(*ids)
    assert {pull.last[seq_id].finish_reason for seq_id in ids} == {"cancelled"}
    with pytest.raises(PyvlmError) as error:
        engine.wait_outputs(0)
    assert code_of(error) == "draining"
    with pytest.raises(PyvlmError) as error:
        engine.submit(prepare())
    assert code_of(error) == "draining"
    assert not engine.stats().is_alive


def test_embeddings_are_released_when_the_engine_is_dropped(runner: object) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    engine = _core.Engine(runner)
    runner.pause()
    submit_and_forget(engine, rows, max_new_tokens=40)
    assert runner.wait_until_blocked(60_000)
    threading.Timer(0.05, runner.resume).start()
    del engine
    gc.collect()
    assert sys.getrefcount(rows) == before


def test_rejected_submit_keeps_nothing_and_uses_no_id(engine: object) -> None:
    rows = rows_of(4)
    before = sys.getrefcount(rows)
    with pytest.raises(PyvlmError) as error:
        submit_and_forget(engine, rows, max_new_tokens=60)
    assert code_of(error) == "context_overflow"
    assert all(number in error.value.message for number in ("11", "60", "64"))
    del error
    gc.collect()
    assert sys.getrefcount(rows) == before
    assert engine.num_owners == 0
    assert engine.submit(prepare()) == 1


def test_queue_full(runner: object) -> None:
    with _core.Engine(runner, _core.EngineOptions(max_queued=0)) as engine:
        runner.pause()
        ids = [engine.submit(prepare()) for _ in range(2)]
        with pytest.raises(PyvlmError) as error:
            engine.submit(prepare())
        assert code_of(error) == "queue_full"
        assert engine.stats().num_waiting + engine.stats().num_running == 2
        runner.resume()
        Pull(engine).finish(*ids)
        assert engine.submit(prepare()) == 3


def test_one_failing_sequence_leaves_the_others_alone(runner: object) -> None:
    fault = _core_testing.Fault("decode", first=3, count=FOREVER, slot=0)
    faulty = _core_testing.FaultRunner(runner, [fault])
    with _core.Engine(faulty) as engine:
        runner.pause()
        first, second = prepare(4), prepare(9)
        ids = [engine.submit(first), engine.submit(second)]
        runner.resume()
        pull = Pull(engine)
        pull.finish(*ids)
        assert pull.last[ids[0]].finish_reason == "error"
        assert pull.tokens[ids[0]] == runner.greedy_tokens(first, 3)
        assert pull.last[ids[1]].finish_reason == "length"
        assert pull.tokens[ids[1]] == runner.greedy_tokens(second, 8)


def test_lost_device_is_raised_by_later_calls(runner: object) -> None:
    fault = _core_testing.Fault("decode", code="device_unavailable")
    engine = _core.Engine(_core_testing.FaultRunner(runner, [fault]))
    pull = Pull(engine)
    seq_id = engine.submit(prepare())
    pull.finish(seq_id)
    assert pull.last[seq_id].error_code == "engine_dead"
    for call in (lambda: engine.submit(prepare()), lambda: engine.wait_outputs(0)):
        with pytest.raises(PyvlmError) as error:
            call()
        assert code_of(error) == "engine_dead"
        assert "an injected fault" in error.value.message
    assert not engine.stats().is_alive
    engine.shutdown()


def test_wait_outputs_lets_other_threads_run(engine: object) -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    assert engine.wait_outputs(0.3) == []
    assert time.monotonic() - start >= 0.29
    done.set()
    thread.join()
    assert ticks > 20


def test_submit_from_many_threads(engine: object, runner: object) -> None:
    prepared = prepare(6)
    ids: list[int] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(engine.submit(prepared) for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == list(range(1, 41))
    pull = Pull(engine)
    pull.finish(*ids)
    expected = runner.greedy_tokens(prepared, 8)
    assert all(pull.tokens[seq_id] == expected for seq_id in ids)


def test_seed_is_reproducible_and_unseeded_is_not(engine: object) -> None:
    def run(seed: int | None) -> list[int]:
        sampling = _core.SamplingParams(temperature=3.0, top_p=0.95, seed=seed)
        seq_id = engine.submit(prepare(max_new_tokens=30, sampling=sampling))
        pull = Pull(engine)
        pull.finish(seq_id)
        return pull.tokens[seq_id]

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert run(2**64 - 1) == run(2**64 - 1)
    assert run(None) != run(None)


def test_stop_ids_and_zero_tokens(engine: object, runner: object) -> None:
    prepared = prepare()
    first = runner.greedy_tokens(prepared, 1)[0]
    pull = Pull(engine)
    stopped = engine.submit(prepare(stop_token_ids=[first]))
    none = engine.submit(prepare(max_new_tokens=0))
    rest = engine.submit(prepare(max_new_tokens=None))
    pull.finish(stopped, none, rest)
    assert (pull.tokens[stopped], pull.last[stopped].finish_reason) == ([], "stop")
    assert (pull.tokens[none], pull.last[none].finish_reason) == ([], "length")
    assert len(pull.tokens[rest]) == 64 - 5


def test_deadline(engine: object, runner: object) -> None:
    runner.pause()
    seq_id = engine.submit(prepare(deadline_s=0.01))
    time.sleep(0.05)
    runner.resume()
    pull = Pull(engine)
    pull.finish(seq_id)
    assert pull.last[seq_id].error_code == "deadline"


PATCHES, VALID = pixels_of(2)


def unaligned_rows(dtype: type) -> npt.NDArray[np.floating]:
    size = 16 * np.dtype(dtype).itemsize
    return np.zeros(size + 1, np.uint8)[1:].view(dtype).reshape(4, 4)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: _core.ImageInput.pixels(PATCHES.astype(np.float64), VALID), "image_dtype"),
        (lambda: _core.ImageInput.pixels(PATCHES, VALID.astype(np.int64)), "image_dtype"),
        (lambda: _core.ImageInput.pixels(PATCHES[0], VALID), "image_shape"),
        (lambda: _core.ImageInput.pixels(PATCHES, VALID[:1]), "image_shape"),
        (lambda: _core.ImageInput.pixels(PATCHES[:, :, ::-1], VALID), "image_shape"),
        (lambda: _core.ImageInput.embeddings(rows_of(4).T), "image_shape"),
        (lambda: _core.ImageInput.embeddings(rows_of(4).astype(">f4")), "image_dtype"),
        (lambda: _core.ImageInput.embeddings(rows_of(4).view(np.int32)), "image_dtype"),
        (lambda: prepare(0, logical_ids=[], segments=[]), "empty_prompt"),
        (lambda: prepare(logical_ids=[IMAGE_ID] * 5), "placeholder_mismatch"),
        (lambda: prepare(logical_ids=np.ones(5)), "invalid_parameter"),
        (lambda: prepare(logical_ids=[2**31] * 5), "invalid_parameter"),
        (lambda: prepare(max_new_tokens=-1), "invalid_parameter"),
        (lambda: prepare(deadline_s=0.0), "invalid_parameter"),
        (
            lambda: prepare(images=((_core.ImageInput.embeddings(rows_of(4)), 5),)),
            "placeholder_mismatch",
        ),
        (
            lambda: prepare(images=((_core.ImageInput.embeddings(rows_of(4) * np.nan), 4),)),
            "non_finite",
        ),
        (lambda: _core.ImageInput.embeddings(unaligned_rows(np.float32)), "invalid_parameter"),
        (lambda: _core.ImageInput.embeddings(unaligned_rows(np.float16)), "invalid_parameter"),
        (lambda: _core.SamplingParams(top_p=1.5), "invalid_parameter"),
        (lambda: _core.EngineOptions(step_budget_ms=0), "invalid_parameter"),
    ],
)
def test_construction_rejects(make: object, code: str) -> None:
    with pytest.raises(PyvlmError) as error:
        make()
    assert code_of(error) == code


def test_valid_is_copied_at_construction(engine: object, runner: object) -> None:
    """Kernels take these numbers for bounds: a host cannot change them behind the checks."""
    patches, valid = pixels_of(2)
    before = sys.getrefcount(valid)
    prepared = prepare(images=((_core.ImageInput.pixels(patches, valid), 4),))
    expected = runner.greedy_tokens(prepared, 8)
    assert sys.getrefcount(valid) == before
    valid[:] = 2**31 - 1
    pull = Pull(engine)
    seq_id = engine.submit(prepared)
    pull.finish(seq_id)
    assert pull.tokens[seq_id] == expected
    with pytest.raises(PyvlmError) as error:
        engine.submit(prepare(images=((_core.ImageInput.pixels(patches, valid), 4),)))
    assert code_of(error) == "image_shape"


class Rows(np.ndarray):
    """Calls back when the last owner lets go of it."""

    def __del__(self) -> None:
        if (call := getattr(self, "call", None)) is not None:
            call()


def test_owners_may_call_the_engine_as_they_die(engine: object, runner: object) -> None:
    pull, later = Pull(engine), []

    def call() -> None:
        later.extend(submit_and_forget(engine, rows_of(4)) for _ in range(20))

    runner.pause()
    ids = []
    for seed in range(8):
        rows = rows_of(4, seed).view(Rows)
        rows.call = call
        ids.append(submit_and_forget(engine, rows))
        del rows
    runner.resume()
    pull.finish(*ids)
    assert len(later) == 8 * 20
    pull.finish(*later)


def test_owners_may_call_the_engine_as_it_shuts_down(runner: object) -> None:
    engine, seen = _core.Engine(runner), []

    def call() -> None:
        seen.append(engine.num_owners)
        with pytest.raises(PyvlmError):
            submit_and_forget(engine, rows_of(4))

    runner.pause()
    for seed in range(8):
        rows = rows_of(4, seed).view(Rows)
        rows.call = call
        submit_and_forget(engine, rows)
        del rows
    threading.Timer(0.05, runner.resume).start()
    engine.shutdown()
    assert seen == [0] * 8


def test_a_waiting_thread_sleeps_until_something_comes(engine: object) -> None:
    """It is not the main thread, so no signal handler of Python would run on it."""
    switches: list[int] = []

    def wait() -> None:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        assert engine.wait_outputs(1.5) == []
        switches.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert switches[0] < 8  # with a look every 100 ms there would be 15, and more for the GIL


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -float("inf"), -1.0, 1e7])
def test_impossible_timeouts_are_refused(engine: object, timeout: float) -> None:
    with pytest.raises(PyvlmError) as error:
        engine.wait_outputs(timeout)
    assert code_of(error) == "invalid_parameter"
    assert error.value.param == "timeout_s"


def test_buffers_of_a_live_image_cannot_be_resized() -> None:
    rows = bytearray(rows_of(4).tobytes())
    image = _core.ImageInput.embeddings(memoryview(rows).cast("f", (4, 4)))
    with pytest.raises(BufferError):
        rows.append(0)
    del image
    rows.append(0)

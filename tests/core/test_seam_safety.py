"""Whatever is handed to the seam raises; nothing of it crashes or is taken for something else."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pyvlm import _core, _core_testing
from pyvlm.errors import PyvlmError

HUGE = 2**70
CLASSES = {
    name: value
    for module in (_core, _core_testing)
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__.startswith("pyvlm.")
}


def unmade(name: str) -> object:
    """An object without a value."""
    cls = CLASSES[name]
    return cls.__new__(cls)


def prepared() -> object:
    return _core.PreparedPrefill(
        logical_ids=[1, 2],
        segments=[_core.Segment.text(0, 2)],
        images=[],
        sampling=_core.SamplingParams(),
        max_new_tokens=2,
        stop_token_ids=[],
    )


def arguments(name: str) -> tuple[object, ...]:
    """Of a method: what it would take."""
    return {
        "submit": (prepared(),),
        "cancel": (1,),
        "cached_image": (b"key",),
        "wait_outputs": (0.0,),
        "invoke": ("main", []),
        "add": (_core_testing.Fault("decode"),),
        "wait_until_blocked": (0,),
        "greedy_tokens": (prepared(), 1),
        "__exit__": (None, None, None),
    }.get(name, ())


def members() -> Iterator[tuple[str, str]]:
    """Of every class: properties and methods."""
    for class_name, cls in CLASSES.items():
        for name, static in vars(cls).items():
            is_named = not name.startswith("_") or name == "__exit__"
            if is_named and not isinstance(static, staticmethod):
                yield class_name, name


def use_member(class_name: str, name: str, self: object) -> object:
    member = inspect.getattr_static(CLASSES[class_name], name)
    if isinstance(member, property):
        assert member.fget is not None
        return member.fget(self)
    return getattr(CLASSES[class_name], name)(self, *arguments(name))


def test_the_list_of_members_is_not_empty() -> None:
    found = set(members())
    assert {("Engine", "submit"), ("Device", "driver"), ("FakeRunner", "pause")} <= found
    assert len(found) > 100


@pytest.mark.parametrize(("class_name", "name"), list(members()))
def test_self_without_a_value_is_refused(class_name: str, name: str) -> None:
    for self in (unmade(class_name), None):
        with pytest.raises(TypeError):
            use_member(class_name, name, self)


def spec(**fields: object) -> object:
    entry = [_core.EntryPoint("main", 1, 1)]
    sizes = ("hidden_size", "vocab_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    values = dict.fromkeys((*sizes, "num_slots", "capacity"), 1) | {
        "prefill": entry,
        "decode": entry,
    }
    return _core.ModelSpec(**(values | fields))


def prefill(**fields: object) -> object:
    values = {
        "logical_ids": [1, 2],
        "segments": [_core.Segment.text(0, 2)],
        "images": [],
        "sampling": _core.SamplingParams(),
        "max_new_tokens": 2,
        "stop_token_ids": [],
    }
    return _core.PreparedPrefill(**(values | fields))


def runner() -> object:
    return _core_testing.FakeRunner()


USES: list[tuple[str, Callable[[object], object]]] = [
    ("Runner", lambda one: _core.Engine(one)),
    ("IreeRunner", lambda one: _core.Engine(one)),
    ("FakeRunner", lambda one: _core.Engine(one)),
    ("Program", lambda one: _core.Engine(one)),
    ("Program", lambda one: _core.IreeRunner(one)),
    ("EngineOptions", lambda one: _core.Engine(runner(), one)),
    ("Device", lambda one: _core.Program(one, "a.vmfb")),
    ("EntryPoint", lambda one: spec(prefill=[one])),
    ("Segment", lambda one: prefill(segments=[one])),
    ("ImageInput", lambda one: prefill(images=[one])),
    ("SamplingParams", lambda one: prefill(sampling=one)),
    ("PreparedPrefill", lambda one: _core.Engine(runner()).submit(one)),
    ("PreparedPrefill", lambda one: runner().greedy_tokens(one, 1)),
    ("FakeRunner", lambda one: _core_testing.FaultRunner(one)),
    ("Fault", lambda one: _core_testing.FaultRunner(runner(), [one])),
    ("Fault", lambda one: _core_testing.FaultRunner(runner()).add(one)),
    ("IreeRunner", lambda one: _core_testing.RowsProbe(one)),
]


@pytest.mark.parametrize(("class_name", "use"), USES)
def test_arguments_without_a_value_are_refused(
    class_name: str, use: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError):
        use(unmade(class_name))
    for other in (None, 3, "text", object()):
        with pytest.raises((TypeError, PyvlmError)):
            use(other)


def test_optional_objects_without_a_value_are_refused() -> None:
    with pytest.raises(TypeError):
        spec(vision=unmade("VisionSpec"))
    with pytest.raises(TypeError):
        _core.Program(_core.Device(num_threads=1), "a.vmfb", "", unmade("ModelSpec"))


@pytest.mark.parametrize("make", [prepared, runner, _core.SamplingParams])
def test_copies_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        copy.copy(make())


NUMBERS: list[tuple[str, Callable[[int], object]]] = [
    ("seed", lambda n: _core.SamplingParams(seed=n)),
    ("top_k", lambda n: _core.SamplingParams(top_k=n)),
    ("num_logprobs", lambda n: _core.SamplingParams(num_logprobs=n)),
    ("logit_bias", lambda n: _core.SamplingParams(logit_bias=[(n, 1.0)])),
    ("max_queued", lambda n: _core.EngineOptions(max_queued=n)),
    ("image_cache_bytes", lambda n: _core.EngineOptions(image_cache_bytes=n)),
    ("max_new_tokens", lambda n: prefill(max_new_tokens=n)),
    ("image_token_id", lambda n: prefill(image_token_id=n)),
    ("logical_ids", lambda n: prefill(logical_ids=[1, n])),
    ("stop_token_ids", lambda n: prefill(stop_token_ids=[n])),
    ("start", lambda n: _core.Segment.text(n, 1)),
    ("count", lambda n: _core.Segment.text(0, n)),
    ("index", lambda n: _core.Segment.image(n, [1])),
    ("expanded_ids", lambda n: _core.Segment.image(0, [n])),
    ("size", lambda n: _core.EntryPoint("main", n, 1)),
    ("hidden_size", lambda n: spec(hidden_size=n)),
    ("num_threads", lambda n: _core.Device(num_threads=n)),
    ("worker_spin_us", lambda n: _core.Device(worker_spin_us=n)),
]


@pytest.mark.parametrize(("name", "use"), NUMBERS)
@pytest.mark.parametrize("number", [HUGE, -HUGE])
def test_numbers_out_of_range_are_named(
    name: str, use: Callable[[int], object], number: int
) -> None:
    with pytest.raises(PyvlmError) as caught:
        use(number)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", name)
    for wrong in (1.5, "1", [1], {1: 1}, object()):
        with pytest.raises((TypeError, PyvlmError)):
            use(wrong)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("seed", lambda: _core.SamplingParams(seed=-1)),
        ("seed", lambda: _core.SamplingParams(seed=2**64)),
        ("top_k", lambda: _core.SamplingParams(top_k=2**40)),
        ("logit_bias", lambda: _core.SamplingParams(logit_bias=[(2**31, 1.0)])),
        ("max_queued", lambda: _core.EngineOptions(max_queued=2**31)),
        ("logical_ids", lambda: prefill(logical_ids=[2**31, 1])),
    ],
)
def test_numbers_just_out_of_range_are_named(name: str, use: Callable[[], object]) -> None:
    with pytest.raises(PyvlmError) as caught:
        use()
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", name)


def test_extreme_numbers_in_range_are_taken() -> None:
    assert _core.SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
    assert _core.SamplingParams(seed=2**63).seed == 2**63
    assert _core.SamplingParams(top_k=2**31 - 1).top_k == 2**31 - 1
    assert _core.SamplingParams(top_k=np.int64(7)).top_k == 7
    with _core.Engine(runner()) as engine:
        for unknown in (0, -1, 2**63, HUGE, -HUGE):
            engine.cancel(unknown)


class FailingIndex:
    def __index__(self) -> int:
        raise RuntimeError("no number")


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2.0],
        [1, "2"],
        [1, None],
        np.array([1.0, 2.0]),
        np.array([[1, 2]]),
        np.array([1, 2], dtype=object),
        "12",
        b"12",
        {1: 2},
        {1, 2},
        7,
        None,
        [1, HUGE],
        np.array([1, 2**64 - 1], np.uint64),
    ],
)
def test_ids_are_integers(ids: object) -> None:
    with pytest.raises(PyvlmError) as caught:
        prefill(logical_ids=ids)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "logical_ids")


def test_an_error_of_the_callers_own_object_comes_through() -> None:
    with pytest.raises(RuntimeError, match="no number"):
        prefill(logical_ids=[1, FailingIndex()])


@pytest.mark.parametrize("dtype", ["V0", "V4", ">f4", "O", "S4", "c8"])
def test_odd_buffers_are_refused(dtype: str) -> None:
    with pytest.raises((PyvlmError, BufferError, TypeError, ValueError)):
        _core.ImageInput.embeddings(np.zeros((2, 4), dtype))
    with pytest.raises((PyvlmError, BufferError, TypeError, ValueError)):
        _core.ImageInput.pixels(np.zeros((1, 4, 3), dtype), np.ones((1, 2), np.int32))
    with pytest.raises((PyvlmError, BufferError, TypeError, ValueError)):
        _core.ImageInput.pixels(np.zeros((1, 4, 3), np.float32), np.ones((1, 2), dtype))


def test_a_runner_serves_one_engine_at_a_time() -> None:
    fake = runner()
    with _core.Engine(fake) as engine:
        for use in (_core.Engine, _core_testing.FaultRunner):
            with pytest.raises(PyvlmError, match="already") as caught:
                use(fake)
            assert (caught.value.code, caught.value.param) == ("invalid_parameter", "runner")
        assert engine.submit(prepared()) == 1
    with _core.Engine(fake) as engine:  # the first has been shut down
        assert engine.submit(prepared()) == 1
    engine = _core.Engine(fake)
    del engine
    faulty = _core_testing.FaultRunner(fake)
    with pytest.raises(PyvlmError, match="already"):
        _core.Engine(fake)
    with _core.Engine(faulty):
        pass


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(PyvlmError) as caught:
        _core.Program(_core.Device(num_threads=1), "a.vmfb\0b")
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "vmfb_path")


def test_heads_must_share_the_cache_evenly() -> None:
    with pytest.raises(PyvlmError, match="num_heads") as caught:
        _core.Program(_core.Device(num_threads=1), __file__, "", spec(num_heads=3, num_kv_heads=2))
    assert caught.value.code == "program_mismatch"

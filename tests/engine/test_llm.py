"""The synchronous face: batches, streams, and nothing asked of the host."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyvlm
from pyvlm import LLM, GenerationRequest, PyvlmError, SamplingParams
from pyvlm.chat import ImagePart, Message, TextPart, user_message
from pyvlm.media.source_files import read_image_files
from pyvlm.outputs import Delta, RequestOutput
from tests.engine.bench import QUESTION, ask, is_clean, picture, torn

pytestmark = pytest.mark.timeout(240)

COLOURS = ("red", "blue", "green")


@pytest.fixture(scope="module")
def llm(bundle) -> Iterator[LLM]:
    """The bundle is compiled: loading is all that is left."""
    with LLM(bundle.path) as llm:
        yield llm


def settle(llm: LLM) -> None:
    until = time.monotonic() + 60
    while not is_clean(llm.engine):
        assert time.monotonic() < until
        time.sleep(0.01)


def answer(llm: LLM, *colours: str, prompt: str = QUESTION, **sampling: object) -> list[Delta]:
    return list(llm.stream(ask(*colours, prompt=prompt, **sampling)))


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def unending(llm: LLM) -> dict[int, float]:
    return dict.fromkeys(llm.engine.frontend.stop_token_ids, -100.0)


def test_answers_many_times(llm: LLM) -> None:
    first = answer(llm, "red")
    assert "red" in text(first).lower()
    assert first[-1].finish_reason == "stop"
    assert "blue" in text(answer(llm, "blue")).lower()
    assert text(answer(llm, "red")) == text(first)
    settle(llm)


def test_order_of_pictures_is_kept(llm: LLM) -> None:
    question = "What is in the second picture?"
    one = text(answer(llm, "red", "blue", prompt=question))
    other = text(answer(llm, "blue", "red", prompt=question))
    assert (one.strip().lower(), other.strip().lower()) == ("square", "circle")


def test_swapped_pictures_are_another_prompt(llm: LLM) -> None:
    """Whatever the weights have learnt: the log probabilities see it."""

    def likely(*colours: str) -> float:
        (last,) = answer(llm, *colours, max_tokens=1, num_logprobs=0, logit_bias=unending(llm))
        return last.logprobs[0].logprob

    assert likely("red", "blue") == likely("red", "blue")
    assert len({likely("red", "blue"), likely("blue", "red"), likely("red", "red")}) == 3


def test_pictures_in_an_earlier_turn(llm: LLM) -> None:
    messages = [
        Message("user", [ImagePart(), TextPart(QUESTION)]),
        Message("assistant", [TextPart("Red.")]),
        Message("user", [TextPart("And this one?"), ImagePart()]),
    ]
    images = [picture("red"), picture("blue")]
    (output,) = llm.chat(messages, SamplingParams(max_tokens=2), images=[images])
    assert output.error is None
    assert output.usage.image_positions == 38


def test_to_the_capacity_and_no_further(llm: LLM) -> None:
    deltas = answer(llm, prompt="x", logit_bias=unending(llm))
    usage = deltas[-1].usage
    assert deltas[-1].finish_reason == "length"
    assert usage.prompt_tokens + usage.completion_tokens == llm.engine.capacity


def test_a_batch_keeps_its_order_and_its_errors_apart(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "blue.png"
    path.write_bytes(picture("blue"))
    images = [[picture("red")], [torn("red")], [path], [], [str(tmp_path / "none.png")], ["blue"]]
    outputs = llm.chat([QUESTION] * 6, SamplingParams(max_tokens=8), images=images)
    codes = [output.error and output.error.code for output in outputs]
    assert codes == [None, "image_decode_failed", None, None, "image_fetch_failed",
                     "image_fetch_failed"]  # fmt: skip
    assert "red" in outputs[0].text.lower()
    assert "blue" in outputs[2].text.lower()
    assert outputs[3].text
    assert outputs[1].text == ""
    settle(llm)


def test_many_more_prompts_than_slots(llm: LLM, capfd) -> None:
    outputs = llm.generate(["one two"] * 40, SamplingParams(max_tokens=3), progress=True)
    assert len({output.text for output in outputs}) == 1
    assert "40/40" in capfd.readouterr().err


def test_parameters_for_each(llm: LLM) -> None:
    lengths = [SamplingParams(max_tokens=n, logit_bias=unending(llm)) for n in (1, 4, 2)]
    outputs = llm.generate(["one"] * 3, lengths)
    assert [len(output.token_ids) for output in outputs] == [1, 4, 2]
    for wrong in ([], lengths[:2]):
        with pytest.raises(PyvlmError, match="3 prompts"):
            llm.generate(["one"] * 3, wrong)
    with pytest.raises(PyvlmError, match="each of the 2 prompts"):
        llm.chat(["one", "two"], images=[[picture("red")]])
    assert llm.generate([]) == []


def test_one_prompt_in_any_form(llm: LLM) -> None:
    ids = llm.engine.frontend.text_ids("one two")
    few = SamplingParams(max_tokens=3)
    (by_text,), (by_ids,) = llm.generate("one two", few), llm.generate(ids, few)
    assert by_text.text == by_ids.text
    (by_chat,), (by_message,) = llm.chat("Hello", few), llm.generate([user_message("Hello")], few)
    assert by_chat.text == by_message.text


mixed = st.tuples(
    st.sampled_from(["Hello", QUESTION, "one two three four five six seven eight nine"]),
    st.lists(st.sampled_from(COLOURS), max_size=2).map(tuple),
    st.sampled_from([0.0, 0.8, 3.0]),
    st.integers(0, 3),
)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("prompts", {"prompts": 5}),
        ("prompts", {"prompts": None}),
        ("prompts", {"prompts": [{"role": "user", "content": "x"}]}),
        ("sampling_params", {"prompts": "x", "sampling_params": {"max_tokens": 3}}),
        ("sampling_params", {"prompts": "x", "sampling_params": [3]}),
        ("images", {"prompts": "x", "images": 5}),
        ("images", {"prompts": ["x", "y"], "images": [[], [5]]}),
    ],
)
def test_wrong_arguments_are_named(llm: LLM, name: str, arguments: dict) -> None:
    with pytest.raises(PyvlmError, match=f"^{name} must") as caught:
        llm.generate(**arguments)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", name)


def test_pictures_of_a_single_prompt_may_stand_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8)
    red = picture("red")
    (listed,) = llm.chat(QUESTION, params, images=[[red]])
    (alone,) = llm.chat(QUESTION, params, images=[red])
    assert "red" in alone.text.lower()
    assert alone.token_ids == listed.token_ids
    with pytest.raises(PyvlmError, match="2 prompts; it has 2 entries, 1 of them single"):
        llm.chat([QUESTION] * 2, params, images=[red, [red]])


@settings(deadline=None, max_examples=10)
@given(requests=st.lists(mixed, min_size=2, max_size=7))
def test_company_changes_nothing(llm: LLM, requests: list[tuple]) -> None:
    """Not one bit: each row of a batch is computed by itself, in a fixed order of operations."""

    def prompts(chosen: list[tuple]) -> tuple[list, list, list]:
        return (
            [prompt for prompt, *_ in chosen],
            [
                SamplingParams(temperature=heat, seed=seed, max_tokens=10, num_logprobs=1)
                for *_, heat, seed in chosen
            ],
            [[picture(colour) for colour in colours] for _, colours, *_ in chosen],
        )

    def results(chosen: list[tuple]) -> list[tuple]:
        texts, params, images = prompts(chosen)
        outputs = llm.chat(texts, params, images=images)
        return [(o.error, o.token_ids, o.logprobs, o.finish_reason) for o in outputs]

    alone = [results([request])[0] for request in requests]
    assert results(requests) == alone
    assert results(requests[::-1]) == alone[::-1]


def test_reading_a_file_holds_nobody_up(llm: LLM, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(picture("red"))
    reads, released = threading.Event(), threading.Event()

    def read_late(*arguments: object) -> list[bytes]:
        reads.set()
        assert released.wait(60)
        return read_image_files(*arguments)

    monkeypatch.setattr("pyvlm.llm.read_image_files", read_late)
    outputs: list[RequestOutput] = []
    batch = threading.Thread(target=lambda: outputs.extend(llm.chat("x", images=[[file]])))
    late = threading.Timer(20, released.set)  # so that the test ends, were the loop held up
    batch.start()
    try:
        assert reads.wait(60)
        late.start()
        assert answer(llm, max_tokens=2)
        assert not released.is_set()
    finally:
        late.cancel()
        released.set()
        batch.join(60)
    assert outputs[0].error is None
    settle(llm)


def test_leaving_a_stream_cancels(llm: LLM) -> None:
    deltas = llm.stream(ask("red", logit_bias=unending(llm)))
    next(deltas)
    deltas.close()
    settle(llm)
    dropped = llm.stream(ask("red", logit_bias=unending(llm)))
    next(dropped)
    del dropped
    gc.collect()
    settle(llm)
    with pytest.raises(ZeroDivisionError):
        _fail_amid(llm)
    settle(llm)


def _fail_amid(llm: LLM) -> None:
    for _ in llm.stream(ask(logit_bias=unending(llm))):
        raise ZeroDivisionError


def test_several_threads(llm: LLM) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(text(answer(llm, "red")))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 4
    assert len(set(texts)) == 1


def test_inside_a_running_loop(llm: LLM) -> None:
    """As in a notebook."""

    async def cell() -> str:
        return text(answer(llm, "red"))

    assert "red" in asyncio.run(cell()).lower()


def test_signal_handlers_stay_the_hosts(bundle) -> None:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    threads = threading.active_count()
    with LLM(bundle.path) as llm:
        llm.generate("one", SamplingParams(max_tokens=1))
        assert {n: signal.getsignal(n) for n in signal.valid_signals()} == before
    assert threading.active_count() == threads
    with pytest.raises(PyvlmError) as caught:
        list(llm.stream(ask()))
    assert caught.value.code == "draining"
    llm.close()


def test_a_dropped_object_is_shut_down(bundle) -> None:
    threads = threading.active_count()
    llm = LLM(bundle.path)
    llm.generate("one", SamplingParams(max_tokens=1))
    del llm
    gc.collect()
    assert threading.active_count() == threads


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.2])
def test_closing_amid_a_batch(bundle, moment: float) -> None:
    """Whoever waits for it, or comes later, gets our error."""
    llm = LLM(bundle.path)
    closer = threading.Timer(moment, llm.close)
    closer.start()
    try:
        outputs = llm.chat(["x"] * 40, SamplingParams(logit_bias=unending(llm)))
    except PyvlmError as error:
        errors = [error]
    else:
        errors = [output.error for output in outputs if output.error is not None]
    closer.join()
    assert {error.code for error in errors} == {"draining"}


SCRIPT = """
from pyvlm import LLM, EngineOptions, SamplingParams
llm = LLM({model!r}, options=EngineOptions(num_preprocess_workers={workers}))
image = open({image!r}, "rb").read()
print(llm.chat("What colour is the shape?", images=[[image]])[0].text)
"""


@pytest.mark.parametrize("way", ["file", "stdin"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_script_without_a_guard(bundle, tmp_path: Path, way: str, workers: int) -> None:
    """It never closes anything, and ends all the same."""
    image = tmp_path / "red.png"
    image.write_bytes(picture("red"))
    source = SCRIPT.format(model=str(bundle.path), image=str(image), workers=workers)
    script = tmp_path / "script.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)] if way == "file" else [sys.executable, "-"],
        input=source if way == "stdin" else "", capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "red" in done.stdout.lower()


INTERRUPTED = """
import sys
from pyvlm import LLM, SamplingParams
llm = LLM({model!r})
bias = dict.fromkeys(llm.engine.frontend.stop_token_ids, -100.0)
try:
    print("go", flush=True)
    while True:
        llm.generate("x", SamplingParams(logit_bias=bias))
except KeyboardInterrupt:
    while llm.engine.stats().num_open:
        pass
    print(len(llm.generate("x", SamplingParams(max_tokens=2))[0].token_ids) <= 2)
"""


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_batch(bundle) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(model=str(bundle.path))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout.readline() == "go\n"
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (out, err) == ("True\n", "")


def test_importing_the_package_is_light() -> None:
    code = "import sys, pyvlm; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         timeout=60, env=os.environ)  # fmt: skip
    loaded = set(out.stdout.split())
    assert not loaded & {"numpy", "PIL", "tokenizers", "jinja2", "asyncio"}
    assert set(pyvlm.__all__) <= set(dir(pyvlm))
    for name in pyvlm.__all__:
        assert getattr(pyvlm, name) is not None
    with pytest.raises(AttributeError):
        _ = pyvlm.no_such_name
    assert GenerationRequest is pyvlm.GenerationRequest

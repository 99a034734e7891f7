"""A session in this process: cancelling, several generations, nothing left behind."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pytest
from PIL import Image, ImageDraw

from pyvlm.chat import ImagePart, Message, TextPart, user_message
from pyvlm.errors import PyvlmError
from pyvlm.sampling import SamplingParams

pytest.importorskip("pyvlm._core")
from pyvlm.session import GenerationRequest, Session, load_session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYVLM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        with load_session("tiny") as session:
            yield session


def picture(colour: str) -> bytes:
    """Blue is a square, any other colour a circle."""
    image = Image.new("RGB", (192, 192), "white")
    draw = ImageDraw.Draw(image)
    shape = draw.rectangle if colour == "blue" else draw.ellipse
    shape((40, 40, 150, 150), fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def ask(session: Session, *colours: str, prompt: str = "What colour is the shape?", **sampling):
    request = GenerationRequest(
        [user_message(prompt, len(colours))],
        [picture(colour) for colour in colours],
        SamplingParams(**sampling),
    )
    generation = session.generate(request)
    return "".join(generation), generation


def is_idle(session: Session) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stats = session.engine.stats()
        if (stats.num_running, stats.num_waiting, stats.num_leases) == (0, 0, 0):
            return True
        time.sleep(0.01)
    return False


def test_one_session_answers_many_times(session: Session) -> None:
    first, generation = ask(session, "red")
    assert "red" in first.lower()
    assert generation.finish_reason == "stop"
    assert "blue" in ask(session, "blue")[0].lower()
    assert ask(session, "red")[0] == first
    assert is_idle(session)


def test_order_of_pictures_is_kept(session: Session) -> None:
    question = "What is in the second picture?"
    one, _ = ask(session, "red", "blue", prompt=question)
    other, _ = ask(session, "blue", "red", prompt=question)
    assert (one.strip().lower(), other.strip().lower()) == ("square", "circle")


def test_swapped_pictures_are_another_prompt(session: Session) -> None:
    """Whatever the weights have learnt: hot draws with the same seeds see other logits."""

    def draws(*colours: str) -> list[str]:
        return [
            ask(session, *colours, temperature=4.0, seed=seed, max_tokens=1)[0]
            for seed in range(12)
        ]

    one = draws("red", "blue")
    assert one == draws("red", "blue")
    assert one != draws("blue", "red")
    assert one != draws("red", "red")


def test_pictures_in_an_earlier_turn(session: Session) -> None:
    messages = [
        Message("user", [ImagePart(), TextPart("What colour is the shape?")]),
        Message("assistant", [TextPart("Red.")]),
        Message("user", [TextPart("And this one?"), ImagePart()]),
    ]
    request = GenerationRequest(
        messages, [picture("red"), picture("blue")], SamplingParams(max_tokens=2)
    )
    generation = session.generate(request)
    list(generation)
    assert generation.usage.image_positions == 38
    assert is_idle(session)


def test_leaving_early_cancels(session: Session) -> None:
    request = GenerationRequest(
        [user_message("What colour is the shape?", 1)],
        [picture("red")],
        SamplingParams(logit_bias=dict.fromkeys(session.frontend.stop_token_ids, -100.0)),
    )
    generation = iter(session.generate(request))
    next(generation)
    generation.close()
    assert is_idle(session)
    assert "red" in ask(session, "red")[0].lower()


def endless(session: Session) -> GenerationRequest:
    bias = dict.fromkeys(session.frontend.stop_token_ids, -100.0)
    return GenerationRequest([user_message("x", 0)], [], SamplingParams(logit_bias=bias))


def test_a_second_generation_is_refused_while_one_is_open(session: Session) -> None:
    first = session.generate(endless(session))
    pieces = iter(first)
    next(pieces)
    submitted = session.engine.stats().num_submitted
    with pytest.raises(PyvlmError, match="still open") as caught:
        session.generate(endless(session))
    assert caught.value.code == "queue_full"
    assert session.engine.stats().num_submitted == submitted
    "".join(pieces)
    assert first.finish_reason == "length"
    assert not first.is_open
    assert "red" in ask(session, "red")[0].lower()


def test_closed_and_dropped_generations_make_room(session: Session) -> None:
    closed = session.generate(endless(session))
    closed.close()
    assert (list(closed), closed.finish_reason) == ([], "cancelled")
    dropped = session.generate(endless(session))
    del dropped
    assert "red" in ask(session, "red")[0].lower()
    assert is_idle(session)


def test_generation_runs_to_the_capacity_and_no_further(session: Session) -> None:
    bias = dict.fromkeys(session.frontend.stop_token_ids, -100.0)
    _, generation = ask(session, logit_bias=bias, prompt="x")
    assert generation.finish_reason == "length"
    usage = generation.usage
    assert usage.prompt_tokens + usage.completion_tokens == session.capacity


def test_a_refused_request_leaves_nothing(session: Session) -> None:
    before = session.engine.stats().num_submitted
    with pytest.raises(PyvlmError) as caught:
        ask(session, "red", max_tokens=session.capacity)
    assert caught.value.code == "context_overflow"
    with pytest.raises(PyvlmError) as caught:
        session.generate(GenerationRequest([user_message("x", 1)], [b"junk"]))
    assert caught.value.code == "image_decode_failed"
    with pytest.raises(PyvlmError) as caught:
        session.generate(GenerationRequest([user_message("x", 2)], [picture("red")]))
    assert caught.value.code == "placeholder_mismatch"
    assert session.engine.stats().num_submitted == before

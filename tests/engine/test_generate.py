"""One engine, many requests: what comes back, and what is refused before anything runs."""

from __future__ import annotations

import asyncio

import pytest

from pyvlm.chat import Message, user_message
from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.media.policy import MediaPolicy
from pyvlm.request import GenerationRequest
from pyvlm.sampling import SamplingParams
from tests.engine.bench import (
    QUESTION,
    ask,
    collect,
    endless,
    ids_of,
    picture,
    run,
    settled,
    text_of,
    torn,
    until,
)

pytestmark = pytest.mark.timeout(180)


async def refused(engine: AsyncEngine, request: GenerationRequest) -> PyvlmError:
    """The error, before any delta; nothing reached the native engine."""
    before = engine.stats().native.num_submitted
    with pytest.raises(PyvlmError) as caught:
        await anext(engine.generate(request))
    await settled(engine)
    assert engine.stats().native.num_submitted == before
    return caught.value


def test_texts_and_pictures_at_once(open_engine) -> None:
    requests = [ask("red"), ask("blue"), ask(prompt="Hello", max_tokens=8), ask("red", "blue")] * 3

    async def work() -> None:
        async with open_engine() as engine:
            alone = [await text_of(engine, request) for request in requests[:4]]
            together = await asyncio.gather(*(text_of(engine, request) for request in requests))
            assert together == alone * 3
            assert "red" in alone[0].lower()
            assert "blue" in alone[1].lower()
            await settled(engine)
            assert engine.stats().native.num_submitted == 16

    run(work())


def test_the_last_delta_sums_up(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            deltas = await collect(engine, endless(engine, "red", max_tokens=9))
            *others, last = deltas
            assert all(d.finish_reason is d.usage is d.timings is None for d in others)
            assert last.finish_reason == "length"
            ids = [i for delta in deltas for i in delta.token_ids]
            assert last.usage.completion_tokens == len(ids) == 9
            assert last.usage.image_positions == 19
            text = "".join(delta.text for delta in deltas)
            assert text == engine.frontend.tokenizer.decode(ids)
            times = last.timings
            assert 0 < times.ttft <= times.total
            assert min(times.decode_image, times.transform, times.encode, times.prefill) > 0
            stages = times.decode_image + times.transform + times.encode + times.prefill
            assert stages + times.decode <= times.total

    run(work())


def test_log_probabilities_follow_the_tokens(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            request = endless(engine, max_tokens=6, num_logprobs=3)
            deltas = await collect(engine, request)
            for delta in deltas:
                assert [p.token_id for p in delta.logprobs] == list(delta.token_ids)
            found = [p for delta in deltas for p in delta.logprobs]
            assert len(found) == 6
            for one in found:
                assert one.logprob <= 0
                assert one.token.encode() == one.bytes
                values = [top.logprob for top in one.top]
                assert values == sorted(values, reverse=True)
                assert len(values) == 3
            text = b"".join(p.bytes for p in found).decode()
            assert text == "".join(delta.text for delta in deltas)
            none = await collect(engine, endless(engine, max_tokens=2))
            assert all(delta.logprobs is None for delta in none)

    run(work())


def test_no_tokens_take_no_pass(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            for request in (ask(max_tokens=0), ask("red", max_tokens=0)):
                (delta,) = await collect(engine, request)
                assert (delta.text, delta.token_ids, delta.finish_reason) == ("", (), "length")
                assert delta.usage.completion_tokens == 0
                assert delta.usage.prompt_tokens > 0
            assert delta.usage.image_positions == 19
            assert engine.stats().native.num_submitted == 0
            assert (await refused(engine, ask("red", max_tokens=10**6))).code == "context_overflow"
            await settled(engine)

    run(work())


def test_a_stop_string_across_tokens(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            whole = await text_of(engine, endless(engine, prompt="Hello", max_tokens=24))
            stop = whole[6:13]
            deltas = await collect(
                engine, endless(engine, prompt="Hello", max_tokens=24, stop=(stop,))
            )
            assert "".join(delta.text for delta in deltas) == whole[: whole.index(stop)]
            assert deltas[-1].finish_reason == "stop"
            ids = [i for delta in deltas for i in delta.token_ids]
            assert deltas[-1].usage.completion_tokens == len(ids) < 24
            await settled(engine)

    run(work())


@pytest.mark.parametrize("prompt", ["", [], [Message("user", "")]])
def test_an_empty_prompt(open_engine, prompt) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            assert (await refused(engine, GenerationRequest(prompt))).code == "empty_prompt"

    run(work())


def test_capacity_is_decided_before_a_pixel_is_decoded(open_engine) -> None:
    """The pictures could not be decoded, but nobody tries."""

    async def work() -> None:
        async with open_engine() as engine:
            images = [torn("red")] * 13  # 13 * 19 positions and the question
            request = GenerationRequest([user_message(QUESTION, 13)], images)
            assert (await refused(engine, request)).code == "context_overflow"
            many = GenerationRequest([user_message(QUESTION, 1)], [torn("red")],
                                     SamplingParams(max_tokens=250))  # fmt: skip
            assert (await refused(engine, many)).code == "context_overflow"
            pool = engine.stats().pool
            assert (pool.num_done, dict(pool.num_failed)) == (0, {})
            fits = GenerationRequest([user_message(QUESTION, 1)], [torn("red")])
            error = await refused(engine, fits)
            assert (error.code, error.param) == ("image_decode_failed", "images[0]")

    run(work())


def test_ids_are_a_prompt(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            frontend = engine.frontend
            ids = frontend.chat_ids([user_message(QUESTION, 1)])
            request = GenerationRequest(ids, [picture("red")])
            assert await text_of(engine, request) == await text_of(engine, ask("red"))
            for wrong in (-1, frontend.vocab_size, 2**40, True, 1.0, "a"):
                error = await refused(engine, GenerationRequest([ids[0], wrong]))
                assert (error.code, error.param) == ("invalid_parameter", "prompt")
            error = await refused(engine, GenerationRequest(ids))
            assert error.code == "placeholder_mismatch"

    run(work())


def test_untrusted_text_names_no_placeholder(open_engine) -> None:
    text = "a <image> b<|im_end|>"

    async def work() -> None:
        async with open_engine() as engine:
            plain = GenerationRequest(
                text, sampling=SamplingParams(max_tokens=1), allow_special=False
            )
            (last,) = [d for d in await collect(engine, plain) if d.usage]
            assert last.usage.image_positions == 0
            assert last.usage.prompt_tokens > len(engine.frontend.text_ids(text))
            assert (await refused(engine, GenerationRequest(text))).code == "placeholder_mismatch"

    run(work())


def test_a_bad_picture_names_its_place_and_leaves_the_others(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            bad = GenerationRequest(
                [user_message(QUESTION, 3)], [picture("red"), torn("red"), picture("blue")]
            )
            error, text = await asyncio.gather(
                collect(engine, bad), text_of(engine, ask("red")), return_exceptions=True
            )
            assert isinstance(error, PyvlmError)
            assert (error.code, error.param) == ("image_decode_failed", "images[1]")
            assert "red" in text.lower()
            await settled(engine)

    run(work())


def test_the_policy_is_the_engines(open_engine) -> None:
    async def work() -> None:
        async with open_engine(policy=MediaPolicy(max_images=1)) as engine:
            assert (await refused(engine, ask("red", "red"))).code == "media_policy_violation"

    run(work())


def test_too_many_requests(open_engine) -> None:
    async def work() -> None:
        async with open_engine(max_queued=2) as engine:
            open_now = [engine.generate(endless(engine)) for _ in range(6)]
            waits = [asyncio.create_task(anext(deltas)) for deltas in open_now]
            await until(lambda: engine.stats().num_open == 6)
            with pytest.raises(PyvlmError, match="max_queued is 2") as caught:
                await anext(engine.generate(ask()))
            assert caught.value.code == "queue_full"
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            for deltas in open_now:
                await deltas.aclose()
            await settled(engine)
            assert await text_of(engine, ask(max_tokens=2))

    run(work())


def test_too_many_bytes(open_engine) -> None:
    limit = len(picture("red")) + len(picture("blue"))

    async def work() -> None:
        async with open_engine(hold=True, max_queued_bytes=limit) as engine:
            tasks = [asyncio.create_task(text_of(engine, ask(c))) for c in ("red", "blue")]
            await until(lambda: engine._preprocessor.num_held == 2)
            assert engine.stats().queued_bytes == limit
            with pytest.raises(PyvlmError, match="max_queued_bytes") as caught:
                await anext(engine.generate(ask("red")))
            assert caught.value.code == "queue_full"
            with pytest.raises(PyvlmError, match="this request alone") as caught:
                await anext(engine.generate(ask("red", "blue", "green")))
            assert caught.value.code == "media_policy_violation"  # to wait is of no use
            assert await text_of(engine, ask(max_tokens=2))  # text takes no bytes
            engine._preprocessor.let_go()
            await tasks[0]
            tasks.append(asyncio.create_task(text_of(engine, ask("red"))))
            await until(lambda: engine._preprocessor.num_held == 2)
            engine._preprocessor.let_go()
            engine._preprocessor.let_go()
            one, _, other = await asyncio.gather(*tasks)
            assert one == other
            await settled(engine)

    run(work())


def test_only_where_it_was_started(open_engine) -> None:
    engine = open_engine()

    async def work() -> None:
        with pytest.raises(PyvlmError) as caught:
            await anext(engine.generate(ask()))
        assert caught.value.code == "loading"
        assert not engine.is_alive
        async with engine:
            assert engine.is_alive
            ids = await ids_of(engine, ask("red"))
            assert ids
            with pytest.raises(PyvlmError, match="started before"):
                await engine.start()
            message = await asyncio.to_thread(_in_another_loop, engine)
            assert "another event loop" in message
        assert not engine.is_alive
        with pytest.raises(PyvlmError) as caught:
            await anext(engine.generate(ask()))
        assert caught.value.code == "draining"

    run(work())


def _in_another_loop(engine: AsyncEngine) -> str:
    async def work() -> str:
        with pytest.raises(PyvlmError) as caught:
            await anext(engine.generate(ask()))
        return caught.value.message

    return asyncio.run(work())


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_deadline_lies_ahead(value: float) -> None:
    with pytest.raises(PyvlmError, match="deadline_s"):
        GenerationRequest("x", deadline_s=value)

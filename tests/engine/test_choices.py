"""The choices of a request share the work on its pictures, and give back what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pyvlm import _core
from pyvlm.chat import user_message
from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.request import GenerationRequest
from pyvlm.sampling import SamplingParams
from tests.engine.bench import (
    QUESTION,
    ask,
    collect,
    ids_of,
    is_clean,
    picture,
    run,
    settled,
    text_of,
    torn,
    until,
)
from tests.engine.conftest import engine_over

_core_testing = pytest.importorskip("pyvlm._core_testing")
pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20
COLOURS = ("red", "blue", "red")  # the third is the first, from other bytes


def choices(count: int, images: Sequence[bytes], **sampling: object) -> list[GenerationRequest]:
    """As the server makes them: one tuple of pictures, a seed for each."""
    shared = tuple(images)
    options = {"temperature": 4.0, "max_tokens": 12, **sampling}
    return [
        GenerationRequest(
            [user_message(QUESTION, len(shared))],
            shared,
            SamplingParams(seed=7 + index, **options),
        )
        for index in range(count)
    ]


def pictures() -> list[bytes]:
    return [bytes(bytearray(picture(colour))) for colour in COLOURS]


def alone(request: GenerationRequest) -> GenerationRequest:
    return replace(request, images=list(request.images))


async def all_ids(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[object]:
    return await asyncio.gather(*(ids_of(engine, r) for r in requests), return_exceptions=True)


@pytest.mark.parametrize("cache_bytes", [0, MIB])
def test_one_preparation_and_one_encoding(open_engine, cache_bytes: int) -> None:
    """Six choices on four slots; the answers are those of separate requests."""

    async def work() -> None:
        requests = choices(6, pictures())
        async with open_engine() as engine:
            expected = [await ids_of(engine, alone(request)) for request in requests]
            await settled(engine)
            once = engine.stats().native.num_encode_units // len(requests)
            assert engine.stats().pool.num_done == 2 * len(requests)
        async with open_engine(image_cache_bytes=cache_bytes) as engine:
            assert await all_ids(engine, requests) == expected
            await settled(engine)
            assert engine.stats().native.num_encode_units == once
            assert engine.stats().pool.num_done == 2
        assert len(set(expected)) > 1

    run(work())


def test_later_requests_are_others(open_engine) -> None:
    """Without an image cache nothing outlives the request, even one with the same pictures."""

    async def work() -> None:
        requests = choices(2, [picture("red")])
        async with open_engine() as engine:
            first = await all_ids(engine, requests)
            await settled(engine)
            encoded = engine.stats().native.num_encode_units
            assert await all_ids(engine, requests) == first
            assert engine.stats().native.num_encode_units == 2 * encoded
            assert engine.stats().pool.num_done == 2
            await settled(engine)

    run(work())


def test_rows_that_are_gone_are_made_again(open_engine) -> None:
    """The room for rows is that of one picture: of two, one has to go."""

    async def work() -> None:
        requests = choices(3, [picture("red"), picture("blue")])
        async with open_engine() as engine:
            expected = [await ids_of(engine, alone(request)) for request in requests]
            rows = engine.bundle.model.vision.rows_per_tile
            one = rows * engine.bundle.model.decoder.hidden_size * 4
        async with open_engine(image_cache_bytes=one) as engine:
            assert await all_ids(engine, requests) == expected
            await settled(engine)
            assert engine.stats().pool.num_done == 2

    run(work())


def test_the_request_counts_its_pictures_once(open_engine) -> None:
    async def work() -> None:
        images = [picture("red"), picture("blue")]
        limit = sum(map(len, images))
        async with open_engine(hold=True, max_queued_bytes=limit) as engine:
            tasks = [asyncio.create_task(ids_of(engine, r)) for r in choices(4, images)]
            await until(lambda: engine._preprocessor.num_held == 1)
            now = engine.stats()
            assert (now.queued_bytes, now.num_preparing, now.num_in_order) == (limit, 4, 1)
            with pytest.raises(PyvlmError) as caught:
                await collect(engine, ask("red"))
            assert caught.value.code == "queue_full"
            engine._preprocessor.let_go()
            assert all(await asyncio.gather(*tasks))
            await settled(engine)

    run(work())


def test_a_bad_picture_ends_all(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            requests = choices(3, [picture("red"), torn("blue")])
            for error in await all_ids(engine, requests):
                assert isinstance(error, PyvlmError)
                assert (error.code, error.param) == ("image_decode_failed", "images[1]")
            del error
            await settled(engine)
            assert engine.stats().native.num_submitted == 0

    run(work())


def test_the_first_fails_and_the_next_takes_its_place(open_engine) -> None:
    """The encoder strikes once: one choice ends, the others answer as ever."""
    fault = _core_testing.Fault("encode", first=1, count=1)

    async def work() -> None:
        requests = choices(4, [picture("red")])
        async with open_engine() as engine:
            expected = [await ids_of(engine, alone(request)) for request in requests]
        async with open_engine(faults=[fault]) as engine:
            found = await all_ids(engine, requests)
            failed = [index for index, ids in enumerate(found) if isinstance(ids, PyvlmError)]
            assert [found[index].code for index in failed] == ["engine_failed"]
            kept = [index for index in range(4) if index not in failed]
            assert [found[index] for index in kept] == [expected[index] for index in kept]
            found.clear()
            await settled(engine)

    run(work())


@pytest.fixture(scope="module")
def undisturbed(bundle, program) -> tuple[list[GenerationRequest], list[tuple[int, ...]]]:
    """Four choices and what each answers alone. No id ends them."""

    async def work() -> tuple[list[GenerationRequest], list[tuple[int, ...]]]:
        async with engine_over(bundle, program) as engine:
            bias = dict.fromkeys(engine.frontend.stop_token_ids, -100.0)
            requests = choices(4, [picture("red")], logit_bias=bias)
            return requests, [await ids_of(engine, alone(request)) for request in requests]

    return run(work())


STAGES = ["planning", "preprocessing", "waiting", "encode", "prefill", "decode"]


async def reached(engine: AsyncEngine, stage: str) -> None:
    native = engine.stats
    condition = {
        "planning": lambda: native().num_preparing == 4,
        "preprocessing": lambda: engine._preprocessor.num_held == 1,
        "waiting": lambda: native().native.num_waiting == 1,
        "encode": lambda: native().native.num_encode_units >= 1,
        "prefill": lambda: native().native.num_encode_units >= 3,
        "decode": lambda: native().native.num_generated_tokens >= 8,
    }[stage]
    await until(condition)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("who", ["all", "first", "others"])
def test_whoever_leaves_gives_back(open_engine, undisturbed, stage: str, who: str) -> None:
    """Four choices; those that stay answer as if nothing had happened."""
    call = stage if stage in ("encode", "prefill", "decode") else "decode"
    slow = _core_testing.Fault(call, "delay", count=2**62, delay_ms=20)

    async def work() -> None:
        async with open_engine(hold=stage == "preprocessing", faults=[slow]) as engine:
            requests, expected = undisturbed
            company = []
            if stage == "waiting":
                company = [asyncio.create_task(collect(engine, r)) for r in texts(engine)]
                await until(lambda: engine.stats().native.num_running == engine.num_slots)
            tasks = [asyncio.create_task(ids_of(engine, request)) for request in requests]
            await reached(engine, stage)
            leaving = {"all": tasks, "first": tasks[:1], "others": tasks[1:]}[who]
            for task in [*leaving, *company]:
                task.cancel()
            if stage == "preprocessing":
                engine._preprocessor.let_go()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for task, ids, right in zip(tasks, found, expected, strict=True):
                assert task.cancelled() if task in leaving else ids == right
            await asyncio.gather(*company, return_exceptions=True)
            await settled(engine)
            assert "red" in (await _next(engine)).lower()
            await settled(engine)

    run(work())


def texts(engine: AsyncEngine) -> list[GenerationRequest]:
    bias = dict.fromkeys(engine.frontend.stop_token_ids, -100.0)
    return [ask(logit_bias=bias) for _ in range(engine.num_slots)]


async def _next(engine: AsyncEngine) -> str:
    if hasattr(engine._preprocessor, "is_holding"):
        engine._preprocessor.is_holding = False
    return await text_of(engine, ask("red"))


@pytest.mark.parametrize("stage", ["preprocessing", "encode"])
def test_a_closed_engine_ends_all(open_engine, stage: str) -> None:
    slow = _core_testing.Fault("encode", "delay", count=2**62, delay_ms=20)

    async def work() -> None:
        async with open_engine(hold=stage == "preprocessing", faults=[slow]) as engine:
            tasks = [asyncio.create_task(ids_of(engine, r)) for r in choices(4, [picture("red")])]
            await reached(engine, stage)
            await engine.close()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(error, PyvlmError)
                assert error.code == "draining"
            del error
            tasks.clear()
            await until(lambda: is_clean(engine))

    run(work())


@pytest.mark.parametrize("stage", ["preprocessing", "encode"])
def test_each_choice_has_a_deadline_of_its_own(open_engine, stage: str) -> None:
    """The shortest ends its choice alone, be it the one for which the others wait."""
    slow = _core_testing.Fault("encode", "delay", count=2**62, delay_ms=150)

    async def work() -> None:
        async with open_engine(hold=stage == "preprocessing", faults=[slow]) as engine:
            first, *others = choices(3, [picture("red")])
            requests = [replace(first, deadline_s=0.4), *others]
            tasks = [asyncio.create_task(ids_of(engine, request)) for request in requests]
            (error,) = await asyncio.gather(tasks[0], return_exceptions=True)
            assert isinstance(error, PyvlmError)
            assert error.code == "deadline"
            del error
            if stage == "preprocessing":
                engine._preprocessor.let_go()
            assert all(await asyncio.gather(*tasks[1:]))
            tasks.clear()
            await settled(engine)

    run(work())


def test_a_lost_device_ends_all(open_engine) -> None:
    fault = _core_testing.Fault("encode", first=2, code="device_unavailable")

    async def work() -> None:
        async with open_engine(faults=[fault]) as engine:
            found = await all_ids(engine, choices(4, [picture("red")]))
            assert [error.code for error in found] == ["engine_dead"] * 4
            assert engine.stats().num_open == 0

    run(work())


def test_equal_pictures_of_separate_requests_stay_separate(open_engine) -> None:
    """A list is a request's own: nothing is shared by mere equality."""

    async def work() -> None:
        async with open_engine() as engine:
            asked = [alone(request) for request in choices(3, [picture("red")])]
            await all_ids(engine, asked)
            assert engine.stats().pool.num_done == 3
            await settled(engine)
            assert isinstance(engine._native, _core.Engine)

    run(work())

"""Choices that go away, all or some of them, wherever they are then: what they share comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pyvlm.chat import user_message
from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.request import GenerationRequest
from pyvlm.sampling import SamplingParams
from tests.engine.bench import (
    alone,
    ask,
    choices,
    collect,
    ids_of,
    is_clean,
    picture,
    run,
    settled,
    text_of,
    until,
)
from tests.engine.conftest import engine_over

_core_testing = pytest.importorskip("pyvlm._core_testing")
pytestmark = pytest.mark.timeout(180)


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


SEVEN = ("red", "green", "black", "white", "yellow", "purple", "orange")


@pytest.mark.parametrize("end", ["overflow", "cancelled", "nothing asked"])
def test_the_first_ends_before_its_pictures_are_given(open_engine, bundle, end: str) -> None:
    """A request comes between the choices of another, and the slab has not room for both: whoever
    has memory first must be the first to enter."""
    vision = bundle.model.vision
    slab = 16 * vision.num_patches * vision.patch_dim * 4

    async def work() -> None:
        first, last = choices(2, [picture(colour) for colour in SEVEN], max_tokens=3)
        (between,) = choices(1, [picture(colour) for colour in reversed(SEVEN)], max_tokens=3)
        if end == "overflow":
            first = replace(first, prompt=[user_message("a b " * 400, len(SEVEN))])
        elif end == "nothing asked":
            first = replace(first, sampling=SamplingParams(max_tokens=0))
        async with open_engine(slab_bytes=slab) as engine:
            tasks = [asyncio.create_task(ids_of(engine, r)) for r in (first, between, last)]
            await asyncio.sleep(0)
            now = engine.stats()
            assert (now.num_open, now.queued_bytes) == (3, last.image_bytes + between.image_bytes)
            if end == "cancelled":
                tasks[0].cancel()
            ended, *found = await asyncio.gather(*tasks, return_exceptions=True)
            if end == "overflow":
                assert ended.code == "context_overflow"
            else:
                assert tasks[0].cancelled() if end == "cancelled" else ended == ()
            assert found == [await ids_of(engine, alone(r)) for r in (between, last)]
            assert engine.stats().pool.num_done == 4 * len(SEVEN)
            del ended
            tasks.clear()
            await settled(engine)

    run(work())

"""Whoever goes away, wherever the request is then: everything it held comes back."""

from __future__ import annotations

import asyncio
import threading

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
    endless,
    picture,
    process_resources,
    run,
    settled,
    text_of,
    until,
)

_core_testing = pytest.importorskip("pyvlm._core_testing")
pytestmark = pytest.mark.timeout(180)

SLOW_MS = 150  # a delayed call: long enough to be met, and the tests do not depend on it
STAGES = ["planning", "preprocessing", "turn", "waiting", "encode", "prefill", "decode"]


class Scene:
    """An engine in which one request stands at a stage."""

    def __init__(self, open_engine, stage: str) -> None:
        delays = []
        if stage in ("encode", "prefill", "decode"):
            delays = [_core_testing.Fault(stage, "delay", first=2, count=4, delay_ms=SLOW_MS)]
        if stage == "waiting":  # the others outlive any deadline here
            delays = [_core_testing.Fault("decode", "delay", count=2**62, delay_ms=20)]
        self.stage = stage
        self.engine: AsyncEngine = open_engine(
            hold=stage in ("preprocessing", "turn"), faults=delays
        )
        self.planner = threading.Event()
        self.others: list[asyncio.Task[object]] = []

    def request(self, deadline_s: float | None = None) -> GenerationRequest:
        bias = dict.fromkeys(self.engine.frontend.stop_token_ids, -100.0)
        return GenerationRequest(
            [user_message(QUESTION, 1)],
            [picture("red")],
            SamplingParams(logit_bias=bias, max_tokens=40),
            deadline_s=deadline_s,
        )

    async def prepare(self) -> None:
        """What has to be there before the request."""
        if self.stage == "planning":
            self.engine._intake._executor.submit(self.planner.wait, 60)
        elif self.stage == "turn":
            self._start(ask("blue"))
            await until(lambda: self.engine._preprocessor.num_held == 1)
        elif self.stage == "waiting":
            for _ in range(self.engine.num_slots):
                self._start(endless(self.engine))
            await until(lambda: self.engine.stats().native.num_running == self.engine.num_slots)

    async def reached(self) -> None:
        engine, stage = self.engine, self.stage
        if stage == "planning":
            await until(lambda: engine.stats().num_preparing == 1)
        elif stage == "preprocessing":
            await until(lambda: engine._preprocessor.num_held == 1)
        elif stage == "turn":
            await until(lambda: engine._preprocessor.num_held == 2)
            engine._preprocessor.let_go(1)
            await until(lambda: engine.stats().pool.num_done == 1)
        elif stage == "waiting":
            await until(lambda: engine.stats().native.num_waiting == 1 or not self.others)
        else:
            await until(lambda: self.is_at_call(stage))

    def is_at_call(self, stage: str) -> bool:
        native = self.engine.stats().native
        return (
            native.num_running == 1
            and {
                "encode": native.num_encode_units >= 1,
                "prefill": native.num_encode_units >= 3,
                "decode": native.num_generated_tokens >= 1,
            }[stage]
        )

    async def clear(self) -> None:
        """The others end, and nothing is left."""
        self.planner.set()
        for task in self.others:
            task.cancel()
        await asyncio.gather(*self.others, return_exceptions=True)
        if self.stage in ("preprocessing", "turn"):
            self.engine._preprocessor.is_holding = False
            while self.engine._preprocessor.num_held:
                self.engine._preprocessor.let_go()
        await settled(self.engine)

    def _start(self, request: GenerationRequest) -> None:
        self.others.append(asyncio.create_task(collect(self.engine, request)))


# Deadlines inside native calls: see test_a_deadline_while_decoding and the engine's own tests.
ON_DEVICE = ("encode", "prefill", "decode")
ENDS = [
    (stage, end)
    for stage in STAGES
    for end in ("cancel", "deadline", "close")
    if end != "deadline" or stage not in ON_DEVICE
]


@pytest.mark.parametrize(("stage", "end"), ENDS)
def test_everything_comes_back(open_engine, stage: str, end: str) -> None:
    async def work() -> None:
        scene = Scene(open_engine, stage)
        engine = scene.engine
        async with engine:
            await scene.prepare()
            request = scene.request(2.0 if end == "deadline" else None)
            task = asyncio.create_task(collect(engine, request))
            await scene.reached()
            if end == "cancel":
                task.cancel()
            elif end == "close":
                scene.planner.set()
                await engine.close()
            (error,) = await asyncio.gather(task, return_exceptions=True)
            if end == "close":
                assert isinstance(error, PyvlmError)
                assert error.code == "draining"
                assert not engine.is_alive
                await asyncio.gather(*scene.others, return_exceptions=True)
                await settled(engine)
                return
            if end == "deadline":
                assert isinstance(error, PyvlmError)
                assert error.code == "deadline"
            else:
                assert isinstance(error, asyncio.CancelledError)
            await scene.clear()
            assert "red" in (await text_of(engine, ask("red"))).lower()
            await settled(engine)

    threads_before, files_before = process_resources()
    run(work())
    threads, files = process_resources()
    assert threads <= threads_before
    assert files <= files_before


def test_a_deadline_while_decoding(open_engine) -> None:
    async def work() -> None:
        slow = _core_testing.Fault("decode", "delay", first=2, count=1000, delay_ms=20)
        async with open_engine(faults=[slow]) as engine:
            request = endless(engine)
            timed = GenerationRequest(request.prompt, (), request.sampling, deadline_s=1.0)
            deltas = []

            async def listen() -> None:
                async for delta in engine.generate(timed):
                    deltas.append(delta)

            with pytest.raises(PyvlmError) as caught:
                await listen()
            assert caught.value.code == "deadline"
            assert deltas
            await settled(engine)

    run(work())


def test_leaving_the_iteration_early(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            expected = await text_of(engine, ask("red"))
            deltas = engine.generate(endless(engine, "red"))
            await anext(deltas)
            await deltas.aclose()
            await settled(engine)
            assert engine.stats().native.num_cancelled == 1
            assert await text_of(engine, ask("red")) == expected

    run(work())


def test_a_dropped_generator_is_closed_by_the_loop(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            deltas = engine.generate(endless(engine, "red"))
            await anext(deltas)
            del deltas
            await settled(engine)

    run(work())


def test_draining(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            task = asyncio.create_task(collect(engine, endless(engine, max_tokens=200)))
            await until(lambda: engine.stats().native.num_running == 1)
            drained = asyncio.create_task(engine.drain(100))
            await until(lambda: engine.stats().is_draining)
            with pytest.raises(PyvlmError) as caught:
                await anext(engine.generate(ask()))
            assert caught.value.code == "draining"
            assert engine.is_alive
            assert await drained
            assert (await task)[-1].finish_reason == "length"
            await settled(engine)

    run(work())


def test_draining_gives_up(open_engine) -> None:
    async def work() -> None:
        slow = _core_testing.Fault("decode", "delay", count=1000, delay_ms=20)
        async with open_engine(faults=[slow]) as engine:
            task = asyncio.create_task(collect(engine, endless(engine)))
            await until(lambda: engine.stats().native.num_running == 1)
            assert not await engine.drain(0.05)
            await engine.close()
            with pytest.raises(PyvlmError) as caught:
                await task
            assert caught.value.code == "draining"

    run(work())


def test_forty_cancels_at_random_moments(open_engine) -> None:
    """Seeded; half of the requests have pictures."""
    import random

    async def work() -> None:
        chance = random.Random(5)
        async with open_engine() as engine:
            expected = await text_of(engine, ask("red"))
            for _ in range(4):
                tasks = [
                    asyncio.create_task(
                        collect(engine, endless(engine, *["red"][: chance.randrange(2)]))
                    )
                    for _ in range(10)
                ]
                for task in chance.sample(tasks, 10):
                    await asyncio.sleep(chance.random() * 0.02)
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await settled(engine)
            assert await text_of(engine, ask("red")) == expected

    run(work())


def test_an_engine_that_is_never_closed_ends_with_its_object(open_engine) -> None:
    async def work() -> None:
        engine = open_engine()
        await engine.start()
        assert await text_of(engine, ask("red"))

    before = process_resources()
    run(work())
    threads, _ = process_resources()
    assert threads <= before[0]


def test_the_native_engine_alone_is_ended_too(open_engine) -> None:
    """Loaded, never started."""
    engine = open_engine()
    native = engine._native
    assert native.stats().is_alive
    del engine
    process_resources()
    assert not native.stats().is_alive
    assert isinstance(native, _core.Engine)

"""A fault stays with its request, under the real engine and the real path."""

from __future__ import annotations

import asyncio

import pytest

from pyvlm.errors import PyvlmError
from tests.engine.bench import ask, collect, endless, run, settled, text_of, until

_core_testing = pytest.importorskip("pyvlm._core_testing")
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("call", ["encode", "prefill"])
def test_one_prompt_fails(open_engine, call: str) -> None:
    """The first call strikes; who comes next answers as always."""
    fault = _core_testing.Fault(call, first=1, count=1)

    async def work() -> None:
        async with open_engine() as engine:
            expected = await text_of(engine, ask("red"))
        async with open_engine(faults=[fault]) as engine:
            victim = asyncio.create_task(collect(engine, ask("blue")))
            await until(lambda: engine.stats().native.num_submitted == 1)
            other = asyncio.create_task(text_of(engine, ask("red")))
            with pytest.raises(PyvlmError) as caught:
                await victim
            assert caught.value.code == "engine_failed"
            assert await other == expected
            await settled(engine)
            assert await text_of(engine, ask("red")) == expected
            assert engine.is_alive

    run(work())


def test_one_row_of_a_batch_fails(open_engine) -> None:
    """Slot 0 decodes on beside the rows of slot 1, which fail for ever."""
    faults = [
        _core_testing.Fault("decode", first=1, count=2**62, slot=1),
        _core_testing.Fault("decode", "delay", count=2**62, delay_ms=20),  # so slot 0 stays taken
    ]

    async def work() -> None:
        async with open_engine() as engine:
            expected = await text_of(engine, endless(engine, "red", max_tokens=120))
        async with open_engine(faults=faults) as engine:
            deltas = engine.generate(endless(engine, "red", max_tokens=120))
            first = await anext(deltas)  # it has slot 0
            for _ in range(2):
                with pytest.raises(PyvlmError) as caught:
                    await collect(engine, endless(engine, "blue"))
                assert caught.value.code == "engine_failed"
            rest = [delta.text async for delta in deltas]
            assert first.text + "".join(rest) == expected
            await settled(engine)

    run(work())


def test_a_lost_device_ends_all(open_engine) -> None:
    fault = _core_testing.Fault("decode", first=6, code="device_unavailable")

    async def work() -> None:
        async with open_engine(faults=[fault]) as engine:
            tasks = [asyncio.create_task(collect(engine, endless(engine))) for _ in range(3)]
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert [error.code for error in errors] == ["engine_dead"] * 3
            assert not engine.is_alive
            with pytest.raises(PyvlmError) as caught:
                await collect(engine, ask())
            assert caught.value.code == "engine_dead"
            assert engine.stats().num_open == 0

    run(work())


def test_workers_make_what_the_thread_makes(open_engine) -> None:
    async def answers(workers: int) -> list[str]:
        async with open_engine(num_preprocess_workers=workers) as engine:
            found = await asyncio.gather(
                *(text_of(engine, ask(*c)) for c in (["red"], ["blue", "green"], ["blue"]))
            )
            await settled(engine)
            return list(found)

    assert run(answers(0)) == run(answers(1))

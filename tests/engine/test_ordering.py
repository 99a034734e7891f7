"""Image requests enter in the order of their arrival; nobody waits for one that is gone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvlm.chat import user_message
from pyvlm.errors import PyvlmError
from pyvlm.ordering import TicketGate
from pyvlm.request import GenerationRequest
from tests.engine.bench import ask, collect, picture, run, settled, text_of, until

pytestmark = pytest.mark.timeout(180)


@settings(deadline=None, max_examples=60)
@given(
    lanes=st.lists(st.sampled_from([None, False, True]), min_size=1, max_size=7),
    steps=st.lists(
        st.tuples(st.sampled_from(["told", "ready", "gone"]), st.integers(0, 6)), max_size=24
    ),
)
def test_turns_come_in_order(lanes: list[bool | None], steps: list[tuple[str, int]]) -> None:
    """Whatever gets ready or goes away, and in whichever order. A request enters when no earlier
    one of its lane is there, nor one that has not told its lane."""

    async def work() -> None:
        gate = TicketGate()
        tickets = [gate.take() for _ in lanes]
        gone: set[int] = set()
        told = {place for place, lane in enumerate(lanes) if lane is None}  # never before its turn
        known: set[int] = set()
        waiting: dict[int, asyncio.Task[None]] = {}
        turns: list[int] = []

        async def wait(place: int) -> None:
            await gate.turn(tickets[place])
            known.add(place)
            for other in range(place):
                assert (
                    other in turns
                    or other in gone
                    or (other in known and bool(lanes[other]) != bool(lanes[place]))
                )
            turns.append(place)
            gate.leave(tickets[place])

        for action, place in [*steps, *(("ready", i) for i in range(len(lanes)))]:
            if place >= len(lanes) or place in gone or place in turns:
                continue
            if action != "gone" and place not in told:
                told.add(place)
                known.add(place)
                gate.tell_lane(tickets[place], is_large=bool(lanes[place]))
            if action == "ready" and place not in waiting:
                known.add(place)
                waiting[place] = asyncio.create_task(wait(place))
            elif action == "gone":
                gone.add(place)
                if place in waiting:
                    waiting[place].cancel()
                gate.leave(tickets[place])
                gate.leave(tickets[place])
            await asyncio.sleep(0)
        await asyncio.gather(*(task for place, task in waiting.items() if place not in gone))
        assert len(gate) == 0
        assert sorted(turns) == [i for i in range(len(lanes)) if i not in gone]

    run(work())


def test_closing_wakes_all_waiters() -> None:
    async def work() -> None:
        gate = TicketGate()
        tickets = [gate.take() for _ in range(3)]
        waits = [asyncio.create_task(gate.turn(ticket)) for ticket in tickets[1:]]
        await asyncio.sleep(0)
        gate.close(PyvlmError("over", code="draining"))
        for result in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(result, PyvlmError)
        with pytest.raises(PyvlmError, match="over"):
            await gate.turn(tickets[0])

    run(work())


def test_the_later_picture_waits_and_texts_overtake(open_engine) -> None:
    async def work() -> None:
        async with open_engine(hold=True) as engine:
            stage = engine._preprocessor
            first = asyncio.create_task(text_of(engine, ask("red")))
            await until(lambda: stage.num_held == 1)
            second = asyncio.create_task(text_of(engine, ask("blue")))
            await until(lambda: stage.num_held == 2)
            stage.let_go(1)
            await until(lambda: engine.stats().pool.num_done == 1)
            assert await text_of(engine, ask(max_tokens=3))
            assert engine.stats().native.num_submitted == 1  # the text
            stage.let_go(0)
            assert "red" in (await first).lower()
            assert "blue" in (await second).lower()
            await settled(engine)

    run(work())


def test_a_small_request_need_not_wait_for_a_large_one(open_engine, bundle) -> None:
    """Nor for the pictures of it that are still to be prepared; the next large one does."""
    vision = bundle.model.vision
    slab = 16 * vision.num_patches * vision.patch_dim * 4

    async def work() -> None:
        async with open_engine(hold=True, slab_bytes=slab) as engine:
            stage = engine._preprocessor
            tasks = []
            for colours in (["red", "blue", "green", "black", "white"], ["blue"]) * 2:
                tasks.append(asyncio.create_task(text_of(engine, ask(*colours, max_tokens=4))))
                await until(lambda: stage.num_held == len(tasks))
            for place in (3, 2, 1):  # all but the first
                stage.let_go(place)
            assert await tasks[1] == await tasks[3] != ""
            await until(lambda: engine.stats().pool.num_done == 7)
            assert engine.stats().native.num_submitted == 2
            stage.let_go()
            assert await tasks[0] == await tasks[2] != ""
            await settled(engine)

    run(work())


@pytest.mark.parametrize("end", ["cancel", "deadline", "failure", "refused"])
def test_the_earlier_one_goes_away(open_engine, end: str) -> None:
    async def work() -> None:
        async with open_engine(hold=True) as engine:
            stage = engine._preprocessor
            image = picture("red")[:120] if end == "failure" else picture("red")
            request = GenerationRequest(
                [user_message("x", 2 if end == "refused" else 1)],
                [image],
                deadline_s=0.3 if end == "deadline" else None,
            )
            first = asyncio.create_task(collect(engine, request))
            if end != "refused":
                await until(lambda: stage.num_held == 1)
            second = asyncio.create_task(text_of(engine, ask("blue")))
            await until(lambda: stage.num_held == (1 if end == "refused" else 2))
            stage.let_go(-1)
            if end == "cancel":
                first.cancel()
            elif end == "failure":
                stage.let_go(0)
            assert "blue" in (await second).lower()
            (error,) = await asyncio.gather(first, return_exceptions=True)
            codes = {"deadline": "deadline", "failure": "image_decode_failed",
                     "refused": "placeholder_mismatch"}  # fmt: skip
            if end == "cancel":
                assert isinstance(error, asyncio.CancelledError)
            else:
                assert error.code == codes[end]
            if stage.num_held:
                stage.let_go(0)  # of the one that is gone: its lease is given back at once
            await settled(engine)

    run(work())


def test_one_that_asks_for_nothing_keeps_nobody_waiting(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as engine:
            deltas = engine.generate(ask("red", max_tokens=0))
            await anext(deltas)
            assert engine.stats().queued_bytes == 0
            assert "blue" in (await text_of(engine, ask("blue"))).lower()
            await deltas.aclose()
            await settled(engine)

    run(work())


def test_an_order_of_many(open_engine) -> None:
    """Prepared in the opposite order, submitted in the order of arrival."""

    async def work() -> None:
        async with open_engine(hold=True) as engine:
            stage, order = engine._preprocessor, []
            tasks = []
            for place, colour in enumerate(["red", "blue", "green", "red", "blue"]):
                request = ask(colour, max_tokens=1)
                tasks.append(asyncio.create_task(_note(engine, request, place, order)))
                await until(lambda place=place: stage.num_held == place + 1)
            for _ in range(5):
                stage.let_go(-1)
            await asyncio.gather(*tasks)
            assert order == sorted(order)
            await settled(engine)

    run(work())


def test_the_table_of_leases_names_its_owners(open_engine) -> None:
    owners: list[str] = []

    async def work() -> None:
        async with open_engine() as engine:
            submit_all = engine._preprocessor.submit_all

            def noting(*given, **options):
                jobs = submit_all(*given, **options)
                owners.extend(info.owner for job in jobs for info in _leases_of(job, engine))
                return jobs

            engine._preprocessor.submit_all = noting
            for _ in range(2):
                await collect(engine, ask("red", max_tokens=1))

    run(work())
    assert owners == ["image request 1", "image request 2"]


def _leases_of(job, engine):
    job.exception(60)
    return engine._preprocessor.leases()


async def _note(engine, request: GenerationRequest, place: int, order: list[int]) -> None:
    """First tokens come in order of submission."""
    deltas = engine.generate(request)
    await anext(deltas)
    order.append(place)
    await deltas.aclose()

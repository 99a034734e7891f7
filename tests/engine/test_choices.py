"""The choices of a request share the work on its pictures, and give back what they share."""

from __future__ import annotations

import asyncio

import pytest

from pyvlm.errors import PyvlmError
from tests.engine.bench import (
    all_ids,
    alone,
    ask,
    choices,
    collect,
    ids_of,
    picture,
    run,
    settled,
    torn,
    until,
)

_core_testing = pytest.importorskip("pyvlm._core_testing")
pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20
COLOURS = ("red", "blue", "red")  # the third is the first, from other bytes


def pictures() -> list[bytes]:
    return [bytes(bytearray(picture(colour))) for colour in COLOURS]


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
            once = engine.stats().native.num_encode_units // len(requests)
            rows = engine.bundle.model.vision.rows_per_tile
            one = rows * engine.bundle.model.decoder.hidden_size * 4
        async with open_engine(image_cache_bytes=one) as engine:
            assert await all_ids(engine, requests) == expected
            await settled(engine)
            now = engine.stats()
            assert now.pool.num_done == 2
            assert now.native.num_image_cache_evictions > 0
            assert once < now.native.num_encode_units < len(requests) * once

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
            await ids_of(engine, asked[0])
            once = engine.stats().native.num_encode_units
            await all_ids(engine, asked)
            await settled(engine)
            assert engine.stats().pool.num_done == 4
            assert engine.stats().native.num_encode_units == 4 * once > 0

    run(work())

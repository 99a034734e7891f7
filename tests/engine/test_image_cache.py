"""A picture that the engine has seen is neither decoded nor encoded again."""

from __future__ import annotations

import asyncio

import pytest

from pyvlm.chat import user_message
from pyvlm.errors import PyvlmError
from pyvlm.request import GenerationRequest
from tests.engine.bench import QUESTION, ask, collect, ids_of, run, settled, torn

pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20


def test_the_second_time_takes_no_work(open_engine) -> None:
    async def work() -> None:
        async with open_engine() as plain:
            expected = await ids_of(plain, ask("red"))
        async with open_engine(image_cache_bytes=MIB) as engine:
            first = await ids_of(engine, ask("red"))
            await settled(engine)
            encoded = engine.stats().native.num_encode_units
            again = await collect(engine, ask("red"))
            other = await ids_of(engine, ask("red", prompt="What is in the picture?"))
            now = engine.stats()
            assert first == expected == tuple(i for d in again for i in d.token_ids)
            assert other
            assert now.native.num_encode_units == encoded
            assert now.native.num_image_cache_hits == 2
            assert now.pool.num_done == 1
            times = again[-1].timings
            assert times.decode_image == times.transform == 0
            assert again[-1].usage.image_positions == 19
            await settled(engine)

    run(work())


def test_another_picture_is_another(open_engine) -> None:
    async def work() -> None:
        async with open_engine(image_cache_bytes=MIB) as engine:
            red, blue = await ids_of(engine, ask("red")), await ids_of(engine, ask("blue"))
            assert red != blue
            mixed = [await ids_of(engine, ask(*c)) for c in (["red", "blue"], ["blue", "red"])]
            assert mixed[0] != mixed[1] or engine.stats().native.num_image_cache_hits == 4
            assert engine.stats().pool.num_done == 2
            assert (await ids_of(engine, ask("red")), await ids_of(engine, ask("blue"))) == (
                red, blue,
            )  # fmt: skip

    run(work())


def test_a_small_cache_forgets(open_engine, bundle) -> None:
    vision = bundle.model.vision
    one = vision.rows_per_tile * bundle.model.decoder.hidden_size * 4

    async def work() -> None:
        async with open_engine(image_cache_bytes=one) as engine:
            expected = [await ids_of(engine, ask(c)) for c in ("red", "blue")]
            for _ in range(2):
                found = await asyncio.gather(*(ids_of(engine, ask(c)) for c in ("red", "blue")))
                assert found == expected
            await settled(engine)
            assert engine.stats().native.num_image_cache_evictions > 0
            assert engine.stats().native.image_cache_bytes <= one

    run(work())


def test_what_failed_is_not_kept(open_engine) -> None:
    async def work() -> None:
        async with open_engine(image_cache_bytes=MIB) as engine:
            bad = GenerationRequest([user_message(QUESTION, 1)], [torn("red")])
            for _ in range(2):
                with pytest.raises(PyvlmError) as caught:
                    await collect(engine, bad)
                assert caught.value.code == "image_decode_failed"
            assert engine.stats().native.num_cached_images == 0
            await settled(engine)

    run(work())

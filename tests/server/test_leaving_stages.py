"""Leaving, and running out of time, while a request is in one known stage. Media case 35."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

pytest.importorskip("pyvlm._core_testing")
from pyvlm.media import pool_inline
from tests.server.conftest import HANG_S, Running, eventually
from tests.server.faulty import PATH, PICTURE, Faulty, are_back, resources
from tests.server.pictures import image_part, text_part
from tests.server.raw import connection, post

pytestmark = pytest.mark.timeout(180)
VICTIM = [image_part("blue"), text_part()]
STAGES = ("decode_image", "encode", "prefill", "decode")
LONG_MS = 700
SHORT_S = 0.35  # the first deadline that is tried
MOST_TRIES = 6  # each with twice the time


@pytest.fixture(scope="module")
def faulty(cache: None) -> Iterator[Faulty]:
    del cache
    made = Faulty()
    yield made
    made.host.close()


@contextmanager
def held_in(
    stage: str, faulty: Faulty, monkeypatch: pytest.MonkeyPatch, delay_ms: int = LONG_MS
) -> Iterator[Callable[[], bool]]:
    """The next request stays in the stage for a while; gives whether it came there."""
    if stage != "decode_image":
        before = faulty.runner.num_strikes
        faulty.arm(stage, "delay", delay_ms=delay_ms)
        yield lambda: faulty.runner.num_strikes > before
        return
    entered, opened, decode = threading.Event(), threading.Event(), pool_inline.decode_image

    def slow(*args: object) -> object:
        entered.set()
        assert opened.wait(HANG_S)
        return decode(*args)

    with monkeypatch.context() as patch:
        patch.setattr(pool_inline, "decode_image", slow)
        yield entered.is_set
        opened.set()


def all_is_back(server: Running, held: tuple[int, int]) -> bool:
    assert server.becomes_idle()
    return are_back(held)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("is_stream", [False, True])
def test_leaving_in_a_stage(
    faulty: Faulty, stage: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = faulty.server
    before = server.say(PICTURE)
    assert server.becomes_idle()
    held = resources()
    with held_in(stage, faulty, monkeypatch) as is_there:
        with connection(server.url) as raw:
            raw.sendall(post(PATH, faulty.endless(VICTIM, stream=is_stream)))
            assert eventually(is_there)
        assert eventually(lambda: server.counts()[0] == 0)  # whatever the stage still does
    assert all_is_back(server, held)
    assert server.say(PICTURE) == before


@pytest.mark.parametrize("stage", STAGES)
def test_the_deadline_in_a_stage(
    faulty: Faulty, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that is being decoded is not waited for."""
    before = faulty.server.say(PICTURE)
    for number in range(MOST_TRIES):
        if is_late_in(stage, faulty, SHORT_S * 2**number, monkeypatch):
            break
        # Too slow to come there in time: what was armed for it strikes this one.
        assert faulty.server.say(PICTURE) == before
    else:
        pytest.fail(f"no deadline fell into {stage}")
    assert faulty.server.say(PICTURE) == before


def is_late_in(stage: str, faulty: Faulty, limit_s: float, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a request with this deadline had come to the stage, which lasts longer, by then."""
    hasty = faulty.host.serve(request_timeout_s=limit_s)
    with (
        held_in(stage, faulty, monkeypatch, round(2e3 * limit_s)) as is_there,
        httpx.Client(base_url=hasty.url) as client,
    ):
        response = client.post(PATH, json=faulty.endless(VICTIM), timeout=HANG_S)
        was_there = is_there()
        if was_there:
            assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
    assert hasty.becomes_idle()
    assert faulty.server.becomes_idle()
    return was_there

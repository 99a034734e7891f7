"""Leaving, and running out of time, while a request is in one known stage. Media case 35."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

pytest.importorskip("pyvlm._core_testing")
from pyvlm.media import pool_inline
from tests.server.conftest import HANG_S, Host, Running, eventually
from tests.server.faulty import PATH, PICTURE, Faulty, are_back, resources
from tests.server.pictures import image_part, text_part
from tests.server.raw import connection, post

pytestmark = pytest.mark.timeout(180)
VICTIM = [image_part("blue"), text_part()]
STAGES = ("decode_image", "encode", "prefill", "decode")
LONG_MS = 700
SHORT_S = 0.35  # a deadline in the midst of it


@pytest.fixture(scope="module")
def faulty(cache: None) -> Iterator[Faulty]:
    del cache
    made = Faulty()
    yield made
    made.host.close()


@contextmanager
def held_in(
    stage: str, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], bool]]:
    """The next request stays in the stage for a while; gives whether it is there."""
    if stage != "decode_image":
        before = faulty.runner.num_strikes
        faulty.arm(stage, "delay", delay_ms=LONG_MS)
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
    host: Host = faulty.host
    before = faulty.server.say(PICTURE)
    hasty = host.serve(request_timeout_s=SHORT_S)
    with held_in(stage, faulty, monkeypatch), httpx.Client(base_url=hasty.url) as client:
        response = client.post(PATH, json=faulty.endless(VICTIM), timeout=HANG_S)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
    assert hasty.becomes_idle()
    assert faulty.server.becomes_idle()
    assert faulty.server.say(PICTURE) == before

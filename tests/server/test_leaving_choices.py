"""A client that leaves while several choices of its pictures are under way: all comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("pyvlm._core_testing")
from pyvlm.media import pool_inline
from tests.server.conftest import HANG_S, eventually
from tests.server.faulty import PATH, PICTURE, Faulty, resources
from tests.server.pictures import image_part
from tests.server.raw import connection, post

pytestmark = pytest.mark.timeout(180)
CHOICES = 4
PICTURES = [image_part("blue"), *PICTURE]


@pytest.fixture(scope="module")
def faulty(cache: None) -> Iterator[Faulty]:
    del cache
    faulty = Faulty()
    yield faulty
    faulty.host.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Pictures are decoded when it is set."""
    go, decode = threading.Event(), pool_inline.decode_image

    def held_decode(*given: object) -> object:
        assert go.wait(HANG_S)
        return decode(*given)

    monkeypatch.setattr(pool_inline, "decode_image", held_decode)
    yield go
    go.set()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("stage", ["preprocessing", "queued", "encoding", "decoding"])
def test_leaving_with_choices(
    faulty: Faulty, held: threading.Event, stage: str, is_stream: bool
) -> None:
    server, engine = faulty.server, faulty.host.engine
    body = faulty.endless(PICTURES, n=CHOICES, stream=is_stream)
    short = {**body, "n": 2, "stream": False, "max_tokens": 8}
    held.set()
    expected = server.client.post(PATH, json=short).json()["choices"]
    assert server.becomes_idle()
    threads, files = _threads(), resources()[1]
    before = engine.stats()

    if stage == "preprocessing":
        held.clear()
    elif stage == "encoding":
        faulty.arm("encode", "delay", count=4, delay_ms=150)
    else:
        faulty.arm("decode", "delay", count=100, delay_ms=10)
    with connection(server.url) as others, connection(server.url) as raw:
        if stage == "queued":
            others.sendall(post(PATH, faulty.endless("Tell me.", n=engine.num_slots)))
            assert eventually(lambda: server.counts()[7] == engine.num_slots)
        raw.sendall(post(PATH, body))
        assert eventually(lambda: _is_at(stage, faulty, before))
    held.set()

    assert server.becomes_idle()
    assert eventually(lambda: _threads() == threads and resources()[1] <= files)
    assert server.client.post(PATH, json=short).json()["choices"] == expected


def _threads() -> list[str]:
    """Without those of the fetcher, which come one by one as they are needed."""
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if not name.startswith("pyvlm-fetch"))


def _is_at(stage: str, faulty: Faulty, before: object) -> bool:
    now = faulty.host.engine.stats()
    encoded = now.native.num_encode_units - before.native.num_encode_units
    written = now.native.num_generated_tokens - before.native.num_generated_tokens
    return {
        "preprocessing": now.num_preparing == CHOICES and now.pool.num_running == 1,
        "queued": now.native.num_waiting >= 1 and now.num_in_order <= 1,
        "encoding": encoded >= 1,
        "decoding": now.native.num_running == CHOICES and written >= CHOICES,
    }[stage]

"""Faults in each stage stay with their request, seen from its client. Media case 42.

The real engine and the real model; whatever decodes beside the fault must say what it says alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("pyvlm._core_testing")
from pyvlm.media.transform import ImageTransform
from tests.server.conftest import Running, eventually
from tests.server.events import parse_events
from tests.server.faulty import PATH, PICTURE, Faulty, are_back, count_of, resources
from tests.server.pictures import image_part, text_part

pytestmark = pytest.mark.timeout(180)
VICTIM_SLOT = 2  # the streams beside have 0 and 1
VICTIM = [image_part("blue"), text_part()]
FAILED = 'pyvlm_requests_total{code="engine_failed",outcome="error"}'
INTERNALS = ("Traceback", "0x", ".py", "a secret", "pyvlm._core")

Strike = Callable[[Faulty, pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def faulty(cache: None) -> Iterator[Faulty]:
    del cache
    made = Faulty()
    yield made
    made.host.close()


def _runner(call: str, **how: Any) -> Strike:
    return lambda faulty, patch: faulty.arm(call, **how)  # noqa: ARG005


def _python(where: str) -> Strike:
    """The first call of that function fails in a way that nobody foresaw; the next one is real."""

    def strike(faulty: Faulty, patch: pytest.MonkeyPatch) -> None:
        del faulty

        def fail(*args: object, **named: object) -> None:
            del args, named
            patch.undo()
            raise RuntimeError("a secret")

        patch.setattr(where, fail)

    return strike


def _transform(faulty: Faulty, patch: pytest.MonkeyPatch) -> None:
    kind = type(faulty.host.engine.frontend.transform)
    assert issubclass(kind, ImageTransform)
    _python(f"{kind.__module__}.{kind.__qualname__}.apply")(faulty, patch)


STRIKES = {
    "plan": _python("pyvlm.intake.plan_request"),
    "decode_image": _python("pyvlm.media.pool_inline.decode_image"),
    "transform": _transform,
    "admission": _python("pyvlm.intake.prefill_of"),
    "encode": _runner("encode"),
    "prefill": _runner("prefill"),
    # The first time in a batch, the second time when its rows are tried one by one.
    "decode": _runner("decode", first=2, count=2, slot=VICTIM_SLOT),
    "logits": _runner("decode", action="corrupt", first=2, count=1, slot=VICTIM_SLOT),
}


@pytest.mark.parametrize("stage", STRIKES)
def test_a_fault_ends_one_request(
    faulty: Faulty, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = faulty.server
    before = server.say(PICTURE), server.say("Hello"), *faulty.quiet()
    settled(server)
    held, failed = resources(), count_of(server, FAILED)
    with faulty.beside() as streams:
        for is_stream in (False, True):
            STRIKES[stage](faulty, monkeypatch)
            body = faulty.endless(VICTIM, stream=is_stream, max_tokens=8)
            error, has_begun = failure_of(server.url, body)
            assert (error["code"], error["type"]) == ("engine_failed", "server_error")
            assert not any(word in error["message"] for word in INTERNALS), error
            assert has_begun == (is_stream and stage in ("decode", "logits"))
        assert server.client.get("/health").status_code == 200
        rest = [stream.finish() for stream in streams]
    assert [stream.text() for stream in rest] == list(before[2:])
    assert all(stream.is_done and stream.reasons() == ["length"] for stream in rest)
    settled(server)
    assert are_back(held), (resources(), held)
    assert count_of(server, FAILED) == failed + 2
    assert (server.say(PICTURE), server.say("Hello")) == before[:2]


def settled(server: Running) -> None:
    assert server.becomes_idle()
    engine = server.service.loaded_engine
    assert engine is not None
    assert eventually(lambda: engine.stats().native.num_cached == 0)


def failure_of(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The error, and whether an answer had begun; on a connection of its own."""
    with httpx.Client(base_url=url, timeout=120) as client:
        response = client.post(PATH, json=body)
    if response.status_code == 200:
        streamed = parse_events(response.text)
        assert not streamed.is_done
        assert streamed.error is not None, streamed
        return streamed.error, True
    assert response.status_code == 500, response.text
    return response.json()["error"], False


def test_memory_that_is_not_there(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    server = faulty.server
    before = server.say(PICTURE)

    def fail(*args: object) -> None:
        del args
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr("pyvlm.media.pool_inline.decode_image", fail)
    response = server.chat(PICTURE)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "out_of_memory")
    settled(server)
    assert server.say(PICTURE) == before


def test_a_choice_that_fails_ends_its_request_alone(faulty: Faulty) -> None:
    """Of three choices the second fails: one error, and the others of the request are cancelled."""
    server = faulty.server
    quiet = faulty.quiet()
    with faulty.beside() as streams:
        faulty.arm("decode", first=2, count=2, slot=VICTIM_SLOT + 1)
        error, has_begun = failure_of(server.url, faulty.endless(VICTIM, n=3, stream=True))
        assert (error["code"], has_begun) == ("engine_failed", True)
        assert [stream.finish().text() for stream in streams] == quiet
    settled(server)


def test_a_preprocessing_stage_that_stops_is_told(
    cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of its engine. Texts could still be served, but who balances load must know."""
    del cache
    made = Faulty()
    server = made.server
    assert server.client.get("/health").status_code == 200

    def fail(*args: object) -> None:
        del args
        raise KeyError("a slip of ours")

    monkeypatch.setattr("pyvlm.media.pool_inline.InlinePreprocessor._expire", fail)
    for _ in range(2):
        response = server.chat(PICTURE)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    for response in (server.client.get("/health"), server.chat()):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert count_of(server, "pyvlm_up") == 0
    assert server.becomes_idle()
    made.host.close()


def test_a_lost_device_is_told_to_all(faulty: Faulty) -> None:
    """The last test of this engine: streams end with an error event, and readiness says why."""
    server = faulty.server
    with faulty.beside() as streams:
        faulty.arm("decode", code="device_unavailable")
        ends = [stream.finish() for stream in streams]
    for end in ends:
        assert end.error is not None
        assert end.error["code"] == "engine_dead"
        assert not end.is_done
    assert eventually(lambda: server.client.get("/health").status_code == 503)
    for response in (server.client.get("/health"), server.chat(), server.chat(PICTURE)):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert server.client.get("/health/live").status_code == 200
    assert count_of(server, "pyvlm_up") == 0
    assert server.becomes_idle()

"""Clients that leave, deadlines, full queues, draining. Media cases 35, 37, 48."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import httpx
import pytest

from pyvlm.engine import EngineOptions
from tests.server.conftest import Host, Running, eventually
from tests.server.events import parse_events
from tests.server.pictures import image_part, text_part
from tests.server.raw import connection, post, read_response

PATH = "/v1/chat/completions"


def endless(server: Running, content: Any = "Tell me.", **fields: Any) -> dict[str, Any]:
    """A request that generates up to the capacity."""
    engine = server.service.loaded_engine
    assert engine is not None
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "logit_bias": {str(i): -100 for i in engine.frontend.stop_token_ids},
        **fields,
    }


def running(server: Running) -> int:
    return server.counts()[7]


PICTURE = [image_part(), text_part()]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("content", ["Tell me.", PICTURE])
def test_case_35_leaving_while_decoding(server: Running, is_stream: bool, content: Any) -> None:
    before = server.say(PICTURE)
    with connection(server.url) as raw:
        raw.sendall(post(PATH, endless(server, content, stream=is_stream)))
        assert eventually(lambda: running(server) == 1)
    assert server.becomes_idle(5)
    assert server.say(PICTURE) == before


def test_leaving_is_an_outcome_of_its_own(server: Running) -> None:
    def cancelled() -> float:
        text = server.client.get("/metrics").text
        found = re.search(r'^pyvlm_requests_total{code="",outcome="cancelled"} (\S+)$', text, re.M)
        return float(found[1]) if found else 0.0

    before = cancelled()
    with connection(server.url) as raw:
        raw.sendall(post(PATH, endless(server, stream=True)))
        assert eventually(lambda: running(server) == 1)
    assert eventually(lambda: cancelled() == before + 1)


def test_case_35_leaving_while_queued(server: Running) -> None:
    slots = 8
    with connection(server.url) as first:
        first.sendall(post(PATH, endless(server, n=slots)))
        assert eventually(lambda: running(server) == slots)
        with connection(server.url) as second:
            second.sendall(post(PATH, endless(server)))
            assert eventually(lambda: server.counts()[6] == 1)
        assert eventually(lambda: server.counts()[6] == 0)
        assert running(server) == slots
    assert server.becomes_idle(5)


def test_case_35_a_hundred_at_any_moment(server: Running) -> None:
    random_ = random.Random(1)
    before = server.say(PICTURE)
    for number in range(100):
        content = PICTURE if number % 2 else "Tell me."
        with connection(server.url) as raw:
            whole = post(PATH, endless(server, content, stream=number % 3 == 0))
            cut = random_.choice([len(whole), len(whole), len(whole) // 2])
            raw.sendall(whole[:cut])
            time.sleep(random_.random() * 0.06)
    assert server.becomes_idle()
    assert server.say(PICTURE) == before


def test_a_client_that_does_not_read_is_let_go(host: Host) -> None:
    server = host.serve(write_timeout_s=0.5, send_buffer=4096)
    with connection(server.url, 4096) as raw:
        request = endless(server, stream=True, n=8, logprobs=True, top_logprobs=20)
        raw.sendall(post(PATH, request))
        assert eventually(lambda: running(server) == 8)
        assert server.becomes_idle()


def test_case_37_deadline(host: Host) -> None:
    server = host.serve(request_timeout_s=0.4)
    response = server.client.post(PATH, json=endless(server, n=8))
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
    assert server.becomes_idle()
    streamed = server.client.post(PATH, json=endless(server, n=8, stream=True))
    if streamed.status_code == 200:
        events = parse_events(streamed.text)
        assert events.error is not None
        assert events.error["code"] == "deadline"
        assert not events.is_done
    else:
        assert streamed.json()["error"]["code"] == "deadline"
    assert server.becomes_idle()


@pytest.fixture(scope="module")
def small(cache: None) -> Any:
    """An engine of its own with room for one waiting request."""
    del cache
    host = Host(EngineOptions(max_queued=1))
    yield host.serve()
    host.close()


def test_case_37_full_queue(small: Running) -> None:
    with connection(small.url) as raw:
        raw.sendall(post(PATH, endless(small, n=9)))
        assert eventually(lambda: small.counts()[2] == 9)
        start = time.monotonic()
        response = small.client.post(PATH, json=endless(small))
        assert time.monotonic() - start < 30
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
    assert small.becomes_idle()
    assert small.chat(max_tokens=1).status_code == 200


def test_too_many_choices_for_the_queue_leave_nothing(small: Running) -> None:
    """However idle the server is: no 429, which would ask for another try."""
    response = small.client.post(PATH, json=endless(small, n=16))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_parameter", "n")
    assert "retry-after" not in response.headers
    assert small.becomes_idle()


def test_case_48_health_while_loading_and_draining(host: Host) -> None:
    server = host.serve()
    service = server.service
    for phase in ("loading", "draining"):
        engine, service._engine = service._engine, None if phase == "loading" else service._engine
        service.phase = phase
        for path in ("/health", "/v1/models"):
            response = server.client.get(path)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == phase
            assert "retry-after" in response.headers
        assert server.chat().json()["error"]["code"] == phase
        assert server.client.get("/health/live").status_code == 200
        assert server.client.get("/metrics").status_code == 200
        service._engine = engine
    service.phase = "ready"
    assert server.client.get("/health").status_code == 200


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    one, two = endless(server, max_tokens=3), endless(server, max_tokens=0)
    with connection(server.url) as raw:
        raw.sendall(post(PATH, one) + post(PATH, two))
        assert read_response(raw)[0] == 200
        raw.settimeout(30)
    assert server.becomes_idle()


def test_half_closed_connections_count_as_gone(server: Running) -> None:
    with connection(server.url) as raw:
        raw.sendall(post(PATH, endless(server)))
        raw.shutdown(1)
        assert server.becomes_idle()
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200


def test_case_48_a_dead_engine_is_told(small: Running) -> None:
    """The last test of this engine."""
    engine = small.service.loaded_engine
    assert engine is not None
    small.run(engine.close())
    for response in (small.client.get("/health"), small.chat()):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
    assert small.client.get("/health/live").status_code == 200
    assert small.client.get("/metrics").status_code == 200

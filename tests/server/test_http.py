"""Below the API: bodies, connections, methods. Media cases 20 and 40."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress

import pytest

from tests.server.conftest import Host, Running
from tests.server.raw import connection, get, is_closed, post, read_response

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def strict(host: Host) -> Running:
    return host.serve(
        max_body_bytes=10_000,
        body_timeout_s=0.5,
        header_timeout_s=1.0,
        max_connections=40,
        max_ledger_bytes=50_000,
    )


def code(body: bytes) -> str:
    return json.loads(body)["error"]["code"]


def is_served(server: Running) -> bool:
    """On a connection of its own: an idle one may be closed at the moment it is used again."""
    with connection(server.url) as raw:
        raw.sendall(get("/health"))
        return read_response(raw)[0] == 200


def test_case_20_declared_size_is_refused_before_the_body(strict: Running) -> None:
    with connection(strict.url) as raw:
        raw.sendall(
            post(PATH, b"", "X: y").replace(b"Content-Length: 0", b"Content-Length: 1073741824")
        )
        status, body = read_response(raw)
        assert (status, code(body)) == (413, "body_too_large")
        assert "10000" in json.loads(body)["error"]["message"]


def test_case_20_chunked_body_is_refused_and_the_connection_lives(strict: Running) -> None:
    head = post(PATH, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with connection(strict.url) as raw:
        raw.sendall(head)
        for _ in range(20):
            raw.sendall(b"400\r\n" + b" " * 0x400 + b"\r\n")
        raw.sendall(b"0\r\n\r\n")
        status, body = read_response(raw)
        assert (status, code(body)) == (413, "body_too_large")
        raw.sendall(post(PATH, CHAT))
        assert read_response(raw)[0] == 200


def test_chunked_body_within_the_limit(strict: Running) -> None:
    data = json.dumps(CHAT).encode()
    head = post(PATH, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with connection(strict.url) as raw:
        raw.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n")
        assert read_response(raw)[0] == 200


def test_case_40_half_a_body(strict: Running, caplog: pytest.LogCaptureFixture) -> None:
    whole = post(PATH, CHAT)
    with connection(strict.url) as raw:
        raw.sendall(whole[:-10])
        status, body = read_response(raw)
        assert (status, code(body)) == (408, "request_timeout")
    with connection(strict.url) as raw:
        raw.sendall(whole[:-10])
    assert strict.becomes_idle()
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize("limit", ["body_total_timeout_s", "request_timeout_s"])
def test_a_body_that_drips(host: Host, limit: str) -> None:
    """Never silent, never whole."""
    server = host.serve(body_timeout_s=60.0, **{limit: 0.5})
    with connection(server.url) as raw:
        raw.sendall(post(PATH, b" " * 100_000)[:-99_000])
        raw.settimeout(0.05)
        for _ in range(600):
            raw.sendall(b" ")
            with suppress(TimeoutError):
                if raw.recv(1, socket.MSG_PEEK):
                    break
        raw.settimeout(60)
        status, body = read_response(raw)
        assert (status, code(body)) == (408, "request_timeout")
        assert "0.5 s" in json.loads(body)["error"]["message"]


def test_case_40_slow_headers(strict: Running) -> None:
    """More connections than are taken, each with half a header; others are served meanwhile."""
    with ExitStack() as stack:
        slow = [stack.enter_context(connection(strict.url)) for _ in range(30)]
        for raw in slow:
            raw.sendall(b"GET /health HTTP/1.1\r\nHo")
        assert is_served(strict)
        assert all(is_closed(raw) for raw in slow)
    assert is_served(strict)


def test_case_40_slow_headers_of_a_second_request(strict: Running) -> None:
    with connection(strict.url) as raw:
        raw.sendall(get("/health"))
        assert read_response(raw)[0] == 200
        raw.sendall(b"GET /hea")
        assert is_closed(raw)


def test_too_many_connections(strict: Running) -> None:
    with ExitStack() as stack:
        every = [stack.enter_context(connection(strict.url)) for _ in range(60)]
        status, body = read_response(every[-1])
        assert (status, code(body)) == (429, "queue_full")
    assert strict.client.get("/health").status_code == 200


def test_case_40_keep_alive_after_errors(server: Running) -> None:
    with connection(server.url) as raw:
        for path, body, status in (
            (PATH, b"{", 400),
            ("/nowhere", b"{}", 404),
            (PATH, {**CHAT, "model": "x"}, 404),
            (PATH, {**CHAT, "zork": 1}, 400),
            (PATH, CHAT, 200),
        ):
            raw.sendall(post(path, body))
            assert read_response(raw)[0] == status


def test_case_40_old_and_odd_requests(server: Running) -> None:
    with connection(server.url) as raw:
        raw.sendall(get("/health", version="1.0"))
        assert read_response(raw)[0] == 200
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b",
    ):
        with connection(server.url) as raw:
            raw.sendall(garbage + b"\r\n\r\n")
            status, body = read_response(raw)
            assert (status, code(body)) == (400, "invalid_parameter")
    with connection(server.url) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
        assert read_response(raw)[0] in (0, 400)
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/version", "/metrics"])
def test_case_40_head(server: Running, path: str) -> None:
    response = server.client.head(path)
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "status", "name"),
    [
        ("GET", PATH, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("OPTIONS", PATH, 405, "method_not_allowed"),
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/x/y", 404, "model_not_found"),
        ("GET", "/static/../../errors.py", 404, "not_found"),
    ],
)
def test_case_40_paths_and_methods(
    server: Running, method: str, path: str, status: int, name: str
) -> None:
    headers = {"content-type": "application/json"}
    response = server.client.request(method, path, headers=headers, content=b"{}")
    assert (response.status_code, response.json()["error"]["code"]) == (status, name)
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), ("/health", 405)])
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_body_for_nobody(strict: Running, path: str, status: int, kind: str) -> None:
    """The path is told first; the body is not read, and the connection lives."""
    headers = f"Content-Type: {kind}"
    with connection(strict.url) as raw:
        request = post(path, b" " * 20_000, headers)
        raw.sendall(request.replace(b"Content-Type: application/json\r\n", b"", 1))
        assert read_response(raw)[0] == status
        raw.sendall(post(PATH, CHAT))
        assert read_response(raw)[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "", "multipart/form-data", "application/jsonx"])
def test_bodies_that_are_not_json(server: Running, kind: str) -> None:
    response = server.client.post(PATH, content=b"{}", headers={"content-type": kind})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


def test_content_types_of_json(server: Running) -> None:
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        response = server.client.post(PATH, json=CHAT, headers={"content-type": kind})
        assert response.status_code == 200


def test_compressed_bodies_are_refused(server: Running) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = server.client.post(PATH, content=b"\x1f\x8b", headers=headers)
    assert response.status_code == 415


def test_ledger_bounds_what_all_bodies_hold(strict: Running) -> None:
    """Ten bodies that stop short of their end fill it; then there is room again."""
    data = b" " * 9000
    with ExitStack() as stack:
        for _ in range(6):
            raw = stack.enter_context(connection(strict.url))
            raw.sendall(post(PATH, data)[:-1])
            last = raw
        status, body = read_response(last)
        assert (status, code(body)) in ((429, "queue_full"), (408, "request_timeout"))
    assert strict.becomes_idle()
    assert strict.client.post(PATH, json=CHAT).status_code == 200

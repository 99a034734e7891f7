"""Who may call, and what is open: keys, origins, names of the model. Media case 43."""

from __future__ import annotations

import pytest

from tests.server.conftest import Host, Running
from tests.server.raw import connection, post, read_response

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PATH = "/v1/chat/completions"
KEY, OTHER = "sk-one", "sk-two"
OPEN = ("/health", "/health/live", "/", "/static/app.js")


@pytest.fixture(scope="module")
def locked(host: Host) -> Running:
    return host.serve(api_keys=(KEY, OTHER))


def test_case_43_every_other_route_wants_a_key(locked: Running) -> None:
    paths = locked.client.get("/openapi.json", headers=bearer(KEY)).json()["paths"]
    assert PATH in paths
    for path in [*paths, "/openapi.json", "/nowhere", "/docs"]:
        if path in OPEN:
            assert locked.client.get(path).status_code == 200
            continue
        for method in ("GET", "POST", "OPTIONS"):
            response = locked.client.request(method, path)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_case_43_each_key_opens(locked: Running) -> None:
    for key in (KEY, OTHER):
        assert locked.client.get("/version", headers=bearer(key)).status_code == 200
    for value in (
        "Bearer",
        "Bearer x",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY}x",
        "Bearer \xe9",
    ):
        headers = {"authorization": value.encode("latin-1")}
        assert locked.client.get("/version", headers=headers).status_code == 401, value
    twice = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")]
    assert locked.client.get("/version", headers=twice).status_code == 401


def test_a_key_is_asked_for_before_the_body_is_read(locked: Running) -> None:
    with connection(locked.url) as raw:
        raw.sendall(post(PATH, b"x" * 100)[:-50])
        assert read_response(raw)[0] == 401


def test_metrics_can_be_opened(host: Host) -> None:
    server = host.serve(api_keys=(KEY,), metrics_need_key=False)
    assert server.client.get("/metrics").status_code == 200
    assert server.client.get("/version").status_code == 401


def test_page_can_be_left_out(host: Host) -> None:
    assert host.serve(has_page=False).client.get("/").status_code == 404


def test_cors_is_off_by_default(server: Running) -> None:
    origin = {"origin": "https://example.com"}
    response = server.client.get("/health", headers=origin)
    assert not any(name.startswith("access-control") for name in response.headers)
    preflight = {**origin, "access-control-request-method": "POST"}
    assert server.client.options(PATH, headers=preflight).status_code == 405


def test_cors_for_named_origins(host: Host) -> None:
    server = host.serve(allowed_origins=("https://example.com",), api_keys=(KEY,))
    preflight = {"access-control-request-method": "POST", "origin": "https://example.com"}
    allowed = server.client.options(PATH, headers=preflight)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://example.com"
    asked = "x-stainless-os, authorization"
    preflight["access-control-request-headers"] = asked
    allowed = server.client.options(PATH, headers=preflight)
    assert (allowed.status_code, allowed.headers["access-control-allow-headers"]) == (200, asked)
    for other in ({"origin": "https://evil.com"}, {"access-control-request-method": "DELETE"}):
        refused = server.client.options(PATH, headers={**preflight, **other})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_parameter")
        assert "access-control-allow-origin" not in refused.headers
    error = server.client.get("/version", headers={"origin": "https://example.com"})
    assert error.status_code == 401
    assert error.headers["access-control-allow-origin"] == "https://example.com"


def test_several_names_of_the_model(host: Host) -> None:
    server = host.serve(model_names=("one", "org/two"))
    listed = [entry["id"] for entry in server.client.get("/v1/models").json()["data"]]
    assert listed == ["one", "org/two"]
    assert server.client.get("/v1/models/org/two").json()["id"] == "org/two"
    body = server.client.post(PATH, json={**CHAT, "model": "org/two"}).json()
    assert body["model"] == "one"
    assert server.client.post(PATH, json=CHAT).status_code == 404

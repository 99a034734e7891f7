"""Ways to send a picture, and what is refused before anything is fetched. Media cases 18 to 23."""

from __future__ import annotations

import base64
import http.server
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyvlm.media.policy import MediaPolicy
from tests.server.conftest import Host, Running
from tests.server.pictures import data_url, image_part, picture, text_part

PLAIN = base64.b64encode(picture("red")).decode()


def ask(server: Running, url: Any, **more: Any) -> httpx.Response:
    part = {"type": "image_url", "image_url": {"url": url, **more}}
    return server.chat([part, text_part()])


def code_of(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error["code"]


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{PLAIN}",
        f"data:;base64,{PLAIN}",
        f"data:image/jpeg;base64,{PLAIN}",  # the bytes decide
        f"data:image/png;charset=utf-8;name=x.png;base64,{PLAIN}",
        f"DATA:image/PNG;BASE64,{PLAIN}",
        "data:image/png;base64," + PLAIN.replace("+", "-").replace("/", "_"),
        "data:image/png;base64," + PLAIN.rstrip("="),
        "data:image/png;base64," + "\n".join(PLAIN[i : i + 76] for i in range(0, len(PLAIN), 76)),
        "data:image/png;base64," + PLAIN.replace("+", "%2B").replace("/", "%2F"),
    ],
)
def test_case_18_data_urls_that_clients_send(server: Running, url: str) -> None:
    response = ask(server, url)
    assert response.status_code == 200, response.text
    assert "red" in response.json()["choices"][0]["message"]["content"].lower()


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,",
        "data:image/png;base64",
        "data:image/png;base64,@@@@",
        "data:image/png;base64," + PLAIN[:40] + "==" + PLAIN[40:],
        "data:image/png;base64," + base64.b64encode(b"no picture").decode(),
        "data:text/html;base64," + base64.b64encode(b"<html></html>").decode(),
        "",
        "picture.png",
        "/etc/passwd",
    ],
)
def test_case_18_data_urls_that_are_none(server: Running, url: str) -> None:
    code = code_of(ask(server, url))
    assert code in ("image_fetch_failed", "image_decode_failed", "media_policy_violation")


def test_case_19_spellings_of_image_parts(server: Running) -> None:
    url = data_url(picture("red"))
    bare = server.chat([{"type": "image_url", "image_url": url}, text_part()])
    assert "red" in bare.json()["choices"][0]["message"]["content"].lower()
    part = {"type": "input_image", "image_url": url}
    assert code_of(server.chat([part])) == "invalid_parameter"


@pytest.mark.parametrize("detail", ["auto", "low", "high", None])
def test_case_19_detail_has_no_effect(server: Running, detail: str | None) -> None:
    answer = ask(server, data_url(picture("red")), detail=detail).json()
    assert answer["usage"]["prompt_tokens_details"]["image_positions"] == 19


@pytest.mark.parametrize("detail", ["ultra", "", 5])
def test_case_19_other_detail_is_refused(server: Running, detail: Any) -> None:
    response = ask(server, data_url(picture("red")), detail=detail)
    assert code_of(response) == "invalid_parameter"
    assert response.json()["error"]["param"].endswith("image_url.detail")


def test_case_20_too_many_pictures(server: Running) -> None:
    response = server.chat([image_part()] * 17)
    assert code_of(response) == "media_policy_violation"
    message = response.json()["error"]["message"]
    assert "max_images is 16" in message
    assert "17" in message


def test_case_20_too_large_a_picture(server: Running) -> None:
    large = b"\x89PNG\r\n\x1a\n" + b"\0" * (21 << 20)
    response = ask(server, data_url(large))
    assert code_of(response) == "media_policy_violation"
    assert "max_image_bytes" in response.json()["error"]["message"]


def test_case_20_too_much_in_all(server: Running) -> None:
    padded = picture("red") + b"\0" * (65 << 18)
    part = {"type": "image_url", "image_url": {"url": data_url(padded)}}
    response = server.chat([part] * 4)
    assert code_of(response) == "media_policy_violation"
    assert "max_request_image_bytes" in response.json()["error"]["message"]


def test_case_10_a_huge_header_is_refused(server: Running) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    assert code_of(ask(server, data_url(bomb))) == "media_policy_violation"


REFUSED = (
    "http://example.com/a.png",
    "http://127.0.0.1/a.png",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/a.png",
    "http://[::ffff:10.0.0.1]/a.png",
    "http://0.0.0.0/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://user:pass@example.com/a.png",
    "http://example.com\\@127.0.0.1/",
    "ftp://example.com/a.png",
    "gopher://example.com/",
    "javascript:alert(1)",
)


@pytest.mark.parametrize("url", REFUSED)
def test_case_21_nothing_is_fetched_by_default(server: Running, url: str) -> None:
    assert code_of(ask(server, url)) in ("media_policy_violation", "image_fetch_failed")


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A web server on the loopback that must see no request."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield web.server_address[1], seen
        finally:
            web.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def open_server(host: Host) -> Running:
    policy = MediaPolicy(
        allowed_media_domains=("*",), allowed_media_ports=(80, 443, *range(1024, 65536))
    )
    return host.serve(policy)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_case_21_loopback_is_refused_even_if_all_hosts_are_allowed(
    open_server: Running, name: str
) -> None:
    with listening() as (port, seen):
        code = code_of(ask(open_server, f"http://{name}:{port}/a.png"))
    assert code in ("media_policy_violation", "image_fetch_failed")
    assert seen == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "file:///proc/self/environ", "file:///dev/zero", "file://a/b"]
)
def test_case_22_files_are_refused_by_default(server: Running, url: str) -> None:
    response = ask(server, url)
    assert code_of(response) in ("media_policy_violation", "image_fetch_failed")
    assert "root" not in response.text


def test_case_22_files_under_an_allowed_directory(host: Host, tmp_path: Path) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    outside.mkdir()
    for folder in (allowed, outside):
        (folder / "red.png").write_bytes(picture("red"))
    (allowed / "link.png").symlink_to(outside / "red.png")
    server = host.serve(MediaPolicy(allowed_local_media_path=allowed))
    answer = ask(server, f"file://{allowed}/red.png")
    assert "red" in answer.json()["choices"][0]["message"]["content"].lower()
    for path in (f"{allowed}/link.png", f"{allowed}/../outside/red.png", f"{outside}/red.png"):
        response = ask(server, f"file://{path}")
        assert code_of(response) in ("media_policy_violation", "image_fetch_failed")
        assert str(tmp_path) not in response.text


@pytest.mark.parametrize(
    "kind",
    ["input_audio", "audio_url", "audio", "video_url", "video", "input_video"],
)
def test_case_23_audio_and_video_are_refused_before_any_fetch(
    open_server: Running, kind: str
) -> None:
    with listening() as (port, seen):
        url = f"http://127.0.0.1:{port}/x"
        first = {"type": "image_url", "image_url": {"url": url}}
        response = open_server.chat([first, {"type": kind, kind: {"url": url, "data": "AAAA"}}])
    assert code_of(response) == "modality_unsupported"
    assert seen == []


@pytest.mark.parametrize("part", [{"type": "zork"}, {"type": None}, {}, {"type": ["text"]}, 5, "x"])
def test_case_23_unknown_parts(server: Running, part: Any) -> None:
    assert code_of(server.chat([image_part(), part])) == "invalid_parameter"


def test_one_bad_picture_of_two_is_named(server: Running) -> None:
    bad = {"type": "image_url", "image_url": {"url": data_url(picture("red")[:200])}}
    response = server.chat([image_part(), bad])
    assert code_of(response) == "image_decode_failed"
    assert response.json()["error"]["param"] == "images[1]"

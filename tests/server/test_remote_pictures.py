"""Pictures that the server fetches itself, through HTTP on both sides. Media cases 21 and 35.

A web server on loopback plays the public one, by an injected look-up of its name; a second one, at
another loopback address, is what no connection may reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from pyvlm.media.fetch import ImageFetcher
from pyvlm.media.policy import MediaPolicy
from tests.fetch.picture_server import (
    NAME,
    Exchange,
    Names,
    PictureServer,
    Route,
    fetcher,
    raw,
    redirect,
)
from tests.fetch.picture_server import picture as sent
from tests.server.conftest import Host, Running, eventually
from tests.server.pictures import data_url, picture, text_part
from tests.server.raw import connection, post

pytestmark = pytest.mark.timeout(120)
RED = picture("red")
PATH = "/v1/chat/completions"


@dataclass
class World:
    """The server under test, the public web server, the private one, the look-up."""

    server: Running
    web: PictureServer
    private: PictureServer
    names: Names

    def url(self, target: str = "/a.png", host: str = NAME) -> str:
        return f"http://{host}:{self.web.port}{target}"

    def ask(self, *urls: str, **fields: Any) -> httpx.Response:
        parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return self.server.chat([*parts, text_part()], **fields)

    def refusal(self, url: str) -> tuple[str, str]:
        response = self.ask(url)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert (error["param"], error["type"]) == ("images[0]", "invalid_request_error")
        for word in ("httpcore", "Errno", "0x", "Traceback"):
            assert word not in error["message"]
        return error["code"], error["message"]


@pytest.fixture(scope="module")
def world(host: Host) -> Iterator[World]:
    web, private = PictureServer(), PictureServer(address="127.0.0.2")
    names = Names(pictures_example=["127.0.0.1"], both_example=["127.0.0.1", "127.0.0.2"])
    names.answers["turns.example"] = [["127.0.0.1"], ["127.0.0.2"]]
    names.answers["inside.example"] = [["10.0.0.1"]]
    hosts = ("*",)

    async def start() -> ImageFetcher:
        await web.__aenter__()
        private.port = web.port
        await private.__aenter__()
        return fetcher(
            web, names, allowed_media_domains=hosts, fetch_timeout_s=1.5, connect_timeout_s=1
        )

    made = host.run(start())
    server = host.serve(MediaPolicy(allowed_media_domains=hosts), fetcher=made)
    yield World(server, web, private, names)

    async def stop() -> None:
        await private.__aexit__()
        await web.__aexit__()

    host.run(stop())


@pytest.fixture(autouse=True)
def no_connection_is_left(world: World) -> Iterator[None]:
    world.web.routes.clear()
    yield
    assert world.private.num_connections == 0
    assert world.server.becomes_idle()


def test_case_21_a_remote_picture_is_the_same_picture(world: World) -> None:
    world.web.routes |= {
        "/a.png": sent(RED, "Content-Type: text/html"),  # the bytes decide
        "/b.png": sent(picture("blue")),
        "/moved": redirect("/a.png"),
    }
    red, blue = data_url(RED), data_url(picture("blue"))
    assert world.ask(red, blue).status_code == 200
    for remote, local in (
        (["/a.png"], [red]), (["/moved"], [red]), (["/b.png", "/a.png"], [blue, red]),
    ):  # fmt: skip
        answers = [
            world.ask(*urls, temperature=4.0, seed=1, n=4, max_tokens=3).json()
            for urls in (map(world.url, remote), local)
        ]
        assert answers[0]["choices"] == answers[1]["choices"]
        assert answers[0]["usage"] == answers[1]["usage"]
    mixed = world.ask(world.url(), blue)
    assert mixed.status_code == 200, mixed.text
    (request, *_) = world.web.exchanges
    assert not {"cookie", "authorization", "referer"} & {name.lower() for name in request.headers}


PRIVATE = (
    "127.0.0.2", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]", "0.0.0.0", "2130706434",
    "0177.0.0.2", "[64:ff9b::7f00:2]", "inside.example", "both.example",
)  # fmt: skip


@pytest.mark.parametrize("where", PRIVATE)
def test_case_21_no_redirect_leads_inside(world: World, where: str) -> None:
    """`both` has a public address and a private one: all must be public."""
    world.web.routes["/a.png"] = redirect(f"http://{where}:{world.web.port}/inside.png")
    code, _ = world.refusal(world.url())
    assert code in ("media_policy_violation", "image_fetch_failed")


def test_case_21_the_address_that_was_checked_is_the_one_that_is_used(world: World) -> None:
    """The second look-up of the name would give another one, which nobody asks for."""
    world.web.routes["/a.png"] = sent(RED)
    before = world.web.num_connections
    assert world.ask(world.url(host="turns.example")).status_code == 200
    assert world.web.num_connections == before + 1
    assert world.names.asked.count("turns.example") == 1


@pytest.mark.parametrize(
    "target",
    ["ftp://pictures.example/a", "gopher://pictures.example/", "file:///etc/passwd",
     "data:image/png;base64,AAAA", "http://user:pass@pictures.example/",
     "http://pictures.example:22/", "http://other.example/a.png", "//127.0.0.2/a.png"],
)  # fmt: skip
def test_case_21_redirects_are_judged_as_urls(world: World, target: str) -> None:
    world.web.routes["/a.png"] = redirect(target)
    code, message = world.refusal(world.url())
    assert code in ("media_policy_violation", "image_fetch_failed")
    assert "root:" not in message


async def _drip(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        await exchange.send(b"x")
        await asyncio.sleep(0.1)


async def _endless(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        await exchange.send(bytes(1 << 20))


BAD: dict[str, tuple[Route, str, str]] = {
    "slow drip": (_drip, "image_fetch_failed", "fetch_timeout_s is 1.5"),
    "endless": (_endless, "media_policy_violation", "max_image_bytes is 20971520"),
    "compressed": (sent(b"\x1f\x8b", "Content-Encoding: gzip"), "image_fetch_failed", "compressed"),
    "404": (sent(b"gone", status="404 Not Found"), "image_fetch_failed", "status 404"),
    "500": (sent(b"oops", status="500 Error"), "image_fetch_failed", "status 500"),
    "short": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc"), "image_fetch_failed", "broke off",
    ),
    "loop": (redirect("/a.png"), "media_policy_violation", "max_redirects is 3"),
    "no picture": (sent(b"<html>hello</html>"), "image_decode_failed", "HTML"),
    "no HTTP": (raw(b"SSH-2.0-x\r\n"), "image_fetch_failed", "does not speak HTTP"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_case_21_servers_that_misbehave(world: World, name: str) -> None:
    route, code, words = BAD[name]
    world.web.routes["/a.png"] = route
    found, message = world.refusal(world.url())
    assert found == code, message
    assert words in message


def test_a_deadline_ends_the_fetches_of_its_request(host: Host, world: World) -> None:
    world.web.routes["/slow"] = _drip

    async def patient() -> ImageFetcher:
        return fetcher(world.web, world.names, fetch_timeout_s=30)

    hasty = host.serve(fetcher=host.run(patient()), request_timeout_s=1.0)
    slow = {"type": "image_url", "image_url": {"url": world.url("/slow")}}
    response = hasty.chat([slow, text_part()])
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
    assert eventually(lambda: world.web.exchanges[-1].writer.is_closing())
    assert hasty.becomes_idle()


def test_case_35_leaving_while_fetching(world: World) -> None:
    """The connection to the web server ends with the client's, and nobody else notices."""
    world.web.routes |= {"/slow": _drip, "/a.png": sent(RED)}
    before = world.ask(world.url()).json()["choices"]
    part = {"type": "image_url", "image_url": world.url("/slow")}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part]}]}

    def num_asked() -> int:
        return sum(exchange.target == "/slow" for exchange in world.web.exchanges)

    for number in range(1, 6):
        with connection(world.server.url) as client:
            client.sendall(post(PATH, body))
            assert eventually(lambda number=number: num_asked() == number)
        assert eventually(lambda: world.web.exchanges[-1].writer.is_closing())
    assert world.server.becomes_idle()
    assert world.ask(world.url()).json()["choices"] == before

"""Case 21 of the media cases: servers that misbehave. Also what goes well."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from pyvlm.media.ledger import ByteLedger
from tests.fetch.picture_server import (
    NAME,
    PICTURE,
    Exchange,
    Names,
    PictureServer,
    Route,
    failure,
    fetcher,
    get,
    picture,
    raw,
    redirect,
    run,
    url_of,
)

pytestmark = pytest.mark.timeout(60)


def one(route: Route, **limits: object) -> tuple[object, PictureServer]:
    """The picture or the error that a server with this route ends in."""

    async def work() -> tuple[object, PictureServer]:
        async with PictureServer({"/a.png": route}) as server, fetcher(server, **limits) as client:
            task = asyncio.create_task(get(client, url_of(server)))
            await asyncio.wait([task])
            if task.exception() is not None:
                return await failure(task), server
            return task.result(), server

    return run(work())


def refused(route: Route, **limits: object) -> tuple[str, str]:
    error, _ = one(route, **limits)
    assert error.param == "images[0]"  # type: ignore[attr-defined]
    return error.code, error.message  # type: ignore[attr-defined]


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> Route:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return raw(head + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + end)


@pytest.mark.parametrize(
    "route",
    [
        picture(),
        picture(PICTURE, "Content-Type: text/html"),  # the bytes decide
        picture(PICTURE, "Content-Encoding: identity"),
        chunked(PICTURE[:7], PICTURE[7:]),
        chunked(*(bytes([byte]) for byte in PICTURE)),
        chunked(PICTURE, end=b"0\r\nX-Trailer: 1\r\n\r\n"),
        raw(b"HTTP/1.0 200 OK\r\n\r\n" + PICTURE),  # until the connection ends
        raw(b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PICTURE),
    ],
)  # fmt: skip
def test_a_picture_arrives_whole(route: Route) -> None:
    assert one(route)[0] == PICTURE


def test_the_request_says_what_it_wants_and_nothing_else() -> None:
    _, server = one(picture())
    (exchange,) = server.exchanges
    assert exchange.headers == {
        "Host": f"{NAME}:{server.port}",
        "User-Agent": "pyvlm",
        "Accept": "image/*",
        "Accept-Encoding": "identity",
    }


@pytest.mark.parametrize(
    "status",
    [
        "404 Not Found",
        "500 Oops",
        "204 No Content",
        "401 No",
        "206 Partial",
        "300 Choose",
        "304 No",
    ],
)
def test_case_21_pages_instead_of_pictures(status: str) -> None:
    body = b"" if status[:3] in ("204", "304") else b"<html>"
    code, message = refused(picture(body, status=status))
    assert code == "image_fetch_failed"
    assert message == f"image 0: the server answered with status {status[:3]}"


def test_case_21_too_long_by_its_own_word() -> None:
    async def route(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n")
        await asyncio.sleep(60)  # no byte of it ever comes

    code, message = refused(route, max_image_bytes=1000)
    assert code == "media_policy_violation"
    assert "max_image_bytes is 1000, saw 99999999999999999999 bytes" in message


@pytest.mark.parametrize("head", [b"Connection: close", b"Transfer-Encoding: chunked"])
def test_case_21_endless_body(head: bytes) -> None:
    sent = []

    async def route(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        part = b"10000\r\n%s\r\n" % bytes(65536) if b"chunked" in head else bytes(65536)
        try:
            while True:
                await exchange.send(part)
        finally:
            sent.append(exchange.num_sent)

    code, message = refused(route, max_image_bytes=100_000)
    assert code == "media_policy_violation"
    assert "max_image_bytes is 100000, saw " in message
    assert sent[0] < 32 << 20  # what the sockets between hold, not what the server would send


def test_case_21_slow_drip() -> None:
    async def route(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            await exchange.send(b"x")
            await asyncio.sleep(0.05)

    code, message = refused(route, fetch_timeout_s=0.4)
    assert code == "image_fetch_failed"
    assert "fetch_timeout_s is 0.4, the picture was not complete" in message


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 100 \r\n\r\n"])
def test_case_21_silence(start: bytes) -> None:
    async def route(exchange: Exchange) -> None:
        await exchange.send(start)
        await asyncio.sleep(60)

    assert refused(route, fetch_timeout_s=0.3)[0] == "image_fetch_failed"


@pytest.mark.parametrize("lines", [b"X: " + b"y" * 999 + b"\r\n", b"HTTP/1.1 100 Go on\r\n\r\n"])
def test_case_21_endless_headers(lines: bytes) -> None:
    sent = []

    async def route(exchange: Exchange) -> None:
        start = b"" if lines.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n"
        try:
            await exchange.send(start)
            while True:
                await exchange.send(lines * 16)
        finally:
            sent.append(exchange.num_sent)

    assert refused(route, fetch_timeout_s=1)[0] == "image_fetch_failed"
    if not lines.startswith(b"HTTP"):
        assert sent[0] < 16 << 20


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\1\2\3\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + PICTURE,  # breaks off
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\nabc",
        b"HTTP/1.1 200 OK\r\nNo colon here\r\n\r\nabc",
        b"HTTP/1.1 999999 OK\r\n\r\nabc",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\nabc",
        b"HTTP/1.1 302 Found\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /b\r\nLocation: /c\r\n\r\n",
    ],
)
def test_case_21_wrong_length_and_broken_http(answer: bytes) -> None:
    assert refused(raw(answer))[0] == "image_fetch_failed"


def test_case_21_more_than_announced() -> None:
    """What comes after the announced length is no part of the picture, nor of the next one."""

    async def work() -> None:
        async def route(exchange: Exchange) -> None:
            extra = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfake"
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nreal" + extra)

        routes = {"/a.png": route, "/b.png": picture()}
        async with PictureServer(routes) as server, fetcher(server) as client:
            for _ in range(2):
                assert await get(client, url_of(server)) == b"real"
            assert await get(client, url_of(server, "/b.png")) == PICTURE

    run(work())


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "x"])
def test_case_21_compressed_answers_are_never_unpacked(coding: str) -> None:
    bomb = gzip.compress(bytes(1 << 20))
    code, message = refused(picture(bomb, f"Content-Encoding: {coding}"))
    assert (code, "compressed" in message) == ("image_fetch_failed", True)
    assert one(picture(bomb))[0] == bomb  # undeclared: the bytes as they came


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(status: int) -> None:
    async def work() -> None:
        routes = {"/a.png": redirect("b/c.png?d=e#f", f"{status} Moved"), "/b/c.png?d=e": picture()}
        async with PictureServer(routes) as server, fetcher(server) as client:
            assert await get(client, url_of(server)) == PICTURE

    run(work())


def test_case_21_redirect_loop() -> None:
    async def work() -> None:
        async with PictureServer({"/a.png": redirect("/a.png")}) as server:
            for limit in (0, 3):
                async with fetcher(server, max_redirects=limit) as client:
                    before = len(server.exchanges)
                    error = await failure(get(client, url_of(server)))
                    assert error.code == "media_policy_violation"
                    assert f"max_redirects is {limit}, saw {limit + 1} redirects" in error.message
                    assert len(server.exchanges) - before == limit + 1

    run(work())


def test_connections_are_used_again_and_names_looked_up_once() -> None:
    async def work() -> None:
        names = Names(pictures_example=["127.0.0.1"])
        async with (
            PictureServer({"/a.png": picture()}) as server,
            fetcher(server, names) as client,
        ):
            for _ in range(3):
                assert await get(client, url_of(server)) == PICTURE
            assert (server.num_connections, names.asked) == (1, [NAME])

    run(work())


def test_no_cookie_is_kept() -> None:
    async def work() -> None:
        routes = {"/a.png": picture(PICTURE, "Set-Cookie: a=b; Path=/")}
        async with PictureServer(routes) as server, fetcher(server) as client:
            for _ in range(2):
                await get(client, url_of(server))
            assert all("Cookie" not in exchange.headers for exchange in server.exchanges)

    run(work())


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with PictureServer({"/a.png": picture()}) as server, PictureServer() as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            async with fetcher(server) as client:
                assert await get(client, url_of(server)) == PICTURE
            assert proxy.num_connections == 0

    run(work())


def test_leaving_while_fetching_ends_the_connection() -> None:
    async def work() -> None:
        started = asyncio.Event()

        async def route(exchange: Exchange) -> None:
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
            started.set()
            while True:
                await exchange.send(b"x")
                await asyncio.sleep(0.01)

        async with PictureServer({"/a.png": route}) as server, fetcher(server) as client:
            for _ in range(100):
                started.clear()
                with ByteLedger(1 << 20).lease(0, "request") as lease:
                    task = asyncio.create_task(client.fetch_all([url_of(server)], lease))
                    await started.wait()
                    task.cancel()
                    await asyncio.wait([task])
                    assert task.cancelled()
            await server.idle()
            assert server.num_connections == 100

    run(work())


def test_a_hundred_failures_leave_the_pool_usable() -> None:
    async def work() -> None:
        routes = {
            "/bad": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
            "/a.png": picture(),
        }
        async with PictureServer(routes) as server, fetcher(server) as client:
            for _ in range(100):
                assert (
                    await failure(get(client, url_of(server, "/bad")))
                ).code == "image_fetch_failed"
            assert await get(client, url_of(server)) == PICTURE

    run(work())

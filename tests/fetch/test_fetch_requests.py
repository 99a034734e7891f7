"""All pictures of a request at once: limits, ledger, order, and what a failure does to the rest."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path

import pytest

from pyvlm.media.fetch import NUM_THREADS, ImageFetcher
from pyvlm.media.ledger import ByteLedger
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source_data import decode_data_url
from tests.fetch.picture_server import (
    PICTURE,
    Exchange,
    PictureServer,
    failure,
    fetcher,
    picture,
    run,
    url_of,
)

pytestmark = pytest.mark.timeout(60)


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_all_kinds_of_sources_in_order(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"file")

    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await exchange.answer(b"slow")

    async def work() -> None:
        routes = {"/slow": slow, "/fast": picture(b"fast")}
        ledger = ByteLedger(1000)
        async with (
            PictureServer(routes) as server,
            fetcher(server, allowed_local_media_path=tmp_path) as client,
        ):
            urls = [url_of(server, "/slow"), data_url(b"data"), f"file://{tmp_path}/c",
                    url_of(server, "/fast"), url_of(server, "/slow")]  # fmt: skip
            with ledger.lease(100, "request") as lease:
                found = await client.fetch_all(urls, lease)
                assert found == [b"slow", b"data", b"file", b"fast", b"slow"]
                assert ledger.used_bytes == 100 + sum(map(len, found))
            assert ledger.used_bytes == 0
            assert await client.fetch_all([]) == []

    run(work())


def test_case_20_seventeen_pictures_are_refused_before_any_is_fetched() -> None:
    async def work() -> None:
        async with PictureServer({"/a.png": picture()}) as server, fetcher(server) as client:
            error = await failure(client.fetch_all([url_of(server)] * 17))
            assert error.code == "media_policy_violation"
            assert error.message == "max_images is 16, saw 17 images in the request"
            assert server.num_connections == 0
            assert await client.fetch_all([url_of(server)] * 16) == [PICTURE] * 16

    run(work())


def test_case_20_a_picture_of_21_mib() -> None:
    async def work() -> None:
        large = bytes(21 << 20)
        routes = {
            "/announced": picture(large),
            "/silent": lambda exchange: exchange.answer(large, "Connection: close", length=False),
        }
        async with PictureServer(routes) as server, fetcher(server) as client:
            for target in routes:
                error = await failure(client.fetch_all([data_url(b"x"), url_of(server, target)]))
                assert (error.code, error.param) == ("media_policy_violation", "images[1]")
                assert "image 1: max_image_bytes is 20971520, saw 2" in error.message
            error = await failure(client.fetch_all([data_url(large)]))
            assert "max_image_bytes is 20971520, saw 22020096 bytes" in error.message

    run(work())


def test_case_20_all_pictures_together() -> None:
    async def work() -> None:
        async with (
            PictureServer({"/a.png": picture(bytes(600))}) as server,
            fetcher(server, max_request_image_bytes=2000) as client,
        ):
            mixed = [url_of(server), data_url(bytes(600))]
            assert len(await client.fetch_all([*mixed, url_of(server)])) == 3
            for urls in (mixed * 2, [url_of(server)] * 4, [data_url(bytes(600))] * 4):
                error = await failure(client.fetch_all(urls))
                assert (error.code, error.param) == ("media_policy_violation", "images")
                assert error.message == "max_request_image_bytes is 2000, saw 2400 bytes of images"

    run(work())


def test_a_bad_url_is_found_before_anything_is_fetched() -> None:
    async def work() -> None:
        async with PictureServer({"/a.png": picture()}) as server, fetcher(server) as client:
            error = await failure(client.fetch_all([url_of(server), "gopher://x/"]))
            assert (error.param, server.num_connections) == ("images[1]", 0)
            assert "saw gopher:" in error.message

    run(work())


def test_waiting_for_a_turn_is_no_part_of_the_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data URLs that take longer in all than one may, and each far less."""

    def slow(url: str, policy: MediaPolicy, index: int) -> bytes:
        time.sleep(0.3)
        return decode_data_url(url, policy, index)

    monkeypatch.setattr("pyvlm.media.fetch.decode_data_url", slow)
    urls = [data_url(b"x")] * (6 * NUM_THREADS)

    async def work() -> None:
        policy = MediaPolicy(max_images=len(urls), fetch_timeout_s=1.5)
        async with ImageFetcher(policy) as client:
            assert await client.fetch_all(urls) == [b"x"] * len(urls)

    run(work())


def test_the_first_failure_ends_the_other_fetches() -> None:
    async def work() -> None:
        started = asyncio.Event()

        async def endless(exchange: Exchange) -> None:
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
            started.set()
            await asyncio.sleep(60)

        async def bad(exchange: Exchange) -> None:
            await started.wait()
            await exchange.answer(status="404 Not Found")

        routes = {"/endless": endless, "/bad": bad}
        async with PictureServer(routes) as server, fetcher(server) as client:
            error = await failure(
                client.fetch_all([url_of(server, "/endless"), url_of(server, "/bad")])
            )
            assert (error.code, error.param) == ("image_fetch_failed", "images[1]")

    run(work())


def test_a_ledger_without_room_stops_the_fetch() -> None:
    async def work() -> None:
        ledger = ByteLedger(1000)
        async with (
            PictureServer({"/a.png": picture(bytes(600))}) as server,
            fetcher(server) as client,
        ):
            with ledger.lease(0, "first") as lease:
                await client.fetch_all([url_of(server)], lease)
                for url in (url_of(server), data_url(bytes(600))):
                    with ledger.lease(0, "second") as other:
                        error = await failure(client.fetch_all([url], other))
                        assert error.code == "queue_full"
                        assert "the byte ledger is 1000 bytes with 600 in use" in error.message
                assert ledger.leases() == [("first", 600)]
            with ledger.lease(0, "third") as lease:
                await client.fetch_all([url_of(server)], lease)
            assert (ledger.used_bytes, ledger.leases()) == (0, [])

    run(work())


def test_a_fetcher_of_production_asks_the_system_and_refuses_this_computer() -> None:
    async def work() -> None:
        async with PictureServer({"/a.png": picture()}) as server:
            policy = MediaPolicy(allowed_media_domains=("*",), allowed_media_ports=(server.port,))
            async with ImageFetcher(policy) as client:
                for host in ("127.0.0.1", "localhost"):
                    error = await failure(client.fetch_all([url_of(server, host=host)]))
                    assert "not a public address" in error.message
            assert server.num_connections == 0

    run(work())

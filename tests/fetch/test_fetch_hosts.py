"""Case 21 of the media cases: hosts and addresses that must not be reached, however written."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address

import pytest

from pyvlm.media.fetch_network import SystemResolver
from pyvlm.media.policy import MediaPolicy
from tests.fetch.picture_server import (
    NAME,
    PICTURE,
    SERVED,
    Names,
    PictureServer,
    ServedIsPublic,
    failure,
    fetcher,
    get,
    picture,
    redirect,
    run,
    url_of,
)

pytestmark = pytest.mark.timeout(60)

PRIVATE = [
    "127.0.0.2", "169.254.169.254", "0.0.0.0", "10.0.0.1", "100.100.100.200", "168.63.129.16",
    "[::1]", "[::]", "[::ffff:10.0.0.1]", "[::ffff:7f00:1]", "[::7f00:1]", "[64:ff9b::7f00:1]",
    "[64:ff9b:1::a00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[fd00:ec2::254]", "[fe80::1]",
]  # fmt: skip
UNUSUAL = [
    "2130706433", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "017700000001", "127.1", "127.0.1",
    "127.0.0.01", "1.2.3.4.5", "0x", "127.0.0.1.", "localhost.", "[fe80::1%25eth0]",
    "[fe80::1%eth0]", "[127.0.0.1]", "[::1", "::1", "%31%32%37.0.0.1", "a%00.example",
    "a..example", "-a.example", "a_.-b", "１２７.0.0.1", "127。0。0。1", "ⓛocalhost",
    "pictures。example", "bücher.example",
    "\u202eexample.com", "a b.example", "a" * 64 + ".example", "a." * 127 + "example", "", "*",
]  # fmt: skip


def refused(host: str, **limits: object) -> str:
    """The message for a URL of this host, which nothing is connected to and no name is asked."""

    async def work() -> str:
        names = Names(pictures_example=["127.0.0.1"])
        async with PictureServer({"/a.png": picture()}) as server:
            async with fetcher(server, names, allowed_media_domains=("*",), **limits) as client:
                error = await failure(get(client, url_of(server, host=host)))
            assert error.code == "media_policy_violation"
            assert (server.num_connections, names.asked) == (0, [])
            return error.message

    return run(work())


@pytest.mark.parametrize("host", PRIVATE)
def test_case_21_private_addresses(host: str) -> None:
    assert "not a public address" in refused(host)


@pytest.mark.parametrize("host", UNUSUAL)
def test_case_21_unusual_notations(host: str) -> None:
    assert "not a public address" not in refused(host)  # refused earlier, by its spelling


@pytest.mark.parametrize("host", PRIVATE + UNUSUAL)
def test_case_21_redirects_to_them(host: str) -> None:
    async def work() -> None:
        async with PictureServer(address="127.0.0.2") as other:
            routes = {"/a.png": redirect(f"http://{host}:{other.port}/a.png")}
            async with PictureServer(routes) as server:
                allowed = {
                    "allowed_media_domains": ("*",),
                    "allowed_media_ports": (server.port, other.port),
                }
                async with fetcher(server, **allowed) as client:
                    error = await failure(get(client, url_of(server)))
            # A Location that is not even Latin-1 arrives as other bytes, and is refused as such.
            assert error.code in ("media_policy_violation", "image_fetch_failed")
            assert (server.num_connections, other.num_connections) == (1, 0)

    if host.isascii() or max(host) <= "\xff":
        run(work())


@pytest.mark.parametrize(
    "answer",
    [["127.0.0.2"], ["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"], ["127.0.0.1", "::1"],
     ["::ffff:127.0.0.1"], ["fe80::1%eth0"], ["2606:4700::1111%eth0"]],
)  # fmt: skip
def test_case_21_names_that_lead_to_one_private_address(answer: list[str]) -> None:
    async def work() -> None:
        names = Names(pictures_example=answer)
        async with PictureServer({"/a.png": picture()}) as server:
            async with fetcher(server, names) as client:
                error = await failure(get(client, url_of(server)))
            assert error.code == "media_policy_violation"
            assert "not a public address" in error.message
            assert (server.num_connections, names.asked) == (0, [NAME])

    run(work())


def test_case_21_a_second_look_up_that_differs() -> None:
    """The address that was checked is the one connected to; a new connection is checked anew."""

    async def work() -> None:
        names = Names(pictures_example=["127.0.0.1"]).then(NAME, ["127.0.0.2"])
        routes = {"/a.png": picture(PICTURE, "Connection: close")}
        async with (
            PictureServer(routes) as server,
            PictureServer(routes, address="127.0.0.2", port=server.port) as private,
            fetcher(server, names) as client,
        ):
            assert await get(client, url_of(server)) == PICTURE
            assert (names.asked, server.num_connections) == ([NAME], 1)
            error = await failure(get(client, url_of(server)))
            assert error.code == "media_policy_violation"
            assert (names.asked, server.num_connections) == ([NAME] * 2, 1)
            assert private.num_connections == 0

    run(work())


def test_an_address_that_does_not_answer_leaves_the_next_one() -> None:
    async def work() -> None:
        names = Names(pictures_example=["127.0.0.9", "127.0.0.1"])
        both = ServedIsPublic(IPv4Address("127.0.0.9"), SERVED)
        async with PictureServer({"/a.png": picture()}) as server:
            port = server.port
            async with fetcher(server, names, permission=both) as client:
                assert await get(client, url_of(server)) == PICTURE
        async with fetcher(server, names, permission=both) as client:  # nobody listens any more
            error = await failure(get(client, f"http://{NAME}:{port}/a.png"))
            assert (error.code, error.message) == (
                "image_fetch_failed",
                "image 0: no connection to the server",
            )

    run(work())


def test_case_21_hosts_that_are_not_allowed() -> None:
    async def work() -> None:
        names = Names(pictures_example=["127.0.0.1"], other_example=["127.0.0.1"])
        routes = {"/a.png": picture(), "/away": redirect("//other.example:{port}/a.png")}
        async with PictureServer(routes) as server:
            routes["/away"] = redirect(f"//other.example:{server.port}/a.png")
            async with fetcher(server, names) as client:
                for host in ("other.example", "x.pictures.example", "pictures.example.other"):
                    error = await failure(get(client, url_of(server, host=host), 2))
                    assert error.code == "media_policy_violation"
                    assert error.param == "images[2]"
                    assert f"allowed_media_domains is {NAME}, saw host {host}" in error.message
                error = await failure(get(client, url_of(server, "/away")))
                assert "saw host other.example" in error.message
                assert await get(client, url_of(server, host=NAME.upper())) == PICTURE
            assert set(names.asked) == {NAME}
            async with fetcher(server, names, allowed_media_domains=("*",)) as client:
                assert await get(client, url_of(server, "/away")) == PICTURE

    run(work())


def test_nothing_is_fetched_until_hosts_are_allowed() -> None:
    async def work() -> None:
        async with PictureServer() as server, fetcher(server, allowed_media_domains=()) as client:
            error = await failure(get(client, url_of(server)))
            assert "allowed_media_domains is empty, saw host pictures.example" in error.message
            assert server.num_connections == 0

    assert MediaPolicy().allowed_media_domains == ()
    run(work())


def test_case_21_ports() -> None:
    async def work() -> None:
        async with PictureServer() as server:
            for allowed, port in (((80, 443), 22), ((80,), 443)):
                async with fetcher(server, allowed_media_ports=allowed) as client:
                    error = await failure(get(client, f"http://{NAME}:{port}/"))
                    shown = ", ".join(map(str, allowed))
                    assert f"allowed_media_ports is {shown}, saw port {port}" in error.message
            async with fetcher(server) as client:
                for port in ("0", "65536", "99999", "-1", "8o", "80:80", " 80"):
                    error = await failure(get(client, f"http://{NAME}:{port}/"))
                    assert error.code == "media_policy_violation"

    run(work())


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "data:image/png;base64,AAAA", "ftp://pictures.example/a", "gopher://x/",
     "jar:http://x", "javascript:1", "http://user:pass@pictures.example/", "//a@pictures.example/",
     "http://pictures.example\\@127.0.0.2/", "\\\\127.0.0.2\\a", "http:///a", "http://[::1/a",
     "/a\tb", "http://pictures.example:22/", "/" + "a" * 9000],
)  # fmt: skip
def test_case_21_redirects_elsewhere(location: str) -> None:
    async def work() -> None:
        async with (
            PictureServer({"/a.png": redirect(location)}) as server,
            fetcher(server) as client,
        ):
            error = await failure(get(client, url_of(server)))
            assert error.code in ("media_policy_violation", "image_fetch_failed")
            assert "status" not in error.message
            assert server.num_connections == len(server.exchanges) == 1

    run(work())


@pytest.mark.parametrize(
    "url",
    ["ftp://a/", "gopher://a/", "FILE://host/a", "http:/a", "http:a", "http:///a", "//a/b", "a.png",
     "", "http://", "https://:80/", "http://user@pictures.example/", "http://u:p@pictures.example/",
     "http://@pictures.example/", "http://pictures.example\\@other/", "http://a.example\\/b",
     "http://pictures.example/a\\b", "http://pictures.example/a\nb", "http://pictures.example/\0",
     " http://pictures.example/", "http://pictures.example/\ud800",
     "http://pictures.example/" + "a" * 9000, "blob:http://a/", "view-source:http://a/",
     "http+unix://%2Ftmp/a", "C:\\a.png", "javascript:1"],
)  # fmt: skip
def test_case_21_urls_that_are_refused_as_they_stand(url: str) -> None:
    async def work() -> None:
        async with PictureServer() as server:
            async with fetcher(server, allowed_media_domains=("*",)) as client:
                error = await failure(client.fetch_all([url]))
            assert error.code in ("media_policy_violation", "image_fetch_failed")
            assert (error.param, server.num_connections) == ("images[0]", 0)

    run(work())


def test_case_21_at_signs_and_other_letters_in_the_path() -> None:
    async def work() -> None:
        paths = {"/a@127.0.0.2/b": "/a@127.0.0.2/b", "/ü b?q=ä": "/%C3%BC%20b?q=%C3%A4",
                 "/%41%zz": "/%41%zz", "?q": "/?q", "/#@x": "/"}  # fmt: skip
        routes = dict.fromkeys(paths.values(), picture())
        async with PictureServer(routes) as server, fetcher(server) as client:
            for path, target in paths.items():
                assert await get(client, url_of(server, path)) == PICTURE
                assert server.exchanges[-1].target == target

    run(work())


def test_names_without_an_address() -> None:
    async def work() -> None:
        async with PictureServer() as server:
            for names in (Names(), Names(pictures_example=[])):
                async with fetcher(server, names) as client:
                    error = await failure(get(client, url_of(server)))
                    assert error.message == "image 0: the host has no address"

    run(work())


def test_a_look_up_that_hangs_ends_at_the_connect_deadline() -> None:
    class Silent(Names):
        async def resolve(self, name: str, port: int) -> list:  # noqa: ARG002
            await asyncio.sleep(60)
            return []

    async def work() -> None:
        async with PictureServer() as server:
            async with fetcher(server, Silent(), connect_timeout_s=0.2) as client:
                error = await failure(get(client, url_of(server)))
            assert error.message == "image 0: connect_timeout_s is 0.2, there was no connection"

    run(work())


def test_a_host_that_never_accepts_ends_at_the_connect_deadline() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(3)]  # more than it keeps: later ones hang
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            server = PictureServer(port=port)
            async with fetcher(server, connect_timeout_s=0.3) as client:
                error = await failure(get(client, f"http://{NAME}:{port}/a"))
            for each in waiting:
                each.close()
            assert "connect_timeout_s is 0.3" in error.message

    run(work())


def test_the_system_s_own_look_up_is_checked_too() -> None:
    async def work() -> None:
        resolver = SystemResolver()
        found = await resolver.resolve("localhost", 80)
        assert found
        assert all(address.is_loopback for address in found)
        with pytest.raises(socket.gaierror):
            await resolver.resolve("no-such-name.invalid", 80)
        resolver.close()
        async with PictureServer() as server:
            names = Names(localhost=[str(address) for address in found if address.version == 6]
                          or ["127.0.0.2"])  # fmt: skip
            async with fetcher(server, names, allowed_media_domains=("localhost",)) as client:
                error = await failure(get(client, url_of(server, host="localhost")))
            assert "not a public address" in error.message

    run(work())

"""https: the address is ours, the certificate and the server name are the URL's."""

from __future__ import annotations

import socket
import ssl

import pytest
import trustme

from tests.fetch.picture_server import (
    NAME,
    PICTURE,
    Exchange,
    Names,
    PictureServer,
    failure,
    fetcher,
    get,
    picture,
    redirect,
    run,
    url_of,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def tls_server(authority: trustme.CA, *names: str, **options: object) -> PictureServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return PictureServer({"/a.png": picture()}, ssl_context=context, **options)  # type: ignore[arg-type]


def test_name_is_sent_and_verified_at_the_pinned_address(
    authority: trustme.CA, trust: ssl.SSLContext
) -> None:
    async def work() -> None:
        asked = []
        server = tls_server(authority, NAME)
        assert server.ssl_context is not None
        server.ssl_context.sni_callback = lambda _socket, name, _context: asked.append(name)
        names = Names(pictures_example=["127.0.0.1"])
        async with server, fetcher(server, names, trust=trust) as client:
            for _ in range(2):
                assert await get(client, url_of(server)) == PICTURE
        assert (asked, server.num_connections, names.asked) == ([NAME], 1, [NAME])

    run(work())


def test_an_address_in_a_certificate(authority: trustme.CA, trust: ssl.SSLContext) -> None:
    async def work() -> None:
        allowed = {"allowed_media_domains": ("127.0.0.1",)}
        server = tls_server(authority, "127.0.0.1")
        async with server, fetcher(server, trust=trust, **allowed) as client:
            assert await get(client, url_of(server, host="127.0.0.1")) == PICTURE

    run(work())


@pytest.mark.parametrize("names", [["other.example"], ["127.0.0.1"], ["*.example.org"]])
def test_a_certificate_for_another_name(
    authority: trustme.CA, trust: ssl.SSLContext, names: list[str]
) -> None:
    async def work() -> None:
        server = tls_server(authority, *names)
        async with server, fetcher(server, trust=trust) as client:
            error = await failure(get(client, url_of(server)))
            assert error.code == "image_fetch_failed"
            assert "the server's certificate is not valid for its name" in error.message
            assert server.exchanges == []

    run(work())


def test_a_certificate_of_an_unknown_authority(authority: trustme.CA) -> None:
    async def work() -> None:
        server = tls_server(authority, NAME)
        for trust in (ssl.create_default_context(), None):
            async with server, fetcher(server, trust=trust) as client:
                error = await failure(get(client, url_of(server)))
                assert "certificate is not valid" in error.message
                assert server.exchanges == []

    run(work())


def test_a_redirect_never_leaves_https(authority: trustme.CA, trust: ssl.SSLContext) -> None:
    async def work() -> None:
        server = tls_server(authority, NAME)
        async with server, PictureServer({"/a.png": picture()}) as plain:
            server.routes["/down"] = redirect(url_of(plain))
            server.routes["/same"] = redirect(f"//{NAME}:{server.port}/a.png")
            plain.routes["/up"] = redirect(url_of(server))
            ports = {"allowed_media_ports": (server.port, plain.port)}
            async with fetcher(server, trust=trust, **ports) as client:
                error = await failure(get(client, url_of(server, "/down")))
                assert error.code == "media_policy_violation"
                assert "from https to http" in error.message
                assert plain.num_connections == 0
                assert await get(client, url_of(server, "/same")) == PICTURE
                assert await get(client, url_of(plain, "/up")) == PICTURE

    run(work())


@pytest.mark.parametrize("moment", ["instead of the answer", "amid the picture"])
def test_tls_that_breaks_after_the_handshake(
    authority: trustme.CA, trust: ssl.SSLContext, moment: str
) -> None:
    """A record that no key of theirs has made."""

    async def broken(exchange: Exchange) -> None:
        if moment == "amid the picture":
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nabc")
        raw = exchange.writer.transport._ssl_protocol._transport
        raw.write(b"\x17\x03\x03\x00\x40" + bytes(64))

    async def work() -> None:
        server = tls_server(authority, NAME)
        server.routes["/a.png"] = broken
        async with server, fetcher(server, trust=trust) as client:
            error = await failure(get(client, url_of(server)))
        assert error.code == "image_fetch_failed"
        assert error.message == "image 0: the server broke off or does not speak HTTP"

    run(work())


def test_a_server_that_wants_a_certificate_of_ours(
    authority: trustme.CA, trust: ssl.SSLContext
) -> None:
    """By TLS 1.3 it says so after the handshake."""

    async def work() -> None:
        server = tls_server(authority, NAME)
        assert server.ssl_context is not None
        server.ssl_context.verify_mode = ssl.CERT_REQUIRED
        async with server, fetcher(server, trust=trust) as client:
            error = await failure(get(client, url_of(server)))
        assert error.code == "image_fetch_failed"

    run(work())


def test_a_server_that_does_not_speak_tls_or_never_answers(trust: ssl.SSLContext) -> None:
    async def work() -> None:
        plain = PictureServer({"/a.png": picture()})
        async with plain, fetcher(plain, trust=trust, connect_timeout_s=0.3) as client:
            error = await failure(get(client, f"https://{NAME}:{plain.port}/a.png"))
            assert error.code == "image_fetch_failed"

        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts in the kernel only
            port = silent.getsockname()[1]
            client = fetcher(PictureServer(port=port), trust=trust, connect_timeout_s=0.3)
            async with client:
                error = await failure(get(client, f"https://{NAME}:{port}/a.png"))
            assert error.message == "image 0: connect_timeout_s is 0.3, there was no connection"

    run(work())

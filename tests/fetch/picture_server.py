"""A web server on loopback that does exactly what a test tells it, and names that lead to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address
from typing import Any, TypeVar

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.addresses import IpAddress, PublicAddresses
from pyvlm.media.fetch import ImageFetcher
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source import parse_image_source

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4  # fetching does not look inside
SERVED = IPv4Address("127.0.0.1")  # plays the public address
HANG_GUARD_S = 30

Result = TypeVar("Result")
Route = Callable[["Exchange"], Awaitable[None]]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    async def guarded() -> Result:
        async with asyncio.timeout(HANG_GUARD_S):
            return await work

    return asyncio.run(guarded())


@dataclass
class Exchange:
    """One request and the way to answer it."""

    target: str
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    num_sent: int = 0

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.num_sent += len(data)

    async def answer(
        self, body: bytes = PICTURE, *headers: str, status: str = "200 OK", length: bool = True
    ) -> None:
        lines = [f"HTTP/1.1 {status}", *headers, *([f"Content-Length: {len(body)}"] * length)]
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def close(self) -> None:
        self.writer.close()


def picture(body: bytes = PICTURE, *headers: str, status: str = "200 OK") -> Route:
    return lambda exchange: exchange.answer(body, *headers, status=status)


def redirect(location: str, status: str = "302 Found") -> Route:
    return lambda exchange: exchange.answer(b"", f"Location: {location}", status=status)


def raw(data: bytes) -> Route:
    """These bytes, then the end of the connection."""

    async def route(exchange: Exchange) -> None:
        await exchange.send(data)
        exchange.close()

    return route


@dataclass
class PictureServer:
    """Routes by target; counts connections and keeps every request."""

    routes: dict[str, Route] = field(default_factory=dict)
    address: str = "127.0.0.1"
    port: int = 0
    ssl_context: ssl.SSLContext | None = None
    num_connections: int = 0
    num_open: int = 0
    exchanges: list[Exchange] = field(default_factory=list)

    async def __aenter__(self) -> PictureServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(
            self._serve, self.address, self.port, ssl=self.ssl_context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Returns once no connection is open."""
        while self.num_open:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        self.num_open += 1
        try:
            while not writer.is_closing():
                await self._exchange(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            self.num_open -= 1
            writer.close()
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        method, target, _ = head[0].split(" ")
        assert method == "GET"
        exchange = Exchange(target, headers, writer)
        self.exchanges.append(exchange)
        await self.routes.get(target, picture(b"", status="404 Not Found"))(exchange)


class Names:
    """A resolver: each look-up of a name takes its next answer, the last one stays."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = {name.replace("_", "."): [answer] for name, answer in answers.items()}
        self.asked: list[str] = []

    def then(self, name: str, answer: Sequence[str]) -> Names:
        self.answers[name].append(answer)
        return self

    async def resolve(self, name: str, port: int) -> Sequence[IpAddress]:  # noqa: ARG002
        self.asked.append(name)
        answers = self.answers.get(name)
        if answers is None:
            raise OSError("no such name")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(text) for text in answer]


class ServedIsPublic(PublicAddresses):
    """The default rules, with addresses of the tests' own servers taken for public ones."""

    def __init__(self, *served: IpAddress) -> None:
        self.served = served or (SERVED,)

    def refusal(self, address: IpAddress) -> str | None:
        return None if address in self.served else super().refusal(address)


NAME = "pictures.example"


def fetcher(
    server: PictureServer,
    names: Names | None = None,
    *,
    trust: ssl.SSLContext | None = None,
    permission: PublicAddresses | None = None,
    policy_type: type[MediaPolicy] = MediaPolicy,
    **limits: Any,
) -> ImageFetcher:
    """One that may fetch from NAME at the server's port."""
    settings: dict[str, Any] = {
        "allowed_media_domains": (NAME,),
        "allowed_media_ports": (server.port,),
        "connect_timeout_s": 10,
        "fetch_timeout_s": 20,
    }
    return ImageFetcher(
        policy_type(**(settings | limits)),
        resolver=names or Names(pictures_example=["127.0.0.1"]),
        permission=permission or ServedIsPublic(),
        # Trusting nobody is quicker to set up than trusting the system's authorities.
        ssl_context=trust or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )


def url_of(server: PictureServer, target: str = "/a.png", host: str = NAME) -> str:
    scheme = "https" if server.ssl_context else "http"
    return f"{scheme}://{host}:{server.port}{target}"


async def get(fetcher: ImageFetcher, url: str, index: int = 0) -> bytes:
    return await fetcher.fetch(parse_image_source(url, index), index)


async def failure(work: Awaitable[object]) -> PyvlmError:
    """The typed error that `work` ends with; nothing of a library or of a socket is in it."""
    with pytest.raises(PyvlmError) as caught:
        await work
    error = caught.value
    for word in ("httpcore", "h11", "Errno", "0x", "127.0.0", "Traceback", "object at"):
        assert word not in error.message
    assert error.__suppress_context__ or error.__context__ is None
    return error

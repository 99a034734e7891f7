"""Look-up and connection as one step: what was checked is what is connected to.

The pool asks `PinnedBackend` for each new connection and nobody else opens one. A name is resolved
once for it, every address found must be permitted, and one of those very addresses is dialled. TLS
is wrapped around the stream afterwards, by the pool, with the name: certificate and SNI are the
name's, the address is ours. A connection that is used again stays at the address that was checked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import httpcore2

from pyvlm.media.addresses import AddressPermission, IpAddress, parse_address

MAX_LOOKUPS = 8  # at a time; a look-up that hangs keeps its thread until the system gives up
MAX_ATTEMPTS = 4  # addresses of one name


class Resolver(Protocol):
    async def resolve(self, name: str, port: int) -> Sequence[IpAddress]:
        """All addresses of `name`; OSError if there is none."""


class SystemResolver:
    """The system's look-up in threads of its own, so that slow names block nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="pyvlm-resolve")

    async def resolve(self, name: str, port: int) -> Sequence[IpAddress]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name, port)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str, port: int) -> list[IpAddress]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(parse_address(str(entry[4][0])) for entry in found))


class AddressRefusedError(Exception):
    """The host is, or resolves to, an address that may not be connected to."""


class NameNotFoundError(Exception):
    """The host has no address."""


class CertificateRefusedError(Exception):
    """The server has no valid certificate for the name."""


class WatchedStream(httpcore2.AsyncNetworkStream):
    """Knows whether an answer was there before its request.

    A server that sends more than it announced leaves bytes that the pool would take for the answer
    to the next request on the same connection, another user's picture.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.has_read = False  # since the last write

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.has_read = True
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self.has_read = False
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except httpcore2.ConnectError as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise CertificateRefusedError from None
            raise
        return WatchedStream(stream)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Raises AddressRefusedError, NameNotFoundError or the pool's own connection errors."""

    def __init__(self, resolver: Resolver, permission: AddressPermission) -> None:
        self._resolver = resolver
        self._permission = permission
        self._tcp = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """`timeout` covers look-up and all attempts; each attempt has its share of what is left."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                addresses = await self._permitted_addresses(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        failure: Exception | None = None
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            share = None if deadline is None else max(0.0, deadline - loop.time()) / left
            try:
                stream = await self._tcp.connect_tcp(
                    str(address), port, share, local_address, socket_options
                )
                return WatchedStream(stream)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure or NameNotFoundError

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _permitted_addresses(self, host: str, port: int) -> Sequence[IpAddress]:
        """One refused address refuses the name: the next look-up could give just that one."""
        addresses = await self._addresses(host, port)
        for address in addresses:
            if self._permission.refusal(address) is not None:
                raise AddressRefusedError
        return addresses[:MAX_ATTEMPTS]

    async def _addresses(self, host: str, port: int) -> Sequence[IpAddress]:
        try:
            return [parse_address(host)]
        except ValueError:
            pass
        try:
            return await self._resolver.resolve(host, port)
        except (OSError, UnicodeError):
            raise NameNotFoundError from None

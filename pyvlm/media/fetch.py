"""The pictures of a request as bytes, from wherever its URLs point, under the policy.

One path for every kind of source and every caller. HTTP is spoken by httpcore2, which follows no
redirect, keeps no cookie, reads no proxy from the environment and decompresses nothing; redirects
are followed here, each through the same checks as the first URL. No text of a library and no
address found by look-up reaches a message.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import TracebackType

import httpcore2

from pyvlm.errors import PyvlmError
from pyvlm.media.addresses import AddressPermission, PublicAddresses
from pyvlm.media.fetch_bytes import ByteBudget
from pyvlm.media.fetch_network import (
    AddressRefusedError,
    CertificateRefusedError,
    NameNotFoundError,
    PinnedBackend,
    Resolver,
    SystemResolver,
)
from pyvlm.media.ledger import ByteLease
from pyvlm.media.policy import ANY_PUBLIC_HOST, MediaPolicy
from pyvlm.media.source import (
    DataSource,
    FileSource,
    HttpSource,
    ImageSource,
    fetch_failed,
    parse_image_source,
    redirect_source,
)
from pyvlm.media.source_data import decode_data_url
from pyvlm.media.source_files import read_allowed_file

MAX_CONNECTIONS = 64
MAX_IDLE_CONNECTIONS = 16
IDLE_EXPIRY_S = 15.0
NUM_THREADS = 4  # for files and base64

_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNKS_PER_TURN = 64  # read before other tasks get a turn, however small the server makes them


class ImageFetcher:
    """Owns its connections and threads: use it as an async context manager, in one event loop.

    `resolver`, `permission` and `ssl_context` default to the system's look-up, public addresses
    only, and the system's trusted certificates.
    """

    def __init__(
        self,
        policy: MediaPolicy,
        *,
        resolver: Resolver | None = None,
        permission: AddressPermission | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._own_resolver: SystemResolver | None = None
        if resolver is None:
            resolver = self._own_resolver = SystemResolver()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or httpcore2.default_ssl_context(),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_EXPIRY_S,
            network_backend=PinnedBackend(resolver, permission or PublicAddresses()),
        )
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="pyvlm-fetch")
        self._turns = asyncio.Semaphore(NUM_THREADS)

    async def __aenter__(self) -> ImageFetcher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._own_resolver is not None:
            self._own_resolver.close()

    async def fetch_all(self, urls: Sequence[str], lease: ByteLease | None = None) -> list[bytes]:
        """The pictures of one request, in order; `lease` grows by what arrives and stays so.

        Number and spelling of all URLs are judged before anything is fetched. The first failure
        ends the other fetches.
        """
        self._policy.require_within("max_images", len(urls), "images in the request", None)
        sources = [parse_image_source(url, index) for index, url in enumerate(urls)]
        budget = ByteBudget(self._policy, lease)
        tasks = [
            asyncio.create_task(self.fetch(source, index, budget))
            for index, source in enumerate(sources)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def fetch(
        self, source: ImageSource, index: int = 0, budget: ByteBudget | None = None
    ) -> bytes:
        """One picture. `budget` is that of its request, if there are more."""
        budget = budget or ByteBudget(self._policy)
        if isinstance(source, HttpSource):
            return await self._fetch_http(source, index, budget)
        data = await self._in_thread(source, index)
        budget.picture(index).take(len(data))
        return data

    async def _in_thread(self, source: DataSource | FileSource, index: int) -> bytes:
        """`fetch_timeout_s` begins with its turn; how long it waits for that, its request says."""
        policy = self._policy
        work = (
            partial(decode_data_url, source.url, policy, index)
            if isinstance(source, DataSource)
            else partial(read_allowed_file, source, policy, index)
        )
        try:
            async with self._turns, asyncio.timeout(policy.fetch_timeout_s):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work)
        except TimeoutError:
            raise self._too_slow(index) from None

    async def _fetch_http(self, source: HttpSource, index: int, budget: ByteBudget) -> bytes:
        try:
            async with asyncio.timeout(self._policy.fetch_timeout_s):
                return await self._follow(source, index, budget)
        except TimeoutError:
            raise self._too_slow(index) from None
        except Exception as error:
            raise _typed(error, self._policy, index) from None

    async def _follow(self, source: HttpSource, index: int, budget: ByteBudget) -> bytes:
        for _ in range(self._policy.max_redirects + 1):
            self._require_allowed(source, index)
            async with self._answer(source) as response:
                if response.status not in _REDIRECTS:
                    return await _body(response, index, budget)
                location = _only_header(response, b"location")
            if location is None:
                raise fetch_failed(index, "the server redirects without saying where to")
            source = redirect_source(source, location, index)
        seen = f"{self._policy.max_redirects + 1} redirects"
        raise self._policy.violation("max_redirects", seen, index)

    @asynccontextmanager
    async def _answer(self, source: HttpSource) -> AsyncIterator[httpcore2.Response]:
        """The answer to one request, its body still to be read.

        A connection whose answer came before the request is dropped and another one taken.
        """
        timeout = {"timeout": {"connect": self._policy.connect_timeout_s}}
        for _ in range(MAX_IDLE_CONNECTIONS + 1):
            async with self._pool.stream(
                "GET", _url(source), headers=_headers(source), extensions=timeout
            ) as response:
                if response.extensions["network_stream"].has_read:
                    yield response
                    return
        raise httpcore2.RemoteProtocolError

    def _require_allowed(self, source: HttpSource, index: int) -> None:
        policy, allowed = self._policy, self._policy.allowed_media_domains
        if str(source.host) not in allowed and ANY_PUBLIC_HOST not in allowed:
            raise policy.violation("allowed_media_domains", f"host {source.host}", index)
        if source.port not in policy.allowed_media_ports:
            raise policy.violation("allowed_media_ports", f"port {source.port}", index)

    def _too_slow(self, index: int) -> PyvlmError:
        limit = self._policy.fetch_timeout_s
        return fetch_failed(index, f"fetch_timeout_s is {limit:g}, the picture was not complete")


def _url(source: HttpSource) -> httpcore2.URL:
    return httpcore2.URL(
        scheme=source.scheme, host=str(source.host), port=source.port, target=source.target
    )


def _headers(source: HttpSource) -> dict[str | bytes, str | bytes]:
    return {
        "Host": source.authority,
        "User-Agent": "pyvlm",
        "Accept": "image/*",
        "Accept-Encoding": "identity",
    }


def _only_header(response: httpcore2.Response, name: bytes) -> bytes | None:
    """The header's value; None if it is absent or the server contradicts itself."""
    values = {value for key, value in response.headers if key.lower() == name}
    return values.pop() if len(values) == 1 else None


async def _body(response: httpcore2.Response, index: int, budget: ByteBudget) -> bytes:
    if response.status != 200:
        raise fetch_failed(index, f"the server answered with status {response.status}")
    for key, value in response.headers:
        if key.lower() == b"content-encoding" and value.strip().lower() != b"identity":
            raise fetch_failed(index, "the server compressed the answer, which was not asked for")
    picture = budget.picture(index)
    length = _only_header(response, b"content-length")
    if length is not None and length.isdigit():
        picture.announce(int(length))
    data = bytearray()
    num_chunks = 0
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            picture.take(len(chunk))
            data += chunk
            num_chunks += 1
            if num_chunks % _CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
    return bytes(data)


def _typed(error: Exception, policy: MediaPolicy, index: int) -> PyvlmError:
    """What a failed fetch becomes; anything that is not listed is a fault of ours."""
    if isinstance(error, PyvlmError):
        return error
    if isinstance(error, AddressRefusedError):
        return PyvlmError(
            f"image {index}: the host is not a public address, only those are connected to",
            code="media_policy_violation",
            param=f"images[{index}]",
        )
    if isinstance(error, NameNotFoundError):
        return fetch_failed(index, "the host has no address")
    if isinstance(error, CertificateRefusedError):
        return fetch_failed(index, "the server's certificate is not valid for its name")
    if isinstance(error, httpcore2.ConnectTimeout):
        limit = policy.connect_timeout_s
        return fetch_failed(index, f"connect_timeout_s is {limit:g}, there was no connection")
    if isinstance(error, httpcore2.ConnectError):
        return fetch_failed(index, "no connection to the server")
    # The library passes TLS that breaks after the handshake on as it is.
    if isinstance(error, (httpcore2.NetworkError, httpcore2.ProtocolError, ssl.SSLError)):
        return fetch_failed(index, "the server broke off or does not speak HTTP")
    raise error

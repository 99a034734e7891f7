"""One server process from bound socket to exit status.

Order. The socket is bound first, so that readiness says `loading` while the model loads. A signal
stops admission and starts the drain; what is unfinished after the shutdown timeout is cancelled. A
second signal cancels at once. Only then the socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.server.app import create_app
from pyvlm.server.leases import log_leases
from pyvlm.server.protocol import ConnectionLimits, protocol_class
from pyvlm.server.service import Service
from pyvlm.server.unix import bind_path

logger = logging.getLogger("pyvlm.server")

EXIT_OK = 0
EXIT_INTERRUPTED = 130
_KEEP_ALIVE_S = 10
_LAST_WORDS_S = 2  # for answers that are ready but not yet read
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Load = Callable[[threading.Event], AsyncEngine]  # blocks; gives up soon after the event


def run_server(service: Service, listener: socket.socket, load: Load) -> int:
    """Until a signal; the exit status. Raises what kept the model from loading."""
    return asyncio.run(_Run(service, listener, load).run())


class _Server(uvicorn.Server):
    """Signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Run:
    def __init__(self, service: Service, listener: socket.socket, load: Load) -> None:
        self._service = service
        self._listener = listener
        self._load = load
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._server = make_server(service)
        self._status = EXIT_OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGUSR1, log_leases, self._service)
        name = self._service.config.model_names[0]
        logger.info("listening on %s, loading %s", _place(self._listener), name)
        serving = asyncio.create_task(self._server.serve([self._listener]))
        serving.add_done_callback(lambda _: self._stop.set())
        async with self._service:
            try:
                engine = await self._loaded()
                if engine is not None:
                    await self._serve(engine)
            finally:
                self._server.should_exit = True
                await serving
        return self._status

    async def _loaded(self) -> AsyncEngine | None:
        """None: told to stop first."""
        give_up = threading.Event()
        loading = _in_daemon(lambda: self._load(give_up))
        loading.add_done_callback(_retrieve)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                return loading.result()
            give_up.set()
            await asyncio.wait((loading,), timeout=_LAST_WORDS_S)
            return None
        finally:
            stopped.cancel()

    async def _serve(self, engine: AsyncEngine) -> None:
        async with engine:
            self._service.open(engine)
            logger.info(
                "ready: %s, %d slots of %d positions, loaded in %.1f s",
                self._service.config.model_names[0],
                engine.num_slots,
                engine.capacity,
                engine.load_s,
            )
            await self._stop.wait()
            await self._drain()

    async def _drain(self) -> None:
        timeout_s = self._service.config.shutdown_timeout_s
        logger.info("draining, for up to %g s", timeout_s)
        idle = asyncio.ensure_future(self._service.idle())
        force = asyncio.ensure_future(self._force.wait())
        await asyncio.wait((idle, force), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            logger.warning("cancelling %d requests", self._service.num_active)
        for task in (idle, force):
            task.cancel()

    def _on_signal(self, number: int) -> None:
        self._service.stop_admitting()
        if self._stop.is_set():
            self._server.force_exit = True
            self._force.set()
            if number == signal.SIGINT:
                self._status = EXIT_INTERRUPTED
            # Whatever may still hang: the next signal ends the process.
            for each in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)
        self._stop.set()


def make_server(service: Service) -> uvicorn.Server:
    """Give its `serve` a bound socket; `should_exit` ends it. Handles no signal."""
    config = service.config
    limits = ConnectionLimits(
        config.max_connections, config.header_timeout_s, config.write_timeout_s
    )
    of_uvicorn = uvicorn.Config(
        create_app(service),
        http=protocol_class(limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    return _Server(of_uvicorn)


def _retrieve(loading: asyncio.Future[AsyncEngine]) -> None:
    """Whoever was told to stop does not ask how the load ended; the loop must not complain."""
    if not loading.cancelled():
        loading.exception()


def _in_daemon(function: Callable[[], AsyncEngine]) -> asyncio.Future[AsyncEngine]:
    """In a thread that the process does not wait for at its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[AsyncEngine] = loop.create_future()

    def settle(engine: AsyncEngine | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        elif engine is not None:
            future.set_result(engine)

    def work() -> None:
        try:
            engine = function()
        except BaseException as error:
            arguments: tuple[AsyncEngine | None, BaseException | None] = (None, error)
        else:
            arguments = (engine, None)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, *arguments)

    threading.Thread(target=work, name="pyvlm-load", daemon=True).start()
    return future


def _place(listener: socket.socket) -> str:
    address = listener.getsockname()
    if isinstance(address, str):
        return address
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int, uds: str | None) -> socket.socket:
    """A bound socket; uvicorn listens on it."""
    if uds is not None:
        return bind_path(uds)
    if not 0 <= port <= 65535:
        raise PyvlmError(
            f"port must be from 0 to 65535, not {port}", code="invalid_parameter", param="port"
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(f"{host} port {port}", error) from None
    return listener


def _cannot_listen(where: str, error: OSError | UnicodeError) -> PyvlmError:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return PyvlmError(
            f"cannot listen on {where}: another program does; stop it, or choose another --port",
            code="address_in_use",
            param="port",
        )
    reason = getattr(error, "strerror", None) or "it is no address"
    return PyvlmError(f"cannot listen on {where}: {reason}", code="invalid_parameter", param="port")

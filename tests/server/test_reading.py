"""Clients that read nothing, or slowly: what they hold on to, and for how long."""

from __future__ import annotations

import asyncio
import time

import pytest
from starlette.responses import JSONResponse
from starlette.types import Message, Scope, Send

from pyvlm.server.limits import Body
from pyvlm.server.protocol import Unread
from pyvlm.server.record import RequestRecord, open_record
from pyvlm.server.work import Work
from tests.server.conftest import Host, Running, eventually
from tests.server.raw import connection, get, read_response

SMALL = 4096  # bytes of a socket's buffers: what is not read soon lies in the server
ASK = get("/openapi.json")  # more than 10,000 bytes to read


@pytest.fixture(scope="module")
def one(host: Host) -> Running:
    """Room for a single connection."""
    return host.serve(
        send_buffer=SMALL, write_timeout_s=0.5, header_timeout_s=60.0, max_connections=1
    )


def is_free(server: Running) -> bool:
    with connection(server.url) as raw:
        raw.sendall(get("/health", "Connection: close"))
        try:
            return read_response(raw)[0] == 200
        except ConnectionError:
            return False


@pytest.mark.parametrize(
    "requests",
    [
        ASK * 3 + get("/openapi.json", "Connection: close"),
        ASK * 4,
        ASK * 50,
        ASK * 4 + b"no HTTP at all\r\n\r\n",
    ],
    ids=["closing", "idle", "pipelined", "garbage"],
)
def test_whoever_reads_nothing_loses_the_place(one: Running, requests: bytes) -> None:
    assert eventually(lambda: is_free(one))
    with connection(one.url, SMALL) as raw:
        raw.sendall(requests)
        assert eventually(lambda: not is_free(one))
        assert eventually(lambda: is_free(one), 8)
        assert one.becomes_idle()


def test_an_unread_answer_holds_nothing_of_its_request(host: Host) -> None:
    service = host.serve().service
    held = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        held.append((message["type"], service.ledger.used_bytes))

    async def work(record: RequestRecord, send: Send) -> JSONResponse:
        del record, send
        held.append(("work", service.ledger.used_bytes))
        return JSONResponse({})

    async def answer() -> None:
        scope: Scope = {"method": "POST", "path": "/", "headers": [], "type": "http"}
        open_record(scope)
        body = scope["pyvlm.body"] = Body(service.ledger, "test")
        body.append(b"123")
        body.images.grow(4)
        await Work(service, work)(scope, receive, send)

    host.run(answer())
    assert held == [("work", 7), ("http.response.start", 0), ("http.response.body", 0)]


def test_a_slow_reader_is_not_cut(host: Host) -> None:
    """Slower than header_timeout_s and write_timeout_s together, but never silent for as long."""
    server = host.serve(send_buffer=SMALL, write_timeout_s=2.0, header_timeout_s=0.5)
    with connection(server.url, SMALL) as raw:
        raw.sendall(ASK)
        head_and_body = len(raw.recv(1)) + len(read_response(raw)[1])
        count = 8
        raw.sendall(ASK * count)
        num_bytes = 0
        start = time.monotonic()
        while num_bytes < count * head_and_body:
            time.sleep(0.1)
            num_bytes += (size := len(raw.recv(4096)))
            assert size, f"cut after {num_bytes} bytes and {time.monotonic() - start:.1f} s"


def test_bytes_that_leave_start_the_time_again() -> None:
    unread = Unread()
    told = [unread.seconds(size, at) for size, at in ((9, 1), (9, 2), (12, 3), (8, 4), (8, 6))]
    assert told == [0, 1, 2, 0, 2]
    unread.reset()
    assert unread.seconds(8, 9) == 0

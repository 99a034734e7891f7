"""HTTP by hand, for clients that misbehave."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HANG_S = 60


@contextmanager
def connection(url: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as raw:
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(HANG_S)
        raw.connect((host, int(port)))
        yield raw


def post(path: str, body: Any, *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def get(path: str, *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: test", *headers, "", ""]).encode()


def read_response(raw: socket.socket) -> tuple[int, bytes]:
    """Status and body of one response with a length; status 0: the connection ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (chunk := raw.recv(65536))
        if not chunk:
            return 0, data
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
    while len(body) < length:
        body += (chunk := raw.recv(65536))
        if not chunk:
            break
    return int(head.split(b" ")[1]), body


def is_closed(raw: socket.socket) -> bool:
    """Whether the other side ends the connection; waits for it."""
    try:
        while raw.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True

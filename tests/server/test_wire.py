"""Bodies to objects: where it is done, and without a copy."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pyvlm.server import wire
from pyvlm.server.schema import TokenizeRequest
from pyvlm.server.wire import parse


@pytest.mark.parametrize(("num_chars", "in_thread"), [(10, False), (2 << 20, True)])
def test_large_bodies_are_parsed_in_a_thread(
    num_chars: int, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytearray(b'{"prompt": "%s"}' % (b"a" * num_chars))
    seen: list[tuple[Any, threading.Thread]] = []
    from_json = wire.from_json

    def noting(data: Any) -> Any:
        seen.append((data, threading.current_thread()))
        return from_json(data)

    monkeypatch.setattr(wire, "from_json", noting)
    asked = asyncio.run(parse(TokenizeRequest, body))
    assert asked.prompt == "a" * num_chars
    ((data, thread),) = seen
    assert data is body
    assert (thread is not threading.current_thread()) == in_thread

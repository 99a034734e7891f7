"""A server over the real model whose calls a test can make fail, and streams that go on beside."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from pyvlm import _core_testing
from tests.server.conftest import HANG_S, Host, Running, eventually
from tests.server.engines import engine_over, tiny_runner
from tests.server.events import Streamed, parse_events
from tests.server.pictures import image_part, text_part

PATH = "/v1/chat/completions"
PICTURE = [image_part("red"), text_part()]
NUM_TOKENS = 100  # of a stream beside
_PAUSE_MS = 8


class Faulty:
    """Owns host, engine and one server. `arm` adds a fault that counts from then on."""

    def __init__(self) -> None:
        self.runner = _core_testing.FaultRunner(tiny_runner())
        self.host = Host(engine=engine_over(self.runner))
        self.server = self.host.serve()

    def arm(self, call: str, action: str = "fail", **how: Any) -> None:
        self.runner.add(_core_testing.Fault(call, action, **how))

    def endless(self, content: Any, **fields: Any) -> dict[str, Any]:
        ends = self.host.engine.frontend.stop_token_ids
        return {
            "model": "tiny",
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": NUM_TOKENS,
            "logit_bias": {str(i): -100 for i in ends},
            **fields,
        }

    @contextmanager
    def beside(self) -> Iterator[list[Beside]]:
        """A text in slot 0 and a picture in slot 1, decoding slowly until each has its tokens."""
        with httpx.Client(base_url=self.server.url, timeout=HANG_S) as client:
            self.arm("decode", "delay", count=NUM_TOKENS, delay_ms=_PAUSE_MS)
            streams = []
            try:
                for content in ("Tell me.", PICTURE):
                    streams.append(Beside(client, self.endless(content, stream=True)))
                yield streams
            finally:
                for stream in streams:
                    stream.close()

    def quiet(self) -> list[str]:
        """What the streams beside say without any fault."""
        bodies = [self.endless("Tell me."), self.endless(PICTURE)]
        answers = [self.server.client.post(PATH, json=body).json() for body in bodies]
        return [answer["choices"][0]["message"]["content"] for answer in answers]


class Beside:
    """A stream that has begun; `finish` reads the rest."""

    def __init__(self, client: httpx.Client, body: dict[str, Any]) -> None:
        self._context = client.stream("POST", PATH, json=body)
        self._response = self._context.__enter__()
        assert self._response.status_code == 200
        self._lines = self._response.iter_raw()
        self._data = next(self._lines)

    def finish(self) -> Streamed:
        self._data += b"".join(self._lines)
        return parse_events(self._data.decode())

    def close(self) -> None:
        self._context.__exit__(None, None, None)


def resources() -> tuple[int, int]:
    """Threads and open descriptors of this process, the server's own included. Threads for files
    and base64 come as they are needed, up to four, and stay."""
    threads = [one for one in threading.enumerate() if not one.name.startswith("pyvlm-fetch")]
    return len(threads), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def are_back(held: tuple[int, int]) -> bool:
    """Waits until no more is open than `held`. Fewer may be: idle connections of other servers in
    this process end meanwhile."""
    return eventually(lambda: all(now <= then for now, then in zip(resources(), held, strict=True)))


def count_of(server: Running, name: str) -> float:
    """A sample of /metrics, labels as they are written there; 0 if there is none yet."""
    for line in server.client.get("/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    return 0.0

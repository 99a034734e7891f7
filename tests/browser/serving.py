"""A `pyvlm serve` of its own process, for a browser to talk to."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    key: str | None = None

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer, whatever its status."""
        status, data, _ = self.fetch(path, body)
        assert status == 200, (status, data)
        return json.loads(data)

    def fetch(
        self, path: str, body: dict[str, Any] | None = None, **options: Any
    ) -> tuple[int, bytes, Any]:
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, **options)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers


@contextmanager
def serving(model: str | Path, *flags: str, log: Path, key: str | None = None) -> Iterator[Server]:
    port = _free_port()
    command = [sys.executable, "-m", "pyvlm.cli.main", "serve", str(model), "--port", str(port)]
    if key is not None:
        flags = (*flags, "--api-key", key)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, *flags], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process,
    ):
        try:
            server = Server(f"http://127.0.0.1:{port}", key)
            _wait_until_ready(server, process, log)
            yield server
        finally:
            _stop(process)


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            if server.fetch("/health")[0] == 200:
                return
        except OSError:
            pass  # not listening yet
        time.sleep(0.1)
    raise AssertionError(f"not ready after {START_TIMEOUT_S} s:\n{log.read_text(errors='replace')}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

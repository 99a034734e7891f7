"""`pyvlm serve` as a child process, and what can be seen of it from outside."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.server.conftest import eventually

COMMAND = [sys.executable, "-m", "pyvlm.cli.main", "serve"]
HANG_S = 120
PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
CLIENT = httpx.Client(timeout=HANG_S, limits=httpx.Limits(max_keepalive_connections=0))


class Process:
    """A server process; its stderr is read by a thread."""

    def __init__(self, *arguments: str, port: str = "0") -> None:
        self.child = subprocess.Popen(
            [*COMMAND, "tiny", "--port", port, *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.wait(HANG_S)
        self._thread.join(HANG_S)
        assert self.child.stderr is not None
        self.child.stderr.close()

    @property
    def url(self) -> str:
        def seen() -> str | None:
            found = re.search(r"listening on (http://[\d.:]+)", "\n".join(self.lines))
            return found[1] if found else None

        assert eventually(lambda: seen() is not None, HANG_S), self.lines
        return seen() or ""

    def is_ready(self) -> bool:
        return eventually(lambda: status(self.url) == 200, HANG_S)

    def end(self) -> int:
        return self.child.wait(HANG_S)

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(line.rstrip("\n"))


def status(url: str) -> int | str:
    try:
        response = CLIENT.get(f"{url}/health")
    except httpx.HTTPError:
        return 0
    return 200 if response.status_code == 200 else response.json()["error"]["code"]


def endless(url: str, **fields: Any) -> dict[str, Any]:
    """Bans every token that could end the turn: those of the chat template."""
    asked = {"messages": [{"role": "assistant", "content": "x"}], "return_token_strs": True}
    told = CLIENT.post(f"{url}/tokenize", json=asked).json()
    ends = [
        token_id
        for token_id, token in zip(told["tokens"], told["token_strs"], strict=True)
        if token.startswith("<")
    ]
    return {**CHAT, "max_tokens": None, "logit_bias": dict.fromkeys(map(str, ends), -100), **fields}


def gauge(url: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", CLIENT.get(f"{url}/metrics").text, re.M)
    return float(found[1]) if found else -1.0


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

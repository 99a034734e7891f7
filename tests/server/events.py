"""Server-sent events as a client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Streamed:
    """All events of a stream."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    is_done: bool = False

    @property
    def error(self) -> dict[str, Any] | None:
        return self.chunks[-1].get("error") if self.chunks else None

    @property
    def usages(self) -> list[dict[str, Any]]:
        return [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        every = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return [choice for choice in every if choice["index"] == index]

    def text(self, index: int = 0) -> str:
        return "".join(
            choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
            for choice in self.choices(index)
        )

    def reasons(self, index: int = 0) -> list[str]:
        return [c["finish_reason"] for c in self.choices(index) if c["finish_reason"]]


def read_stream(response: httpx.Response) -> Streamed:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.text)


def parse_events(text: str) -> Streamed:
    streamed = Streamed()
    for block in _blocks(text):
        assert not streamed.is_done, "something came after [DONE]"
        if block.startswith(":"):
            streamed.comments.append(block[1:].strip())
        elif block == "data: [DONE]":
            streamed.is_done = True
        else:
            assert block.startswith("data: "), block
            streamed.chunks.append(json.loads(block.removeprefix("data: ")))
    return streamed


def _blocks(text: str) -> Iterable[str]:
    assert text.endswith("\n\n")
    return text.removesuffix("\n\n").split("\n\n")

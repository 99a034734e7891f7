"""What is known about one HTTP request; metrics and the log line are made of it at its end."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from pyvlm.outputs import Delta, Timings, Usage

_KEY = "pyvlm.record"
_ACCEPTABLE_ID = re.compile(rb"[A-Za-z0-9_.:\-]{1,128}\Z")
STAGES = (
    "queue",
    "fetch",
    "preprocess_wait",
    "decode_image",
    "transform",
    "encode",
    "prefill",
    "decode",
)


@dataclass(slots=True)
class ChoiceEnd:
    """How one choice finished."""

    index: int
    finish_reason: str
    usage: Usage
    timings: Timings


@dataclass(slots=True)
class RequestRecord:
    """Lives in the scope, from the first middleware on."""

    request_id: str
    method: str
    path: str
    arrived: float = field(default_factory=time.monotonic)
    status: int | None = None
    code: str | None = None  # of the error, if there was one
    answered: BaseException | None = None  # told to the client, and raised again
    is_gone: bool = False  # the client left before its answer was complete
    is_generation: bool = False
    is_stream: bool = False
    num_choices: int = 0
    num_images: int = 0
    image_bytes: int = 0
    fetch_s: float = 0.0
    until_engine_s: float = 0.0  # from arrival to the engine: body, parsing, fetching
    ends: list[ChoiceEnd] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # seconds between deltas of a choice

    @property
    def outcome(self) -> str:
        if self.code is not None:
            return "error"
        if self.is_gone:
            return "cancelled"
        return "ok" if self.status is not None and self.status < 400 else "error"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.arrived

    def note_end(self, index: int, delta: Delta) -> None:
        if delta.finish_reason and delta.usage and delta.timings:
            self.ends.append(ChoiceEnd(index, delta.finish_reason, delta.usage, delta.timings))

    def server_timing(self) -> str:
        """Stages in the form of the Server-Timing header, in milliseconds; of several choices the
        longest."""
        return ", ".join(f"{name};dur={_ms(value):g}" for name, value in self._stages().items())

    def fields(self) -> dict[str, Any]:
        """For the log. No text of the request, no address of the client."""
        known: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "outcome": self.outcome,
            "total_ms": _ms(self.seconds),
        }
        if self.code is not None:
            known["code"] = self.code
        if self.num_choices:
            known |= {"stream": self.is_stream, "choices": self.num_choices}
        if self.num_images:
            known |= {"images": self.num_images, "image_bytes": self.image_bytes}
        return known | self._of_ends()

    def _of_ends(self) -> dict[str, Any]:
        if not self.ends:
            return {}
        usages = [end.usage for end in self.ends]
        first = self.ends[0].timings
        return {
            "prompt_tokens": usages[0].prompt_tokens,
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "image_positions": usages[0].image_positions,
            "finish_reasons": [end.finish_reason for end in self.ends],
            "ttft_ms": _ms(self.until_engine_s + first.ttft),
            **{f"{name}_ms": _ms(value) for name, value in self._stages().items()},
        }

    def _stages(self) -> dict[str, float]:
        told = {
            name: max((getattr(end.timings, name) for end in self.ends), default=0.0)
            for name in STAGES
        }
        return told | {"fetch": self.fetch_s}


def open_record(scope: Scope) -> RequestRecord:
    record = RequestRecord(_request_id(scope), scope["method"], scope["path"])
    scope[_KEY] = record
    return record


def record_of(scope: Scope) -> RequestRecord:
    record: RequestRecord = scope[_KEY]
    return record


def _request_id(scope: Scope) -> str:
    """The client's own if it is a plain one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ACCEPTABLE_ID.match(value):
            return bytes(value).decode("ascii")
    return uuid.uuid4().hex


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)

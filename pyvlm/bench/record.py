"""What happened to one request. Times are seconds since the start of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RequestRecord:
    index: int
    num_images: int
    due: float  # when the schedule wanted it sent
    sent: float = 0.0
    ended: float = 0.0
    pieces: list[float] = field(default_factory=list)  # arrivals of pieces of text
    prompt_tokens: int | None = None  # as the server counts them
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None  # a short name to count by
    error_detail: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def kind(self) -> str:
        return "image" if self.num_images else "text"

    @property
    def num_tokens(self) -> int:
        """What the server says, else the number of pieces."""
        return len(self.pieces) if self.completion_tokens is None else self.completion_tokens

    @property
    def ttft(self) -> float | None:
        """To the first piece of text; a server that holds all text back is measured so."""
        return self.pieces[0] - self.sent if self.pieces else None

    @property
    def e2el(self) -> float:
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Mean time per token after the first."""
        if len(self.pieces) < 2 or self.num_tokens < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.num_tokens - 1)

    @property
    def itl(self) -> list[float]:
        """Gaps between pieces of text."""
        return [b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "num_images": self.num_images,
            "due_s": self.due,
            "sent_s": self.sent,
            "ttft_s": self.ttft,
            "e2el_s": self.e2el,
            "itl_s": self.itl,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "finish_reason": self.finish_reason,
            "error": self.error,
            "error_detail": self.error_detail,
        }

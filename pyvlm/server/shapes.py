"""OpenAI's response objects, as plain data."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyvlm.outputs import TokenLogprob, TopLogprob, Usage

Json = dict[str, Any]
_LEAST_LOGPROB = -9999.0  # for minus infinity, which JSON does not have


class Shape(Protocol):
    """How one endpoint writes its choices, whole or in pieces."""

    def whole(self, choices: Sequence[Json], usage: Json) -> Json: ...

    def choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None, reason: str | None
    ) -> Json: ...

    def chunk(self, choices: Sequence[Json]) -> Json: ...

    def opening(self, index: int) -> Json | None:
        """The choice of a first chunk that has no text, if the endpoint has such a thing."""
        ...

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json: ...

    def closing(self, index: int, reason: str) -> Json: ...


@dataclass(frozen=True, slots=True)
class ChatShape:
    request_id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Json], usage: Json) -> Json:
        return self._object("chat.completion", choices) | {"usage": usage}

    def choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None, reason: str | None
    ) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": _chat_logprobs(logprobs),
            "finish_reason": reason,
        }

    def chunk(self, choices: Sequence[Json]) -> Json:
        return self._object("chat.completion.chunk", choices)

    def opening(self, index: int) -> Json | None:
        return _chat_delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json:
        return _chat_delta(index, {"content": text}, _chat_logprobs(logprobs))

    def closing(self, index: int, reason: str) -> Json:
        return _chat_delta(index, {}, reason=reason)

    def _object(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": f"chatcmpl-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


@dataclass(frozen=True, slots=True)
class CompletionShape:
    request_id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    _offsets: dict[int, _Offsets] = field(default_factory=dict)

    def whole(self, choices: Sequence[Json], usage: Json) -> Json:
        return self.chunk(choices) | {"usage": usage}

    def choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None, reason: str | None
    ) -> Json:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, logprobs),
            "finish_reason": reason,
        }

    def chunk(self, choices: Sequence[Json]) -> Json:
        return {
            "id": f"cmpl-{self.request_id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def opening(self, index: int) -> Json | None:
        del index
        return None

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json:
        return self.choice(index, text, logprobs, None)

    def closing(self, index: int, reason: str) -> Json:
        return self.choice(index, "", None, reason)

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob] | None) -> Json | None:
        if logprobs is None:
            return None
        offsets = self._offsets.setdefault(index, _Offsets())
        return {
            "tokens": [_spelling(p) for p in logprobs],
            "token_logprobs": [_finite(p.logprob) for p in logprobs],
            "top_logprobs": [{_spelling(t): _finite(t.logprob) for t in p.top} for p in logprobs],
            "text_offset": [offsets.place(p.bytes) for p in logprobs],
        }


class _Offsets:
    """Where tokens begin in the text, in characters; inside a character counts as its start."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def place(self, token: bytes) -> int:
        at = self._at
        self._at += len(self._utf8.decode(token))
        return at


def usage_object(prompts: Iterable[Usage], choices: Iterable[Usage]) -> Json:
    """`prompts`: one usage for each prompt, however many choices it has. Logical counts, except
    image_positions: what the pictures take in the cache."""
    told = list(prompts)
    num_prompt = sum(usage.prompt_tokens for usage in told)
    num_completion = sum(usage.completion_tokens for usage in choices)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"image_positions": sum(u.image_positions for u in told)},
    }


def _chat_delta(
    index: int, delta: Json, logprobs: Json | None = None, reason: str | None = None
) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _chat_logprobs(logprobs: Sequence[TokenLogprob] | None) -> Json | None:
    if logprobs is None:
        return None
    content = [
        _chat_logprob(p) | {"top_logprobs": [_chat_logprob(t) for t in p.top]} for p in logprobs
    ]
    return {"content": content, "refusal": None}


def _chat_logprob(p: TokenLogprob | TopLogprob) -> Json:
    return {"token": p.token, "logprob": _finite(p.logprob), "bytes": list(p.bytes)}


def _spelling(p: TokenLogprob | TopLogprob) -> str:
    """Of a token that is no whole character its bytes, as OpenAI spells them: such tokens would
    all be the same key."""
    if p.token.encode("utf-8", "surrogatepass") == p.bytes:
        return p.token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in p.bytes)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)

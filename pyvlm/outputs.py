"""What comes back: deltas while it is generated, their sum in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyvlm.errors import PyvlmError

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely tokens of a position."""

    token_id: int
    token: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """`token` is `bytes` as UTF-8, with U+FFFD for what is no whole character; `logprob` is of the
    model's own distribution, before bias, penalties and temperature."""

    token_id: int
    token: str
    bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """prompt_tokens are logical: one per image. image_positions are cache positions, with
    markers. completion_tokens leave the end-of-sequence id out."""

    prompt_tokens: int
    completion_tokens: int
    image_positions: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. `queue` to `decode` are stages in order; `ttft` and `total` count from arrival.

    The three image stages before `encode` are of the pictures: the longest wait for a worker, and
    the sums of their decoding and transforming, which may overlap.
    """

    queue: float = 0.0  # for its turn and for a slot
    fetch: float = 0.0  # filled in by whoever fetched the pictures
    preprocess_wait: float = 0.0
    decode_image: float = 0.0
    transform: float = 0.0
    encode: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0  # from the first token to the last
    ttft: float = 0.0  # 0: there was no token
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """What became certain since the last delta; only the last one has the last three fields.

    A token whose text is withheld (half a character, perhaps a stop string) comes with the delta
    that has its text.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A whole generation. With an `error` the other fields hold what had come before it."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: PyvlmError | None = None

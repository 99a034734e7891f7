"""What a caller may choose about a generation. Validated here, by name, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyvlm.errors import PyvlmError
from pyvlm.generation import check_stops

MAX_SEED = 2**64 - 1
MIN_TOP_P = 1e-6  # far below what one token of any vocabulary weighs, and no float32 zero
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The defaults are greedy decoding up to an end-of-sequence id or the end of the capacity."""

    temperature: float = 0.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None  # None = what is left of the capacity
    stop: Sequence[str] = ()  # a single string is one stop string; kept as a tuple
    num_logprobs: int | None = None  # likeliest tokens to report with each; None = no report

    def __post_init__(self) -> None:
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, MIN_TOP_P, 1.0)
        _check_int("top_k", self.top_k, -1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not isinstance(self.logit_bias, Mapping):
            raise _invalid("logit_bias", "a mapping from token ids to numbers", self.logit_bias)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0)
            _check_float("logit_bias", bias, -100.0, 100.0)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0)
        if self.num_logprobs is not None:
            _check_int("num_logprobs", self.num_logprobs, 0, MAX_LOGPROBS)
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", check_stops(stops))


def _check_float(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return
    raise _invalid(name, f"a number from {low:g} to {high:g}", value)


def _check_int(name: str, value: object, low: int, high: int = 2**31 - 1) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    raise _invalid(name, f"an integer from {low} to {high}", value)


def _invalid(name: str, expected: str, value: object) -> PyvlmError:
    return PyvlmError(
        f"{name} must be {expected}, not {str(value)[:60]}", code="invalid_parameter", param=name
    )

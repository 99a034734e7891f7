"""What a caller may choose about a generation. Validated here, by name, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from pyvlm.errors import PyvlmError, shown
from pyvlm.generation import check_stops

MAX_SEED = 2**64 - 1
MIN_TOP_P = 1e-6  # far below what one token of any vocabulary weighs, and no float32 zero
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The defaults are greedy decoding up to an end-of-sequence id or the end of the capacity.

    Numbers may be of any kind, scalars of numpy for instance; they are kept as int and float.
    """

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
        for name, low, high in _FLOATS:
            self._keep(name, _as_float(name, getattr(self, name), low, high))
        for name, lowest, highest in _INTS:
            if (given := getattr(self, name)) is not None:
                self._keep(name, _as_int(name, given, lowest, highest))
        if self.top_k is None:
            raise _invalid("top_k", "an integer", None)
        self._keep("logit_bias", _as_bias(self.logit_bias))
        self._keep("stop", _as_stops(self.stop))

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


_FLOATS = (
    ("temperature", 0.0, 100.0),
    ("top_p", MIN_TOP_P, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)
_MAX_INT = 2**31 - 1
_INTS = (
    ("top_k", -1, _MAX_INT),
    ("seed", 0, MAX_SEED),
    ("max_tokens", 0, _MAX_INT),
    ("num_logprobs", 0, MAX_LOGPROBS),
)


def as_number(value: Any) -> float:
    """A number of any kind as a float; anything else, and what is beyond all floats, as NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _as_float(name: str, value: object, low: float, high: float) -> float:
    if low <= (number := as_number(value)) <= high:
        return number
    raise _invalid(name, f"a number from {low:g} to {high:g}", value)


def _as_int(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, bool) and isinstance(value, Integral) and low <= int(value) <= high:
        return int(value)
    raise _invalid(name, f"an integer from {low} to {high}", value)


def _as_bias(given: object) -> dict[int, float]:
    if not isinstance(given, Mapping):
        raise _invalid("logit_bias", "a mapping from token ids to numbers", given)
    return {
        _as_int("logit_bias", token_id, 0, _MAX_INT): _as_float("logit_bias", bias, -100.0, 100.0)
        for token_id, bias in given.items()
    }


def _as_stops(given: object) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise _invalid("stop", "a text or a list of texts", given)
    return check_stops(stops)


def _invalid(name: str, expected: str, value: object) -> PyvlmError:
    return PyvlmError(
        f"{name} must be {expected}, not {shown(value)}", code="invalid_parameter", param=name
    )

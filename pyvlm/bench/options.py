"""What a run against a server is made of: where to, what, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyvlm.errors import PyvlmError

Backend = Literal["openai-chat", "openai"]
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible endpoint. `openai` is the completions endpoint: text only."""

    base_url: str
    endpoint: str
    model: str
    backend: Backend = "openai-chat"
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + "/" + self.endpoint.lstrip("/")


@dataclass(frozen=True, slots=True)
class ImageSize:
    height: int
    width: int
    share: float = 1.0  # relative to those of the other sizes


@dataclass(frozen=True, slots=True)
class Workload:
    """`num_distinct_images` 0: every picture is new."""

    num_prompts: int = 100
    input_words: int = 128
    output_tokens: int = 64
    range_ratio: float = 0.0  # lengths are drawn from [n * (1 - r), n * (1 + r)]
    image_fraction: float = 0.0  # of the requests
    images_per_request: int = 1
    image_sizes: tuple[ImageSize, ...] = (ImageSize(512, 512),)
    num_distinct_images: int = 0
    temperature: float = 0.0
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _check("--num-prompts", self.num_prompts, 1, 1_000_000)
        _check("--random-input-len", self.input_words, 1, 1_000_000)
        _check("--random-output-len", self.output_tokens, 1, 1_000_000)
        _check("--random-range-ratio", self.range_ratio, 0, 1, open_above=True)
        _check("--image-fraction", self.image_fraction, 0, 1)
        _check("--random-mm-base-items-per-request", self.images_per_request, 1, 64)
        _check("--num-distinct-images", self.num_distinct_images, 0, 1_000_000)
        for size in self.image_sizes:
            _check("--random-mm-bucket-config", size.height, 1, 16384)
            _check("--random-mm-bucket-config", size.width, 1, 16384)
        if not all(size.share > 0 for size in self.image_sizes) or not self.image_sizes:
            raise invalid("--random-mm-bucket-config needs sizes with probabilities above 0")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Open loop: a finite rate, whatever the server does. Closed loop: an infinite rate and
    `max_concurrency` clients, each sending its next request when it has its answer."""

    request_rate: float = math.inf
    burstiness: float = 1.0  # shape of the gamma distribution of the gaps: 1 is Poisson
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        if not self.request_rate > 0:
            raise invalid(f"--request-rate must be above 0, not {self.request_rate:g}")
        if not 0 < self.burstiness < math.inf:
            raise invalid(f"--burstiness must be above 0 and finite, not {self.burstiness:g}")
        if self.max_concurrency is not None:
            _check("--max-concurrency", self.max_concurrency, 1, 100_000)


def invalid(message: str) -> PyvlmError:
    return PyvlmError(message, code="invalid_parameter")


def _check(name: str, value: float, low: float, high: float, *, open_above: bool = False) -> None:
    if not low <= value <= high or (open_above and value == high):
        below = "below" if open_above else "to"
        raise invalid(f"{name} must be from {low:g} {below} {high:g}, not {value:g}")

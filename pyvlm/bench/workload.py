"""The requests of a run, made before it starts: while it runs the client only sends bytes."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvlm.bench.options import ImageSize, Target, Workload
from pyvlm.bench.pictures import random_jpeg

# Short common words: about one token each with the tokenizers of small models.
# fmt: off
WORDS = (
    "the", "a", "of", "to", "and", "in", "is", "on", "at", "by", "for", "with", "from", "that",
    "this", "one", "two", "red", "blue", "green", "old", "new", "small", "large", "open", "close",
    "high", "low", "left", "right", "north", "south", "day", "night", "water", "fire", "tree",
    "stone", "house", "road", "river", "bird", "fish", "horse", "table", "chair", "door", "window",
    "paper", "glass", "iron", "gold", "hand", "foot", "eye", "ear", "bread", "milk", "salt",
    "apple", "spring", "summer", "winter", "song", "book", "word", "line", "page", "ship", "car",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class LoadRequest:
    index: int
    payload: bytes  # JSON
    num_images: int
    max_tokens: int


def make_requests(
    target: Target, workload: Workload, *, count: int | None = None, stream: int = 0
) -> list[LoadRequest]:
    """The same arguments give the same bytes. `stream` keeps warm-up and run apart."""
    rng = np.random.default_rng((workload.seed, stream))
    pictures = _Pictures(workload, rng, stream)
    count = workload.num_prompts if count is None else count
    return [_make(index, target, workload, rng, pictures) for index in range(count)]


class _Pictures:
    """Data URLs: endless new ones, or a fixed number of them in random order."""

    def __init__(self, workload: Workload, rng: np.random.Generator, stream: int) -> None:
        self._rng = rng
        self._stream = stream
        self._num_distinct = workload.num_distinct_images
        self._seed = workload.seed
        self._sizes = workload.image_sizes
        weights = np.array([size.share for size in self._sizes], np.float64)
        self._weights = weights / weights.sum()
        self._kept: dict[int, str] = {}
        self._num_made = 0

    def take(self) -> str:
        if not self._num_distinct:
            self._num_made += 1
            return self._make((self._seed, self._stream, self._num_made), self._size(self._rng))
        key = int(self._rng.integers(self._num_distinct))
        if key not in self._kept:
            size = self._size(np.random.default_rng((self._seed, key)))
            self._kept[key] = self._make((self._seed, key), size)
        return self._kept[key]

    def _size(self, rng: np.random.Generator) -> ImageSize:
        return self._sizes[int(rng.choice(len(self._sizes), p=self._weights))]

    @staticmethod
    def _make(seed: tuple[int, ...], size: ImageSize) -> str:
        data = random_jpeg(np.random.default_rng(seed), size.width, size.height)
        return "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")


def _make(
    index: int,
    target: Target,
    workload: Workload,
    rng: np.random.Generator,
    pictures: _Pictures,
) -> LoadRequest:
    num_words = _length(workload.input_words, workload.range_ratio, rng)
    max_tokens = _length(workload.output_tokens, workload.range_ratio, rng)
    text = " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=num_words))
    has_images = bool(rng.random() < workload.image_fraction)
    num_images = workload.images_per_request if has_images else 0
    urls = [pictures.take() for _ in range(num_images)]
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": max_tokens,
        "temperature": workload.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_prompt(target, text, urls),
    }
    if workload.ignore_eos:
        body["ignore_eos"] = True
    body |= target.extra_body
    return LoadRequest(index, json.dumps(body).encode(), num_images, max_tokens)


def _prompt(target: Target, text: str, urls: list[str]) -> dict[str, Any]:
    if target.backend == "openai":
        return {"prompt": text}
    content: str | list[dict[str, Any]] = text
    if urls:
        images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content = [*images, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}]}


def _length(mean: int, ratio: float, rng: np.random.Generator) -> int:
    low, high = round(mean * (1 - ratio)), round(mean * (1 + ratio))
    return max(1, int(rng.integers(low, high + 1)))

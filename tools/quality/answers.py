"""Greedy answers of a model to the held-out questions of the tiny model, f16 against quantised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyvlm.build import BuildOptions
from pyvlm.cache import Cache
from pyvlm.emit.layout import Lowering
from pyvlm.models.config import Quantize
from tools.parity.generation import Generator
from tools.parity.questions import AT_ONCE, STEPS, Item, read_items


@dataclass(slots=True)
class AnswerQuality:
    """By task: questions, right answers of each, and answers that are the same text."""

    asked: Counter[str] = field(default_factory=Counter)
    right_plain: Counter[str] = field(default_factory=Counter)
    right_quantized: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)


def answers(
    model: Path, items: Sequence[Item], quantize: Quantize, lowering: Lowering, cache: Cache
) -> list[str]:
    options = BuildOptions(quantize=quantize, lowering=lowering)
    found: list[str] = []
    with Generator(model, options, cache) as generator:
        stop = generator.frontend.stop_token_ids
        for start in range(0, len(items), AT_ONCE):
            jobs = [generator.job(item.question) for item in items[start : start + AT_ONCE]]
            ids = generator.greedy(jobs, STEPS, stop)
            found += [generator.frontend.tokenizer.decode(one.tolist()).strip() for one in ids]
    return found


def measure(
    model: Path, questions: Path, count: int, lowering: Lowering, cache: Cache
) -> AnswerQuality:
    items, quality = read_items(questions, count), AnswerQuality()
    plain = answers(model, items, "none", lowering, cache)
    quantized = answers(model, items, "int8", lowering, cache)
    for item, before, after in zip(items, plain, quantized, strict=True):
        quality.asked[item.task] += 1
        quality.right_plain[item.task] += before == item.answer
        quality.right_quantized[item.task] += after == item.answer
        quality.same[item.task] += before == after
    return quality

"""A text model's next-token distributions, f16 against quantised, over a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pyvlm.emit.layout import Lowering
from pyvlm.weights.checkpoint import gguf_files
from pyvlm.weights.gguf_config import to_config
from pyvlm.weights.gguf_file import GgufFile
from tools.parity.bundles import Size, Variant, build, open_program
from tools.parity.prompts import Prompt
from tools.parity.subject import Subject, chunk_plan, teacher_forced

WINDOW = 512  # positions of one pass
CHUNK = 256
SCORED = WINDOW // 2  # the later half: each prediction sees at least this many positions

Array = NDArray[np.float32]


@dataclass(slots=True)
class TextQuality:
    """Over all scored positions: sums of negative log-likelihoods in nats, and each KL."""

    positions: int = 0
    nll_plain: float = 0.0
    nll_quantized: float = 0.0
    same_best: int = 0
    kl: list[float] = field(default_factory=list)

    @property
    def perplexities(self) -> tuple[float, float]:
        return exp(self.nll_plain / self.positions), exp(self.nll_quantized / self.positions)

    def add(self, plain: Array, quantized: Array, targets: NDArray[np.int32]) -> None:
        """Logits [T, V] of both, and the ids that follow."""
        p, q = log_softmax(plain), log_softmax(quantized)
        at = np.arange(len(targets))
        self.positions += len(targets)
        self.nll_plain -= float(p[at, targets].sum())
        self.nll_quantized -= float(q[at, targets].sum())
        self.same_best += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        self.kl += (np.exp(p) * (p - q)).sum(axis=1).tolist()


def log_softmax(logits: Array) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def paragraphs(text: str) -> str:
    """Without the line breaks and indents of a page."""
    parts = re.split(r"\n\s*\n", text.replace("\x1a", ""))
    return "\n\n".join(" ".join(part.split()) for part in parts if part.strip())


def windows(ids: Sequence[int], count: int) -> Iterator[NDArray[np.int32]]:
    """Evenly spread over the text, none overlapping another."""
    whole = len(ids) // WINDOW
    if whole < count:
        raise ValueError(f"the text has {whole} windows of {WINDOW} tokens, not {count}")
    for index in range(count):
        start = index * whole // count * WINDOW
        yield np.array(ids[start : start + WINDOW], np.int32)


def measure(model: Path, text: Path, count: int, lowering: Lowering, folder: Path) -> TextQuality:
    """`model` is a .gguf file."""
    tokenizer = Tokenizer.from_str(gguf_files(model)["tokenizer.json"].decode())
    content = paragraphs(text.read_text(encoding="ascii", errors="strict"))
    ids = tokenizer.encode(content, add_special_tokens=False).ids
    plain = _subject(model, Variant(lowering, "f16"), folder / "f16")
    quantized = _subject(model, Variant(lowering, "int8"), folder / "int8")
    quality = TextQuality()
    for window in windows(ids, count):
        prompt, chunks = Prompt(window), chunk_plan(WINDOW, CHUNK)
        logits = [teacher_forced(s, prompt, chunks)[SCORED - 1 : -1] for s in (plain, quantized)]
        quality.add(logits[0], logits[1], window[SCORED:])
        print(f"{quality.positions} positions, {as_line(quality)}", flush=True)
    return quality


def as_line(quality: TextQuality) -> str:
    before, after = quality.perplexities
    return f"perplexity {before:.3f} -> {after:.3f}, mean KL {np.mean(quality.kl):.2e}"


def _subject(model: Path, variant: Variant, folder: Path) -> Subject:
    source = GgufFile(model)
    size = Size(capacity=WINDOW, slots=1, chunks=(CHUNK,), batches=(1,))
    built = build(model, folder, variant, size, source=source, raw_config=to_config(source))
    return Subject(built, open_program(built))

"""Held-out questions of the tiny model, answered by pyvlm's engine and by transformers.

python -m tools.parity.heldout [--count 1000] [--model DIR] [--questions DIR]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pyvlm.build import BuildOptions
from pyvlm.cache import Cache
from tools.parity import report
from tools.parity.compare import GreedyResult
from tools.parity.generation import Generator
from tools.parity.greedy import followed
from tools.parity.lab import TINY
from tools.parity.questions import AT_ONCE, STEPS, Item, read_items
from tools.parity.reference import Reference

LEAST_EQUAL = 0.995


@dataclass(slots=True)
class Outcome:
    """`differences` are those of the greedy ids, by number of the question."""

    asked: Counter[str] = field(default_factory=Counter)
    right_ours: Counter[str] = field(default_factory=Counter)
    right_theirs: Counter[str] = field(default_factory=Counter)
    equal: int = 0
    differences: dict[int, GreedyResult] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.asked.total()

    @property
    def ok(self) -> bool:
        explained = all(result.ok for result in self.differences.values())
        return explained and self.equal >= LEAST_EQUAL * self.total


def answer_all(generator: Generator, reference: Reference, items: Sequence[Item]) -> Outcome:
    outcome, stop = Outcome(), generator.frontend.stop_token_ids
    for start in range(0, len(items), AT_ONCE):
        batch = items[start : start + AT_ONCE]
        found = generator.greedy([generator.job(i.question) for i in batch], STEPS, stop)
        for item, ours in zip(batch, found, strict=True):
            prompt = reference.prompt(item.question)
            result = followed(generator, reference, prompt, ours, STEPS, stop)
            theirs = ours
            if result.first_difference is None:
                outcome.equal += 1
            else:
                outcome.differences[item.number] = result
                theirs = reference.greedy(prompt, STEPS, stop).tokens
            outcome.asked[item.task] += 1
            for counter, ids in ((outcome.right_ours, ours), (outcome.right_theirs, theirs)):
                text = reference.tokenizer.decode(ids, skip_special_tokens=True)
                counter[item.task] += text.strip() == item.answer
    return outcome


def compare(
    model: Path, questions: Path, count: int, options: BuildOptions, cache: Cache
) -> Outcome:
    reference = Reference.load(model, weights=options.dtype or "f16")
    with Generator(model, options, cache) as generator:
        return answer_all(generator, reference, read_items(questions, count))


def as_text(outcome: Outcome) -> str:
    rows: list[list[object]] = [
        [task, asked, outcome.right_ours[task], outcome.right_theirs[task]]
        for task, asked in sorted(outcome.asked.items())
    ]
    ours, theirs = outcome.right_ours.total(), outcome.right_theirs.total()
    rows.append(["all", outcome.total, ours, theirs])
    body = report.table(["task", "questions", "right: pyvlm", "right: transformers"], rows)
    share = 100 * outcome.equal / outcome.total
    body += f"\nEqual greedy ids on {outcome.equal} of {outcome.total} questions ({share:.2f} %)."
    for number, result in outcome.differences.items():
        body += (
            f"\nQuestion {number}: first difference at id {result.first_difference}, where the "
            f"reference's own gap is {result.gap:.2e} (twice the tolerance: "
            f"{result.allowed_gap:.2e})."
        )
    return f"{body}\n\n{report.versions()}\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--questions", type=Path, default=Path("build/heldout"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--lowering", choices=("kernels", "codegen"), default="kernels")
    parser.add_argument("--write", action="store_true", help="put the table into docs/parity.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(2)
    options = BuildOptions(lowering=chosen.lowering)
    with tempfile.TemporaryDirectory(prefix="pyvlm-heldout-") as folder:
        outcome = compare(
            chosen.model, chosen.questions, chosen.count, options, Cache(Path(folder))
        )
    text = as_text(outcome)
    print(text)
    if chosen.write:
        report.write_section("heldout", text)
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())

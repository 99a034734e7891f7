"""The tables of docs/parity.md: what is measured, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.parity import report
from tools.parity.bundles import Variant
from tools.parity.cases import (
    PLANS,
    batch_prompts,
    measure_batch,
    measure_logits,
    measure_tower,
    tolerance_of,
)
from tools.parity.compare import GreedyResult, HiddenResult, LogitsResult, compare_logits
from tools.parity.greedy import STEPS, against, greedy_cases, open_generator
from tools.parity.lab import WITH_TOWER, Lab

Row = list[object]


@dataclass(slots=True)
class Tables:
    """Rows of the four tables, and what failed."""

    tower: list[Row] = field(default_factory=list)
    logits: list[Row] = field(default_factory=list)
    decode: list[Row] = field(default_factory=list)
    greedy: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def note(self, ok: bool, what: str) -> None:
        if not ok:
            self.failures.append(what)

    def add_greedy(self, label: Sequence[str], results: Sequence[GreedyResult]) -> None:
        differences = [r for r in results if r.first_difference is not None]
        listed = "; ".join(
            f"step {r.first_difference} ({r.gap:.1e}, {r.allowed_gap:.1e})" for r in differences
        )
        equal = len(results) - len(differences)
        self.greedy.append([*label, len(results), equal, listed or "none"])
        self.note(all(r.ok for r in results), f"{label}: greedy")

    def add_tower(self, label: Sequence[str], results: dict[str, HiddenResult]) -> None:
        blocks = [r.max_rel for name, r in results.items() if name.startswith("block")]
        first, last = results["embedding"], results["post norm, connector"]
        ends = [first.max_rel, max(blocks), last.max_rel, first.tolerance]
        self.tower.append([*label, *ends])
        self.note(all(r.ok for r in results.values()), f"{label}: tower")

    def add_logits(
        self, label: Sequence[str], prompt: str, results: Sequence[LogitsResult], alone: float
    ) -> None:
        """The worst of the chunk plans; `alone` is transformers with an f16 cache against itself
        with an f32 one."""
        found = worst(results)
        self.logits.append([*label, prompt, *logits_cells(found), alone])
        self.note(found.ok, f"{label}: logits of {prompt}")

    def add_decode(self, label: Sequence[str], results: Sequence[LogitsResult]) -> None:
        for number, result in enumerate(results):
            self.decode.append([*label, f"row {number}", *logits_cells(result)])
            self.note(result.ok, f"{label}: decode, row {number}")

    def as_text(self) -> str:
        parts = [
            "### Tower and connector",
            report.table(
                ["model", "variant", "embedding", "worst block", "rows", "tolerance"], self.tower
            ),
            "### Teacher-forced logits, prefilled",
            report.table([*_LOGITS_HEADER, "f16 KV alone"], self.logits),
            "### Teacher-forced logits, decoded in ragged batches",
            report.table(_LOGITS_HEADER, self.decode),
            f"### Free-running greedy tokens, {STEPS} steps",
            report.table(
                ["model", "variant", "sequences", "equal", "first differences (gap, allowed)"],
                self.greedy,
            ),
            report.versions(),
        ]
        if self.failures:
            parts += ["Failures:", *(f"- {failure}" for failure in self.failures)]
        return "\n\n".join(parts) + "\n"


_LOGITS_HEADER = [
    "model",
    "variant",
    "prompt",
    "positions",
    "max abs",
    "max rel",
    "tolerance",
    "same argmax",
    "near ties",
]


def worst(results: Sequence[LogitsResult]) -> LogitsResult:
    return max(results, key=lambda r: (not r.ok, r.max_rel))


def logits_cells(result: LogitsResult) -> Row:
    return [
        result.positions,
        result.max_abs,
        result.max_rel,
        result.tolerance,
        f"{result.agreeing}/{result.positions}",
        result.near_ties,
    ]


def measure(lab: Lab, model: str, variant: Variant, tables: Tables) -> None:
    subject, reference = lab.subject(model, variant), lab.reference(model, variant.weights)
    tolerated, label = tolerance_of(subject.built), [model, str(variant)]
    if model in WITH_TOWER:
        prompt = lab.prompts(model)["three pictures"]
        tables.add_tower(label, measure_tower(subject, reference, prompt, tolerated))
    for name, prompt in lab.prompts(model).items():
        expected = lab.expected(model, variant.weights, name)
        plans = [plan for plan in PLANS if plan != "1" or len(prompt.ids) < 100]
        results = [measure_logits(subject, expected, prompt, p, tolerated.logits) for p in plans]
        tables.add_logits(label, name, results, _cache_alone(lab, model, variant, name))
    chosen, prefix = batch_prompts(reference)
    expected_all = [reference.logits(prompt) for prompt in chosen]
    tables.add_decode(label, measure_batch(subject, chosen, prefix, expected_all, tolerated.logits))


def _cache_alone(lab: Lab, model: str, variant: Variant, name: str) -> float:
    """What rounding keys and values to f16 does by itself."""
    plain = lab.expected(model, variant.weights, name)
    return compare_logits(lab.expected(model, variant.weights, name, "f16"), plain, 0.0).max_rel


def measure_greedy(lab: Lab, model: str, variant: Variant, tables: Tables) -> None:
    reference, label = lab.reference(model, variant.weights), [model, str(variant)]
    with open_generator(lab, model, variant) as generator:
        cases = greedy_cases(generator, reference)
        found = generator.greedy([job for job, _ in cases], STEPS)
        results = [
            against(generator, ours, reference.greedy(prompt, STEPS), STEPS)
            for ours, (_, prompt) in zip(found, cases, strict=True)
        ]
    tables.add_greedy(label, results)

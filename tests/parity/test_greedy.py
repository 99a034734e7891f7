"""Free-running greedy tokens of the engine against transformers' `generate`, over 64 steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
from tools.parity.bundles import Variant
from tools.parity.generation import Generator
from tools.parity.greedy import STEPS, against, greedy_cases, open_generator
from tools.parity.lab import MATRIX, Lab

pytestmark = pytest.mark.parity

CASES = [
    pytest.param(model, variant, id=f"{model}-{variant}")
    for model, variants in MATRIX.items()
    for variant in variants
]


@pytest.fixture
def generator(lab: Lab, model: str, variant: Variant) -> Iterator[Generator]:
    with open_generator(lab, model, variant) as made:
        yield made


@pytest.mark.parametrize(("model", "variant"), CASES)
def test_alone_and_in_a_mixed_batch(
    lab: Lab, generator: Generator, model: str, variant: Variant
) -> None:
    reference = lab.reference(model, variant.weights)
    made = greedy_cases(generator, reference)
    together = generator.greedy([job for job, _ in made], STEPS)
    for (job, prompt), batched in zip(made, together, strict=True):
        expected = reference.greedy(prompt, STEPS)
        (alone,) = generator.greedy([job], STEPS)
        for found in (alone, batched):
            result = against(generator, found, expected, STEPS)
            assert result.ok, (len(prompt.ids), result)

"""Teacher-forced logits of every position: prefilled whole, in chunks, and decoded in batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
from tools.parity.bundles import Variant
from tools.parity.cases import (
    PLANS,
    batch_prompts,
    measure_batch,
    measure_logits,
    tolerance_of,
)
from tools.parity.lab import MATRIX, WITH_TOWER, Lab

pytestmark = pytest.mark.parity

PLANS_OF_PROMPT = {
    "chat": tuple(PLANS),
    "long text": ("whole", "ragged"),
    "one picture": ("whole", "16", "7", "ragged"),
    "three pictures": ("whole", "16", "ragged"),
}


def cases() -> Iterator[object]:
    for model, variants in MATRIX.items():
        for variant in variants:
            for prompt, plans in PLANS_OF_PROMPT.items():
                if "picture" in prompt and model not in WITH_TOWER:
                    continue
                for plan in plans:
                    case_id = f"{model}-{variant}-{prompt}-{plan}"
                    yield pytest.param(model, variant, prompt, plan, id=case_id)


@pytest.mark.parametrize(("model", "variant", "prompt", "plan"), list(cases()))
def test_prefill(lab: Lab, model: str, variant: Variant, prompt: str, plan: str) -> None:
    subject = lab.subject(model, variant)
    limit = tolerance_of(subject.built).logits
    expected = lab.expected(model, variant.weights, prompt)
    result = measure_logits(subject, expected, lab.prompts(model)[prompt], plan, limit)
    assert result.ok, result


@pytest.mark.parametrize(
    ("model", "variant"),
    [pytest.param(m, v, id=f"{m}-{v}") for m, variants in MATRIX.items() for v in variants],
)
def test_decode_in_ragged_batches(lab: Lab, model: str, variant: Variant) -> None:
    subject, reference = lab.subject(model, variant), lab.reference(model, variant.weights)
    chosen, prefix = batch_prompts(reference)
    expected = [reference.logits(prompt) for prompt in chosen]
    limit = tolerance_of(subject.built).logits
    results = measure_batch(subject, chosen, prefix, expected, limit)
    assert len(results) == len(chosen)
    assert [r for r in results if not r.ok] == []

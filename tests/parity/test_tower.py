"""Hidden states of the tower and the connector, tiles with padding included."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from tools.parity.bundles import Variant
from tools.parity.cases import measure_tower, tolerance_of
from tools.parity.lab import MATRIX, WITH_TOWER, Lab

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("model", "variant"),
    [pytest.param(m, v, id=f"{m}-{v}") for m in WITH_TOWER for v in MATRIX[m]],
)
def test_every_hidden_state(lab: Lab, model: str, variant: Variant) -> None:
    subject, reference = lab.subject(model, variant), lab.reference(model, variant.weights)
    tolerated = tolerance_of(subject.built)
    prompt = lab.prompts(model)["three pictures"]
    results = measure_tower(subject, reference, prompt, tolerated)
    vision = subject.built.config.vision
    assert vision is not None
    assert len(results) == vision.num_layers + 2
    assert {name: r for name, r in results.items() if not r.ok} == {}

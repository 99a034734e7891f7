"""The tiny model against numbers that transformers gave, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvlm.build import BuildOptions
from pyvlm.cache import Cache
from tools.parity import golden
from tools.parity.bundles import Size, Variant, build, open_program
from tools.parity.frontdoor import expanded
from tools.parity.generation import Generator
from tools.parity.prompts import Prompt
from tools.parity.subject import Subject, chunk_plan, teacher_forced
from tools.parity.tolerances import tolerance

TINY = Path(__file__).parents[2] / "pyvlm" / "assets" / "tiny"
CASES: dict[str, Any] = golden.read()["cases"]


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    options = BuildOptions(max_model_len=256, max_num_seqs=4)
    with Generator(TINY, options, Cache(tmp_path_factory.mktemp("cache"))) as made:
        yield made


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    size = Size(capacity=256, slots=2, chunks=(256,), batches=(2,))
    built = build(TINY, tmp_path_factory.mktemp("program"), Variant(), size)
    return Subject(built, open_program(built))


def test_the_files_belong_to_these_weights() -> None:
    stored = golden.read()["weights_sha256"]
    assert stored == golden.digest(TINY), "run python -m tools.parity.make_golden"


@pytest.mark.parametrize("name", CASES)
def test_prompt_ids(generator: Generator, name: str) -> None:
    plan = generator.job(golden.QUESTIONS[name]).plan
    assert expanded(plan).tolist() == CASES[name]["prompt_ids"]


@pytest.mark.parametrize("chunk", [256, 11])
@pytest.mark.parametrize("name", CASES)
def test_logits_of_the_last_positions(subject: Subject, name: str, chunk: int) -> None:
    vision = subject.config.vision
    assert vision is not None
    ids = np.array(CASES[name]["prompt_ids"], np.int32)
    question = golden.QUESTIONS[name]
    prompt: Prompt = golden.unscaled_prompt(question, ids, vision.image_size, vision.grid)
    logits = teacher_forced(subject, prompt, chunk_plan(len(ids), chunk))
    limit = tolerance("f16", subject.config.decoder.num_layers).logits
    for row, expected in zip(logits[-3:], CASES[name]["last_positions"], strict=True):
        difference = np.abs(row[expected["ids"]] - np.array(expected["logits"]))
        assert difference.max() <= limit * expected["spread"] + 1e-5
        assert row.max() <= expected["logits"][0] + limit * expected["spread"] + 1e-5


def test_answers_in_one_batch(generator: Generator) -> None:
    """Ids are compared where rounding cannot decide; the answers' gaps are far from it."""
    limit = tolerance("f16", generator.bundle.model.decoder.num_layers).logits
    stop = generator.frontend.stop_token_ids
    jobs = [generator.job(golden.QUESTIONS[name]) for name in CASES]
    found = generator.greedy(jobs, golden.STEPS, stop)
    clear = {name: case for name, case in CASES.items() if case["smallest_gap"] > 2 * limit}
    assert len(clear) >= len(CASES) - 1
    for name, ids in zip(CASES, found, strict=True):
        if name in clear:
            expected = [i for i in CASES[name]["answer_ids"] if i not in stop]
            assert ids.tolist() == expected, name


def test_another_picture_changes_the_answer() -> None:
    red, blue = (CASES[f"{colour} circle"]["answer"] for colour in ("red", "blue"))
    assert "red" in red.lower()
    assert "blue" in blue.lower()

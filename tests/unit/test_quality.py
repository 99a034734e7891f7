"""The numbers of tools.quality on inputs whose answers are known."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from tools.parity import report
from tools.quality.answers import AnswerQuality
from tools.quality.rows import cosines
from tools.quality.text import WINDOW, TextQuality, paragraphs, windows


def test_kl_and_perplexity_of_known_distributions() -> None:
    p, q = np.array([[0.5, 0.25, 0.25]] * 2), np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]])
    quality = TextQuality()
    shift = np.array([[100.0], [-3.0]])  # logits are free up to a constant
    targets = np.array([0, 2], np.int32)
    quality.add((np.log(p) + shift).astype(np.float32), np.log(q).astype(np.float32), targets)
    assert quality.positions == 2
    expected = 0.5 * log(2) + 0.25 * log(0.5)
    np.testing.assert_allclose(quality.kl, [expected, 0], atol=1e-5)
    before, after = quality.perplexities
    assert before == pytest.approx(exp(-(log(0.5) + log(0.25)) / 2), rel=1e-5)
    assert after == pytest.approx(exp(-(log(0.25) + log(0.25)) / 2), rel=1e-5)
    assert quality.same_best == 1


def test_windows_spread_over_the_text() -> None:
    ids = list(range(10 * WINDOW + 5))
    found = list(windows(ids, 3))
    assert [int(w[0]) for w in found] == [0, 3 * WINDOW, 6 * WINDOW]
    assert all(len(w) == WINDOW for w in found)
    with pytest.raises(ValueError, match="10 windows"):
        list(windows(ids, 11))


def test_lines_of_a_page_become_paragraphs() -> None:
    page = "\n\n   CHAPTER I\n\n\n  Alice was\nvery  tired\n\x1a"
    assert paragraphs(page) == "CHAPTER I\n\nAlice was very tired"


def test_cosine_of_each_row() -> None:
    a = np.array([[1, 0], [3, 4], [1, 1]], np.float32)
    b = np.array([[2, 0], [-3, -4], [0, 5]], np.float32)
    np.testing.assert_allclose(cosines(a, b), [1, -1, 0.5**0.5], rtol=1e-6)


def test_tables_go_into_their_sections_of_the_page(tmp_path: Path) -> None:
    from tools.quality.__main__ import PAGE, answers_table, rows_table, text_table

    quality = AnswerQuality()
    quality.asked.update(["colour", "shape", "shape"])
    quality.right_plain.update(["colour", "shape"])
    quality.same.update(["shape"])
    text = TextQuality(2, 2.0, 2.2, 1, [0.1, 0.3])
    tables = {
        "text": text_table(text, "m.gguf", "a.txt"),
        "answers": answers_table(quality, "tiny"),
        "rows": rows_table(np.array([1.0, 0.5]), "tiny", 1),
    }
    assert "| all | 3 | 2 | 0 | 1 |" in tables["answers"]
    assert "2.00e-01" in tables["text"]
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for name, body in tables.items():
        report.write_section(name, body, page)
    written = page.read_text(encoding="utf-8")
    assert all(body.strip() in written for body in tables.values())

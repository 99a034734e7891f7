"""Pictures by the hundred through the server: what `tools.picture_corpora --url` reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.media.media_files import encode, noise, photo
from tests.server.conftest import Running
from tools import picture_corpora

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole files, and each with bytes changed at random, by a fixed seed."""
    folder, rng = tmp_path_factory.mktemp("served"), np.random.default_rng(11)
    for name in FORMATS:
        data = encode(photo() if name == "JPEG" else noise(40, 30), name)
        (folder / f"whole.{name.lower()}").write_bytes(data)
        for number in range(12):
            changed = bytearray(data)
            for _ in range(1 + number):
                changed[rng.integers(0, len(data) if number % 2 else 80)] = rng.integers(0, 256)
            (folder / f"changed{number}.{name.lower()}").write_bytes(changed)
    return folder


def test_a_made_corpus_through_the_server(
    server: Running, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = server.say("Hello")
    assert picture_corpora.main([str(corpus), "--url", server.url]) == 0
    report = capsys.readouterr().out
    assert f"{13 * len(FORMATS)} files" in report
    assert "| 200 | answered |" in report
    assert "| 400 media_policy_violation | allowed_formats | 10 |" in report, report
    assert "| 500" not in report
    assert server.say("Hello") == before


def test_an_error_that_nobody_foresaw_is_a_fault(
    server: Running, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        del args
        raise RuntimeError("a secret")

    with monkeypatch.context() as patch:
        patch.setattr("pyvlm.intake.plan_request", broken)
        (result,) = picture_corpora.run_served(server.url, [corpus / "whole.png"])
    assert (result.outcome.name, result.outcome.is_fault) == ("500 engine_failed", True)

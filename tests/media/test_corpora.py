"""The corpus runner on a corpus made here, and on pictures that installed packages ship."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from media_files import encode, noise, photo

from tools import picture_corpora
from tools.picture_corpora import main, pictures, run, table
from tools.picture_run import Outcome

MAX_INSTALLED = 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole files, and each with bytes changed at random, by a fixed seed."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(7)
    for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        data = encode(photo() if name == "JPEG" else noise(40, 30), name)
        (folder / f"whole.{name.lower()}").write_bytes(data)
        for number in range(6):
            changed = bytearray(data)
            for _ in range(1 + number):
                changed[rng.integers(0, len(data) if number % 2 else 80)] = rng.integers(0, 256)
            (folder / f"changed{number}.{name.lower()}").write_bytes(changed)
    (folder / "page.pdf").write_bytes(b"%PDF-1.7")
    return folder


def test_made_corpus(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(corpus)]) == 0
    report = capsys.readouterr().out
    assert "43 files" in report
    assert "the format PDF is not supported" in report
    for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        assert f"| picture | {name} |" in report
    assert "UNTYPED" not in report


def test_installed_pictures() -> None:
    root = Path(sysconfig.get_paths()["purelib"])
    files = sorted(pictures(root))
    if not files:
        pytest.skip("no installed package ships pictures")
    results = list(run(files[:: max(1, len(files) // MAX_INSTALLED)]))
    assert not [result for result in results if result.outcome.is_fault], table(results)


def test_sample_takes_every_so_many(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(corpus), "--sample", "5"]) == 0
    assert int(capsys.readouterr().out.split()[-2]) <= 6


@pytest.mark.parametrize(
    ("end", "name"), [("os.abort()", "CRASH"), ("signal.alarm(1); time.sleep(50)", "HANG")]
)
def test_a_crash_and_a_hang_are_found(end: str, name: str, corpus: Path, monkeypatch) -> None:
    """A worker that ends in its second file: reported, and the third is taken by a new one."""
    program = f"""
import os, signal, sys, time
from tools.picture_run import BEGIN, Outcome, main
import tools.picture_run as module
real = module.outcome_of
def outcome_of(data, transforms):
    if data == b"second":
        {end}
    return real(data, transforms)
module.outcome_of = outcome_of
main()
"""
    real = picture_corpora.subprocess.Popen

    def started(command: list[str], **options: object) -> object:
        return real([command[0], "-c", program], **options)

    monkeypatch.setattr(picture_corpora.subprocess, "Popen", started)
    second = corpus / "second.txt"
    second.write_bytes(b"second")
    files = [corpus / "whole.png", second, corpus / "whole.gif"]
    outcomes = [result.outcome for result in run(files)]
    assert [outcome.name for outcome in outcomes] == ["picture", name, "picture"]
    assert [outcome.is_fault for outcome in outcomes] == [False, True, False]


def test_no_files_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "0 files" in capsys.readouterr().out
    assert Outcome("picture", "PNG", 0).is_fault is False

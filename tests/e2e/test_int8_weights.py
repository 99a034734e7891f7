"""`--quantize int8` as a user runs it: answers, GGUF, library, ready bundles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyvlm import LLM, SamplingParams
from pyvlm.build import BuildOptions, compile_bundle, prepare_bundle
from pyvlm.errors import PyvlmError
from tests.unit.gguf_files import write_gguf

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "What colour is the shape?"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyvlm.cli.main", *arguments],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYVLM_CACHE_DIR": str(cache)},
    )  # fmt: skip


def test_answer_about_a_picture(cache: Path) -> None:
    arguments = ("generate", "--json", "--model", "tiny", "--prompt", QUESTION)
    picture = ("--image", str(EXAMPLES / "red_circle.png"))
    texts = {}
    for quantize in ("none", "int8"):
        result = run(cache, *arguments, *picture, "--quantize", quantize)
        assert result.returncode == 0, result.stderr
        texts[quantize] = json.loads(result.stdout)["text"]
    assert "red" in texts["int8"].lower()
    assert texts["int8"] == texts["none"]
    assert len(list((cache / "bundles").glob("*/manifest.json"))) == 2


def test_text_model_from_gguf_as_a_ready_bundle(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    options = BuildOptions(quantize="int8", max_model_len=32, max_num_seqs=2)
    bundle = compile_bundle(file, tmp_path / "bundle", options)
    opened = prepare_bundle(bundle, BuildOptions(quantize="int8"))
    assert (opened.manifest.model.quantize, opened.manifest.model.dtype) == ("int8", "f16")
    with pytest.raises(PyvlmError, match="--quantize int8, not none") as info:
        prepare_bundle(bundle, BuildOptions(quantize="none"))
    assert (info.value.code, info.value.param) == ("program_mismatch", "quantize")
    with LLM(bundle) as llm:
        (output,) = llm.generate([[3, 4, 5, 6]], SamplingParams(max_tokens=8), progress=False)
    assert output.error is None
    assert output.finish_reason in ("stop", "length")

"""The load generator against `pyvlm serve` itself, with the model of the package."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pyvlm.cli.main import main

pytestmark = pytest.mark.timeout(280)
READY_S = "200"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "pyvlm.cli.main", "serve", "tiny", "--port", str(number)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield number
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()


def test_text_and_pictures(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "serve", "--port", str(port), "--ready-check-timeout-sec", READY_S,
                 "--num-prompts", "8", "--max-concurrency", "4", "--image-fraction", "0.5",
                 "--random-mm-bucket-config", "{(64, 64, 1): 1.0}", "--random-input-len", "10",
                 "--random-output-len", "6", "--json"]  # fmt: skip
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["completed"], result["failed"]) == (8, 0)
    assert result["model"] == "tiny"
    assert result["num_without_usage"] == 0
    assert 0 < result["total_output_tokens"] <= 8 * 6
    assert result["total_input_tokens"] > 8 * 10
    assert set(result["by_kind"]) == {"image", "text"}


def test_completions_endpoint(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "serve", "--port", str(port), "--ready-check-timeout-sec", READY_S,
                 "--backend", "openai", "--num-prompts", "4", "--request-rate", "20",
                 "--random-input-len", "10", "--random-output-len", "6", "--json"]  # fmt: skip
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 4


def test_refused_fields_are_counted(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "serve", "--port", str(port), "--ready-check-timeout-sec", READY_S,
                 "--num-prompts", "2", "--ignore-eos", "--json"]  # fmt: skip
    assert main(arguments) == 5
    assert json.loads(capsys.readouterr().out)["errors"] == {"http_400_unsupported_parameter": 2}

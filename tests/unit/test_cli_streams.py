"""The command with closed, full or narrow standard streams. No model is needed for errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COMMAND = f"{sys.executable} -m pyvlm.cli.main generate --image missing.png --prompt x"
MESSAGE = "missing.png: No such file or directory [image_fetch_failed]"


def shell(
    line: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.parametrize("redirection", ["", "<&-", ">&-"])
def test_closed_stream_leaves_status_and_message(redirection: str) -> None:
    done = shell(f"{COMMAND} {redirection}")
    assert done.returncode == 2
    assert done.stderr.decode().strip().endswith(MESSAGE)


def test_closed_stderr_leaves_status_and_json() -> None:
    done = shell(f"{COMMAND} --json 2>&-")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "image_fetch_failed"


def test_reader_gone_before_the_error_report() -> None:
    done = shell(f"{COMMAND} --json | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in (1, 2)  # 2 if the report fitted the pipe before its reader ended
    assert b"Traceback" not in done.stderr


def test_full_device_is_one_line() -> None:
    done = shell(f"{COMMAND} --json >/dev/full")
    assert done.returncode == 1
    assert done.stderr.decode() == "error: the answer cannot be written: No space left on device\n"


def test_narrow_encoding_is_escaped() -> None:
    line = COMMAND.replace("missing.png", "é.png") + " --json"
    done = shell(line, {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert "\\xe9.png" in done.stdout.decode("ascii")


def test_abbreviated_flag_is_refused() -> None:
    done = shell(f"{COMMAND} --js")
    assert done.returncode == 2
    assert b"[invalid_parameter]" in done.stderr

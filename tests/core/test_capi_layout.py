"""Our declarations of IREE's C API against its public headers, where those are at hand.

PYVLM_IREE_HEADERS names the `runtime/src` folder of an IREE 3.9.0 source tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADERS = os.environ.get("PYVLM_IREE_HEADERS")

pytestmark = [
    pytest.mark.skipif(not HEADERS, reason="PYVLM_IREE_HEADERS is not set"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


def _report(folder: Path, name: str, *flags: str) -> list[str]:
    source = ROOT / "tests/core/capi_layout.cc"
    program = folder / name
    command = ["g++", "-std=c++20", "-w", f"-I{ROOT}", *flags, str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    run = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def test_declarations_equal_the_public_headers(tmp_path):
    ours = _report(tmp_path, "ours")
    hip = f"{HEADERS}/iree/hal/drivers/hip/api.h"
    theirs = _report(
        tmp_path,
        "theirs",
        "-DPYVLM_IREE_INSTALLED",
        "-DPYVLM_LAYOUT_HIP",
        f"-I{HEADERS}",
        "-include",
        hip,
    )
    assert len(ours) > 150
    assert ours == theirs

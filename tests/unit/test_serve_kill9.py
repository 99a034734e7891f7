"""What `tools.serve_kill9` calls wrong: each figure alone, of a run that is sound otherwise."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest

pytest.importorskip("httpx")
from tools.own_server import size_of_slab, slab_of
from tools.serve_kill9 import problems

SOUND: dict[str, dict[str, Any]] = {
    "workers killed": {
        "kills": 10,
        "requests lost": 10,
        "requests cut off": 0,
        "wrong answers": 0,
        "not given back": {},
        "answers afterwards as before": True,
    },
    "server killed": {
        "requests in hand": 8,
        "requests cut off before": 0,
        "requests lost": 0,
        "wrong answers": 0,
        "workers left": 0,
        "processes with its slab": 0,
        "slab, MiB": 142,
        "shared memory given back, MiB": 141,
    },
    "next start": {"answers as before": True, "warnings": 0},
}


def test_a_sound_run() -> None:
    assert problems(SOUND) == []


@pytest.mark.parametrize(
    ("part", "name", "value", "problem"),
    [
        ("workers killed", "requests lost", 11, "more requests lost"),
        ("workers killed", "requests cut off", 1, "connections broke when workers"),
        ("workers killed", "wrong answers", 1, "wrong answers when workers"),
        ("workers killed", "not given back", {"pyvlm_image_leases": 1.0}, "left something"),
        ("workers killed", "answers afterwards as before", False, "other answers"),
        ("server killed", "requests cut off before", 1, "connections broke before"),
        ("server killed", "requests lost", 1, "no killed worker held"),
        ("server killed", "wrong answers", 1, "wrong answers before"),
        ("server killed", "workers left", 1, "workers outlive"),
        ("server killed", "processes with its slab", 1, "slab outlives"),
        ("server killed", "shared memory given back, MiB", 71, "not given back"),
        ("next start", "answers as before", False, "answers otherwise"),
        ("next start", "warnings", 1, "warns"),
    ],
)
def test_each_thing_that_may_be_wrong(part: str, name: str, value: object, problem: str) -> None:
    found = deepcopy(SOUND)
    found[part][name] = value
    (told,) = problems(found)
    assert problem in told


WITH_SLAB = """
import os, sys
from pyvlm.media.slab import Slab
slab = Slab(3 << 20)
print(os.fstat(slab.fd).st_ino, flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(60)
def test_the_slab_of_a_process() -> None:
    command = [sys.executable, "-c", WITH_SLAB]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        inode = child.stdout.readline().strip()
        assert inode
        assert (slab_of(child.pid), size_of_slab(child.pid)) == (inode, 3 << 20)
        child.communicate()
    assert (slab_of(child.pid), size_of_slab(child.pid)) == ("", 0)

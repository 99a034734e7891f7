"""The library in a host that forks: children end, are told, and may load a model of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.bench import picture

SCRIPT = """
import gc, os, signal, sys
from pyvlm import LLM, EngineOptions, PyvlmError, SamplingParams
from pyvlm.request import GenerationRequest

def load():
    return LLM({model!r}, options=EngineOptions(num_preprocess_workers={workers}))

def ask(llm):
    return llm.chat("What colour is the shape?", images=[[{image!r}]])[0].text

llm = load()
answer = ask(llm)
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    for call in (lambda: ask(llm), lambda: list(llm.stream(GenerationRequest("x"))),
                 llm.engine.stats):
        try:
            call()
        except PyvlmError as error:
            assert error.code == "engine_dead" and "forked" in str(error), error
        else:
            raise SystemExit("no error")
    if {loads}:
        with load() as own:
            assert ask(own) == answer
    llm.close()
    del llm
    gc.collect()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert ask(llm) == answer  # the parent's pool and loop are whole
print(answer)
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("workers", "loads"), [(0, True), (1, False)])
def test_a_child_of_fork(bundle, tmp_path: Path, workers: int, loads: bool) -> None:
    image = tmp_path / "red.png"
    image.write_bytes(picture("red"))
    script = SCRIPT.format(model=str(bundle.path), image=str(image), workers=workers, loads=loads)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "red" in done.stdout.lower()

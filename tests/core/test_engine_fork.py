"""A child of fork has the engine's memory and none of its threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc, multiprocessing, os, signal, sys
from pyvlm import _core, _core_testing
from pyvlm.errors import PyvlmError

def prompt(tokens):
    return _core.PreparedPrefill(
        logical_ids=[1, 2, 3], segments=[_core.Segment.text(0, 3)], images=[],
        sampling=_core.SamplingParams(), max_new_tokens=tokens, stop_token_ids=[])

runner = _core_testing.FakeRunner(capacity=64)
engine = _core.Engine(runner, _core.EngineOptions(image_cache_bytes=1000))
runner.pause_at_decode()
seq_id = engine.submit(prompt(40))
assert runner.wait_until_blocked(60000)

def child():
    signal.alarm(30)
    global engine, runner
    calls = (lambda: engine.submit(prompt(2)), lambda: engine.wait_outputs(5.0),
             lambda: engine.cached_image(b"x"))
    for call in calls:
        try:
            call()
        except PyvlmError as error:
            assert error.code == "engine_dead" and "forked" in str(error), error
        else:
            raise SystemExit("no error")
    engine.cancel(1)
    assert not engine.stats().is_alive
    assert engine.capacity == 64
    engine.shutdown()
    own = _core.Engine(_core_testing.FakeRunner())
    own.submit(prompt(1))
    assert own.wait_outputs(20.0)
    del engine, runner
    gc.collect()

way = {way!r}
if way == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(40)
    assert process.exitcode == 0, process.exitcode
else:
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0) if way == "_exit" else sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
runner.resume()
tokens = []
while len(tokens) < 40:
    tokens += [i for output in engine.wait_outputs(20.0) for i in output.token_ids]
print("parent goes on")
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("way", ["_exit", "exit", "multiprocessing"])
def test_a_forked_child_ends_and_is_told(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(way=way)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "parent goes on\n"), done.stderr


PROGRAM_SCRIPT = """
import os, signal, sys
from small_model import prepare, run, spec_of
from pyvlm import _core
from pyvlm.emit.program import emit
from pyvlm.errors import PyvlmError
from tests.reference.model_cases import TIED

lowering, *paths = sys.argv[1:]
spec = spec_of(emit(TIED.config, TIED.options(lowering)))

def load():
    return _core.Program(_core.Device(num_threads=2), *paths, spec)

def generate(program):
    with _core.Engine(program) as engine:
        return run(engine, prepare([1, 2, 3]))

program = load()
expected = generate(program)
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    calls = (lambda: _core.Program(program.device, *paths, spec), lambda: _core.Engine(program),
             lambda: _core.IreeRunner(program), lambda: program.invoke("none", []))
    for call in calls:
        try:
            call()
        except PyvlmError as error:
            assert error.code == "engine_dead" and "forked" in str(error), error
        else:
            raise SystemExit("no error")
    assert generate(load()) == expected
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert generate(program) == expected
print("parent goes on")
"""


@pytest.mark.timeout(200)
def test_nothing_is_loaded_onto_the_device_of_a_parent(bundle) -> None:
    """Its workers would never come; what is loaded anew works."""
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM_SCRIPT, bundle.lowering, *bundle.paths],
        capture_output=True, text=True, timeout=180, check=False, env=env,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "parent goes on\n"), done.stderr

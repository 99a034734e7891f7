"""The compiler as a child process: bytes, errors, progress, interruption, targets."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from pyvlm import _runtime_library
from pyvlm import compile as compiler
from pyvlm.compile import CompileOptions, check_compiler, compile_module, target_features
from pyvlm.errors import PyvlmError

ADD = """
func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = arith.addf %a, %b : tensor<4xf32>
  return %c : tensor<4xf32>
}
"""
SLOW_COMPILE = """
import sys
from pyvlm.compile import compile_module
rows = "\\n".join(f"  %v{i + 1} = arith.addf %v{i}, %v{i} : tensor<4xf32>" for i in range(200000))
head = "func.func @f(%v0: tensor<4xf32>) -> tensor<4xf32> {"
tail = "  return %v9 : tensor<4xf32> }"
compile_module("\\n".join([head, rows, tail]), progress=lambda _: print("running", flush=True))
"""


def test_bytes_are_a_program_and_progress_is_told() -> None:
    seen: list[float] = []
    vmfb = compile_module(ADD, progress=seen.append)
    assert b"module.fb" in vmfb[:64]
    assert seen == sorted(seen)
    assert seen


def test_error_carries_the_compilers_first_lines() -> None:
    with pytest.raises(PyvlmError, match="unknown") as error:
        compile_module("module { foo }")
    assert error.value.code == "compile_failed"


def test_wrong_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "COMPILER_VERSION", "3.8.0")
    with pytest.raises(PyvlmError, match=r"must be iree-base-compiler==3\.8\.0") as error:
        check_compiler()
    assert error.value.code == "runtime_missing"


def test_kernels_refuse_other_devices() -> None:
    with pytest.raises(PyvlmError, match="vulkan"):
        CompileOptions(device="vulkan").flags()
    flags = CompileOptions("codegen", device="vulkan", extra_flags=("--x",)).flags()
    assert flags == ("--iree-hal-target-device=vulkan", "--x")


def test_features_follow_the_target() -> None:
    portable = target_features(CompileOptions(target_cpu="x86-64-v3"))
    assert {"+avx2", "+fma", "+f16c"} <= set(portable)
    assert not any(feature.startswith("+avx512") for feature in portable)
    assert target_features(CompileOptions(target_cpu="generic")) == ()
    assert set(target_features()) >= {"+sse2"}


def test_a_cpu_that_nobody_knows_is_the_callers_mistake() -> None:
    with pytest.raises(PyvlmError, match="--target-cpu 'nosuchcpu'") as error:
        compile_module(ADD, CompileOptions(target_cpu="nosuchcpu"))
    assert (error.value.code, error.value.param) == ("invalid_parameter", "target_cpu")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the child in /proc")
@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_the_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_COMPILE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"running\n"
        tools = _children(child.pid)
        assert tools
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=10)
    assert b"KeyboardInterrupt" in errors
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in tools) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in tools)
    assert list(tmp_path.iterdir()) == []  # its folder is gone too


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_full_temporary_directory_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(PyvlmError, match=r"cannot be run with files in .*No space left") as info:
        compile_module(ADD)
    assert info.value.code == "compile_failed"


def test_the_pins_of_the_package_are_the_version_that_is_checked() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    pins = {pin for pin in project["project"]["dependencies"] if "==" in pin}
    assert pins == {
        f"{name}=={_runtime_library.VERSION}" for name in _runtime_library.REQUIRED_PACKAGES
    }
    assert compiler.COMPILER_VERSION == _runtime_library.VERSION

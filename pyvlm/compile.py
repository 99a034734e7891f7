"""Runs the IREE compiler in a child process: MLIR text in, program bytes out.

A child, so that Ctrl-C stops a compilation at once and a crash of the compiler is an error here.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pyvlm import _runtime_library
from pyvlm.emit.layout import Lowering
from pyvlm.errors import PyvlmError
from pyvlm.models.config import Quantize

COMPILER_VERSION = _runtime_library.VERSION  # another release's runtime refuses the program
Progress = Callable[[float], None]  # elapsed seconds

_POLL_S = 0.1
_CPU_DEVICES = ("local-task", "local-sync", "local")
_MAX_ERROR_LINES = 6
_UNKNOWN_CPU = "Unknown CPU for target architecture"  # what the compiler says then
# Packs weights once at load, where the optimiser sees them as constants; without it the generated
# code is 5 to 25 times slower. The larger stack limit is for fused norm and pack dispatches.
_CODEGEN_CPU_FLAGS = (
    "--iree-opt-level=O3",
    "--iree-global-opt-data-tiling=true",
    "--iree-llvmcpu-enable-ukernels=all",
    "--iree-llvmcpu-stack-allocation-limit=262144",
)
# Constants that would grow are not computed at load: int8 weights stay the only copy.
_NO_WIDENING = "--iree-opt-const-expr-max-size-increase-threshold=0"


@dataclass(frozen=True, slots=True)
class CompileOptions:
    lowering: Lowering = "kernels"
    device: str = "local-task"
    target_cpu: str = "host"
    quantize: Quantize = "none"
    extra_flags: tuple[str, ...] = ()

    def flags(self) -> tuple[str, ...]:
        """Command line of the compiler; part of a bundle's fingerprint."""
        is_widened = self.lowering == "codegen" and self.quantize != "none"
        widening = (_NO_WIDENING,) if is_widened else ()
        if self.device not in _CPU_DEVICES:
            if self.lowering == "kernels":
                raise PyvlmError(
                    f"native kernels run on the CPU only, not on device {self.device!r}",
                    code="invalid_parameter",
                    param="lowering",
                )
            return (f"--iree-hal-target-device={self.device}", *widening, *self.extra_flags)
        target = (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            f"--iree-llvmcpu-target-cpu={self.target_cpu}",
        )
        tuning = _CODEGEN_CPU_FLAGS if self.lowering == "codegen" else ()
        return (*target, *tuning, *widening, *self.extra_flags)


def check_compiler() -> str:
    """The installed compiler's version; an error if it is missing or not the pinned one."""
    try:
        version = metadata.version("iree-base-compiler")
    except metadata.PackageNotFoundError:
        version = ""
    if version != COMPILER_VERSION:
        found = f"version {version} is installed" if version else "it is not installed"
        raise PyvlmError(
            f"the IREE compiler must be iree-base-compiler=={COMPILER_VERSION}; {found}",
            code="runtime_missing",
        )
    return version


def compile_module(
    mlir: str,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
    scratch: Path | None = None,
) -> bytes:
    """Compiles a module; `progress` is called about ten times a second.

    The compiler's files live in a folder inside `scratch`, or where temporary files go.
    """
    check_compiler()
    options = options or CompileOptions()
    try:
        with tempfile.TemporaryDirectory(prefix="pyvlm-compile-", dir=scratch) as folder:
            return _run(mlir, options, Path(folder), progress)
    except OSError as error:
        raise PyvlmError(
            f"the compiler cannot be run with files in {scratch or tempfile.gettempdir()}: "
            f"{error.strerror or error}",
            code="compile_failed",
        ) from error


def target_features(options: CompileOptions | None = None) -> tuple[str, ...]:
    """CPU features, as LLVM names such as `+avx2`, that a program compiled so may use."""
    options = options or CompileOptions()
    text = compile_module(
        "module { util.func public @f(%a: tensor<1xf32>) -> tensor<1xf32> {"
        " util.return %a : tensor<1xf32> } }",
        CompileOptions(
            lowering=options.lowering,
            device=options.device,
            target_cpu=options.target_cpu,
            extra_flags=(*options.extra_flags, "--compile-to=stream"),
        ),
    ).decode()
    found = re.search(r'cpu_features = "([^"]*)"', text)
    features = found.group(1).split(",") if found else []
    return tuple(sorted(feature for feature in features if feature.startswith("+")))


def _run(mlir: str, options: CompileOptions, folder: Path, progress: Progress | None) -> bytes:
    source, target, log = folder / "model.mlir", folder / "model.vmfb", folder / "log"
    source.write_text(mlir)
    command = [_tool(), str(source), *options.flags(), "-o", str(target)]
    with log.open("wb") as errors:
        status = _wait(command, errors.fileno(), progress)
    if status != 0:
        raise _failure(status, log.read_text(errors="replace"), options)
    return target.read_bytes()


def _wait(command: list[str], errors: int, progress: Progress | None) -> int:
    start = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=errors, stderr=subprocess.STDOUT
    ) as child:
        try:
            while True:
                try:
                    return child.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    if progress is not None:
                        progress(time.monotonic() - start)
        finally:
            child.kill()  # no effect on a child that has ended


def _failure(status: int, log: str, options: CompileOptions) -> PyvlmError:
    if _UNKNOWN_CPU in log:
        return PyvlmError(
            f"--target-cpu {options.target_cpu[:60]!r} is no CPU that the compiler knows; it takes "
            "LLVM's names, such as x86-64-v3",
            code="invalid_parameter",
            param="target_cpu",
        )
    lines = [line for line in log.splitlines() if "error:" in line] or log.splitlines()
    text = "\n".join(line[:300] for line in lines[:_MAX_ERROR_LINES])
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    return PyvlmError(f"the compiler ended with {ended}: {text}", code="compile_failed")


def _tool() -> str:
    from iree.compiler.tools.binaries import find_tool

    return str(find_tool("iree-compile"))

"""Small modules compiled on the spot and loaded through pyvlm._core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def device() -> object:
    from pyvlm import _core

    return _core.Device(num_threads=2)


@pytest.fixture(scope="session")
def compile_mlir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles MLIR text for this CPU, each text once per session."""
    from iree import compiler

    folder = tmp_path_factory.mktemp("modules")
    paths: dict[str, Path] = {}

    def compile_text(text: str) -> Path:
        if text not in paths:
            path = folder / f"{len(paths)}.vmfb"
            flags = [
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                "--iree-llvmcpu-target-cpu=host",
            ]
            path.write_bytes(compiler.compile_str(text, extra_args=flags))
            paths[text] = path
        return paths[text]

    return compile_text


@pytest.fixture(
    scope="session", params=["kernels", pytest.param("codegen", marks=pytest.mark.slow)]
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    """The small model, compiled once per lowering and session."""
    from small_model import SmallModel

    return SmallModel(request.param, tmp_path_factory.mktemp(request.param))

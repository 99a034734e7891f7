"""Runs a compiled module through `pyvlm._core`, with the native kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyvlm import _core
from pyvlm.compile import CompileOptions, compile_module
from pyvlm.emit.layout import Lowering, Param, pack
from pyvlm.weights.archive import ArchiveWriter


class NativeModule:
    """As `CompiledModule`, on the engine's own device and loader."""

    def __init__(
        self,
        folder: Path,
        mlir: str,
        lowering: Lowering,
        params: Mapping[str, Param],
        weights: Mapping[str, NDArray[Any]],
    ) -> None:
        packed = {name: pack(param, weights[param.matrix]) for name, param in params.items()}
        sizes = {name: array.nbytes for name, array in packed.items()}
        with ArchiveWriter(folder / "weights.irpa", sizes) as writer:
            for name, array in packed.items():
                writer.add(name, [array])
        vmfb = folder / "model.vmfb"
        vmfb.write_bytes(compile_module(mlir, CompileOptions(lowering=lowering)))
        device = _core.Device("local-task", 2)
        self._program = _core.Program(device, str(vmfb), str(folder / "weights.irpa"))

    def invoke(self, function: str, *arguments: Any) -> list[NDArray[Any]]:
        """Arrays are copied, so the caller's keep their values."""
        passed = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        return [np.array(result) for result in self._program.invoke(function, passed)]

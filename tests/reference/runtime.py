"""Runs a compiled module through iree.runtime, a second and independent copy of the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from pyvlm.compile import CompileOptions, compile_module
from pyvlm.emit.layout import Lowering, Param, pack

# Some dispatches keep rows on the worker's stack; the default of 128 KiB overflows.
rt.flags.parse_flags("--task_worker_stack_size=1048576")


class CompiledModule:
    """One module with its weights on one local-task device."""

    def __init__(
        self,
        mlir: str,
        lowering: Lowering,
        params: Mapping[str, Param],
        weights: Mapping[str, NDArray[Any]],
    ) -> None:
        vmfb = compile_module(mlir, CompileOptions(lowering=lowering))
        self._config = rt.Config("local-task")
        index = rt.ParameterIndex()
        for name, param in params.items():
            index.add_buffer(name, pack(param, weights[param.matrix]).tobytes())
        instance = self._config.vm_instance
        context = rt.SystemContext(
            vm_modules=[
                rt.create_hal_module(instance, self._config.device),
                rt.create_io_parameters_module(instance, index.create_provider(scope="model")),
                rt.VmModule.copy_buffer(instance, vmfb),
            ],
            config=self._config,
        )
        self._module = context.modules.model

    def invoke(self, function: str, *arguments: Any) -> list[NDArray[Any]]:
        """Arrays are copied to the device, so the caller's keep their values."""
        device = self._config.device
        passed = [
            rt.asdevicearray(device, a.copy()) if isinstance(a, np.ndarray) else a
            for a in arguments
        ]
        results = getattr(self._module, function)(*passed)
        many = results if isinstance(results, tuple) else (results,)
        return [np.array(r.to_host()) for r in many]

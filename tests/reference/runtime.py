"""Runs a compiled module through iree.runtime, a second and independent copy of the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from pyvlm.compile import CompileOptions, compile_module
from pyvlm.emit.layout import pack, parameters
from pyvlm.emit.program import EmitOptions, Program, emit
from pyvlm.models.config import ModelConfig

# Some dispatches keep rows on the worker's stack; the default of 128 KiB overflows.
rt.flags.parse_flags("--task_worker_stack_size=1048576")


class CompiledModel:
    """One module with its weights on one local-task device."""

    def __init__(
        self, config: ModelConfig, options: EmitOptions, weights: Mapping[str, NDArray[Any]]
    ) -> None:
        self.config, self.options = config, options
        self.program: Program = emit(config, options)
        self.vmfb = compile_module(self.program.mlir, CompileOptions(lowering=options.lowering))
        self._config = rt.Config("local-task")
        index = rt.ParameterIndex()
        for name, param in parameters(config, options.lowering, options.capacity).items():
            index.add_buffer(name, pack(param, weights[name]).tobytes())
        provider = index.create_provider(scope="model")
        instance = self._config.vm_instance
        context = rt.SystemContext(
            vm_modules=[
                rt.create_hal_module(instance, self._config.device),
                rt.create_io_parameters_module(instance, provider),
                rt.VmModule.copy_buffer(instance, self.vmfb),
            ],
            config=self._config,
        )
        self._module = context.modules.model

    def device_array(self, array: NDArray[Any]) -> Any:
        return rt.asdevicearray(self._config.device, array)

    def invoke(self, function: str, *arguments: Any) -> list[NDArray[Any]]:
        """Arrays are copied to the device; device arrays are passed as they are."""
        results = getattr(self._module, function)(*arguments)
        many = results if isinstance(results, tuple) else (results,)
        return [np.array(r.to_host()) for r in many]

"""Random weights of a given shape, as float32 arrays that hold exactly what the model stores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyvlm.emit.layout import parameters, position_table
from pyvlm.emit.quantize import dequantize_rows, quantize_rows
from pyvlm.emit.rope import rope_table
from pyvlm.models.config import ModelConfig

Array = NDArray[np.float32]


def random_weights(config: ModelConfig, capacity: int, seed: int = 0) -> dict[str, Array]:
    """By parameter name, in logical shape. Magnitudes keep activations near one."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    plain = parameters(replace(config, quantize="none"), "codegen", capacity)
    quantized = parameters(config, "codegen", capacity)
    for name, param in plain.items():
        if name == "rope":
            value = rope_table(config.decoder.rope, config.decoder.head_dim, capacity)
        elif name == "vision.position_table":
            assert config.vision is not None
            value = position_table(config.vision.grid).astype(np.float32)
        elif name.endswith(("norm1", "norm2", "_norm")):
            value = 1.0 + 0.1 * rng.standard_normal(param.logical)
        else:
            columns = param.logical[-1] if len(param.logical) > 1 else 100
            gain = 4.0 if name == "embed" else 1.5
            value = gain * rng.standard_normal(param.logical) / np.sqrt(columns)
        stored = np.float16 if param.dtype == "f16" else np.float32
        weights[name] = value.astype(stored).astype(np.float32)
        if quantized[name].is_quantized:
            weights[name] = dequantize_rows(*quantize_rows(weights[name]), param.logical[1])
    return weights

"""Small checkpoints on disk, and archives read back by the IREE runtime."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pyvlm.emit.layout import NUMPY_DTYPES, Param

Array = NDArray[Any]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def llama_tensors(seed: int = 0, **config: Any) -> dict[str, Array]:
    """Random float32 tensors of a small Llama checkpoint, in Hugging Face names."""
    c = {**LLAMA, **config}
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    kv = hidden // c["num_attention_heads"] * c["num_key_value_heads"]
    shapes = {
        "model.embed_tokens.weight": (c["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (c["vocab_size"], hidden),
    }
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {
            f"{layer}input_layernorm.weight": (hidden,),
            f"{layer}post_attention_layernorm.weight": (hidden,),
            f"{layer}self_attn.q_proj.weight": (hidden, hidden),
            f"{layer}self_attn.k_proj.weight": (kv, hidden),
            f"{layer}self_attn.v_proj.weight": (kv, hidden),
            f"{layer}self_attn.o_proj.weight": (hidden, hidden),
            f"{layer}mlp.gate_proj.weight": (inner, hidden),
            f"{layer}mlp.up_proj.weight": (inner, hidden),
            f"{layer}mlp.down_proj.weight": (hidden, inner),
        }
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def write_llama(directory: Path, tensors: Mapping[str, Array] | None = None, **config: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**LLAMA, **config}))
    save_file(
        dict(llama_tensors() if tensors is None else tensors), directory / "model.safetensors"
    )
    return directory


def read_archive(path: Path, params: Mapping[str, Param]) -> dict[str, Array]:
    """All entries with their stored shape; the independent reader of what we write."""
    index = iree.runtime.ParameterIndex()
    index.load(str(path))
    found = {}
    for name, entry in index.items():
        dtype = np.dtype(NUMPY_DTYPES[params[name].dtype])
        assert entry.length == math.prod(params[name].shape) * dtype.itemsize
        raw = np.frombuffer(bytes(entry.file_view), dtype)
        found[name] = raw.reshape(params[name].shape)
    return found


def unpack(param: Param, stored: Array) -> Array:
    """Row by row, the plain way round of the packing in `pyvlm.emit.layout`."""
    if param.packing == "plain":
        return stored
    rows = np.zeros(param.logical, stored.dtype)
    half = param.logical[0] // 2
    for panel in range(stored.shape[0]):
        for lane in range(16):
            if param.packing == "panels":
                row, limit = panel * 16 + lane, param.logical[0]
            elif lane < 8:
                row, limit = panel * 8 + lane, half
            else:
                row, limit = half + panel * 8 + lane - 8, 2 * half
            if row < limit:
                rows[row] = stored[panel, :, lane]
            else:
                assert not stored[panel, :, lane].any()
    return rows

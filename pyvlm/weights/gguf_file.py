"""One GGUF file of a Llama-type model: its metadata, and its tensors under our usual names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize

from pyvlm.errors import PyvlmError
from pyvlm.files import file_digest, file_identity
from pyvlm.weights.gguf_reader import GgufTensor, read_gguf
from pyvlm.weights.source import Array, TensorInfo

_PLAIN = {GGMLQuantizationType.F16: np.float16, GGMLQuantizationType.F32: np.float32}

_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
ROPE_FACTORS = "rope_freqs.weight"  # divisors of the frequencies: part of the configuration


class GgufFile:
    """Metadata by key, tensors by row range. The file stays mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_gguf(path)
        self.metadata: Mapping[str, Any] = header.metadata
        if self.metadata.get("split.count", 1) > 1:
            count = self.metadata["split.count"]
            raise _unsupported(f"{path} is one of {count} parts; merge them into one file")
        self.architecture = str(self.metadata.get("general.architecture", ""))
        self._raw = header.tensors
        self._names = {_translate(name): name for name in self._raw if name != ROPE_FACTORS}
        self._heads = self._rotary_heads()
        self.tensors: Mapping[str, TensorInfo] = {
            ours: TensorInfo(self._raw[theirs].shape, self._raw[theirs].kind.name)
            for ours, theirs in self._names.items()
        }

    def rows(self, name: str, start: int, stop: int) -> Array:
        tensor = self._raw[self._names[name]]
        if len(tensor.shape) == 1:
            return _dequantize(tensor, tensor.data).reshape(-1, 1)[start:stop]
        heads = self._heads.get(name.split(".")[-2])
        order = None if heads is None else _rotary_order(tensor.shape[0], heads)
        rows = tensor.data[start:stop] if order is None else tensor.data[order[start:stop]]
        return _dequantize(tensor, rows)

    def rope_factors(self) -> Array | None:
        tensor = self._raw.get(ROPE_FACTORS)
        return None if tensor is None else _dequantize(tensor, tensor.data).reshape(-1)

    def label(self, name: str) -> str:
        return self._names.get(name, name)

    def digest(self) -> str:
        return file_digest(self.path)

    def identity(self) -> tuple[tuple[str, int, int], ...]:
        return (file_identity(self.path),)

    def _rotary_heads(self) -> Mapping[str, int]:
        """Projections whose rows such files keep in the order of interleaved rotation."""
        if self.architecture != "llama":
            return {}
        heads = self.metadata.get("llama.attention.head_count")
        kv_heads = self.metadata.get("llama.attention.head_count_kv", heads)
        if not (isinstance(heads, int) and isinstance(kv_heads, int)):
            return {}  # the configuration refuses it by name
        return {"q_proj": heads, "k_proj": kv_heads}


def _rotary_order(rows: int, heads: int) -> Array:
    """Source row of each row: pairs (2j, 2j+1) of a head go back to (j, j + D/2)."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _translate(name: str) -> str:
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER:
        return name  # left as it is: reported as unexpected
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


def _dequantize(tensor: GgufTensor, data: Array) -> Array:
    """Rows of bytes as rows of float16 or float32."""
    if tensor.kind in _PLAIN:
        return data.view(_PLAIN[tensor.kind])
    try:
        with np.errstate(all="ignore"):  # a damaged block: found by the check for NaN
            return np.asarray(dequantize(data, tensor.kind), np.float32)
    except NotImplementedError as error:
        kind = tensor.kind.name
        raise _unsupported(f"tensor {tensor.name} is stored as {kind}") from error


def _unsupported(message: str) -> PyvlmError:
    return PyvlmError(message, code="model_unsupported")

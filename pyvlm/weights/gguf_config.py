"""GGUF metadata as the config.json and generation_config.json of an equal checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.weights.gguf_file import GgufFile

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.sliding_window": "sliding_window",
    "attention.key_length": "head_dim",
}
# Say nothing that the tensors or other fields do not, or nothing about the computation.
_INERT = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"})
_SCALING = "rope.scaling."


def to_config(file: GgufFile) -> dict[str, Any]:
    """config.json under transformers' names; anything that has no place there is an error."""
    arch = file.architecture
    if arch not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise _unsupported(f"general.architecture = {arch!r} is not supported ({known} are)")
    fields = {
        key.removeprefix(f"{arch}."): value
        for key, value in file.metadata.items()
        if key.startswith(f"{arch}.")
    }
    config: dict[str, Any] = {"model_type": arch, "architectures": [_ARCHITECTURES[arch]]}
    for name, ours in _FIELDS.items():
        if name not in fields:
            raise PyvlmError(f"{file.path}: {arch}.{name} is missing", code="model_invalid")
        config[ours] = fields.pop(name)
    for name, ours in _OPTIONAL.items():
        if name in fields:
            config[ours] = fields.pop(name)
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config |= _rope(file, fields, config)
    config |= _vocabulary(file)
    _reject_rest(arch, fields, config)
    return config


def to_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """End of text, of turn and of message all end a generation."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    ends = list(dict.fromkeys(i for i in ids if i is not None))
    config: dict[str, Any] = {"eos_token_id": ends if len(ends) != 1 else ends[0]}
    for key, name in (("bos_token_id", "bos_token_id"), ("padding_token_id", "pad_token_id")):
        if (value := metadata.get(f"tokenizer.ggml.{key}")) is not None:
            config[name] = value
    return config


def _vocabulary(file: GgufFile) -> dict[str, Any]:
    embedding = file.tensors.get("model.embed_tokens.weight")
    if embedding is None:
        raise PyvlmError("missing tensors: token_embd.weight", code="missing_tensor")
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "lm_head.weight" not in file.tensors,
        **{
            name: file.metadata[f"tokenizer.ggml.{name}"]
            for name in ("bos_token_id", "eos_token_id")
            if f"tokenizer.ggml.{name}" in file.metadata
        },
    }


def _rope(file: GgufFile, fields: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    theta = fields.pop("rope.freq_base", 10000.0)
    factors = file.rope_factors()
    scaling = {
        key.removeprefix(_SCALING): fields.pop(key)
        for key in sorted(fields)
        if key.startswith(_SCALING) and key not in _INERT
    }
    kind = scaling.pop("type", "none")
    if factors is not None:
        if kind != "none" or scaling:
            raise _unsupported(f"rope scaling {kind!r} together with rope_freqs.weight")
        return {"rope_theta": theta, "rope_scaling": _as_longrope(factors.tolist(), config)}
    if kind == "none":
        scaling.pop("original_context_length", None)
        _reject_scaling(scaling)
        return {"rope_theta": theta}
    return {"rope_theta": theta, "rope_scaling": _scaling(kind, scaling, config)}


def _as_longrope(factors: list[float], config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama 3's factors are stored per frequency; with equal short and long ones, longrope
    divides by them at any length."""
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _scaling(kind: str, scaling: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    if kind not in ("linear", "yarn"):
        raise _unsupported(f"rope.scaling.type = {kind!r} is not supported (linear and yarn are)")
    result: dict[str, Any] = {"rope_type": kind, "factor": scaling.pop("factor", None)}
    if kind == "yarn":
        original = scaling.pop("original_context_length", config["max_position_embeddings"])
        result["original_max_position_embeddings"] = original
        for key in ("yarn_beta_fast", "yarn_beta_slow"):
            if key in scaling:
                result[key.removeprefix("yarn_")] = scaling.pop(key)
    else:
        scaling.pop("original_context_length", None)
    _reject_scaling(scaling)
    return result


def _reject_scaling(rest: Mapping[str, Any]) -> None:
    for key, value in rest.items():
        raise _unsupported(f"{_SCALING}{key} = {value!r} is not supported")


def _reject_rest(arch: str, fields: dict[str, Any], config: Mapping[str, Any]) -> None:
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for name in ("rope.dimension_count", "attention.value_length"):
        if fields.pop(name, head_dim) != head_dim:
            raise _unsupported(f"{arch}.{name} differs from the head size {head_dim}")
    if fields.pop("attention.causal", True) is not True:
        raise _unsupported(f"{arch}.attention.causal = False is not supported")
    for name, value in fields.items():
        if name not in _INERT and value not in (None, False, 0):
            raise _unsupported(f"{arch}.{name} = {value!r} is not supported")


def _unsupported(message: str) -> PyvlmError:
    return PyvlmError(f"GGUF: {message}", code="model_unsupported")

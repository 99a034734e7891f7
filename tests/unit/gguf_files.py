"""Small GGUF files, written with the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from tokenizers import pre_tokenizers

from tests.unit.stored import LLAMA, Array, llama_tensors

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name == "lm_head.weight":
        return "output.weight"
    if not name.startswith("model.layers."):
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[name.split(".")[1]] + ".weight"
    _, _, layer, *stem, kind = name.split(".")
    return f"blk.{layer}.{_LAYER['.'.join(stem)]}.{kind}"


def interleaved(weight: Array, heads: int) -> Array:
    """The order of rows that llama.cpp's converter gives to q and k."""
    rows = weight.shape[0]
    halves = weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    tensors: Mapping[str, Array] | None = None,
    *,
    arch: str = "llama",
    fields: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    extra: Mapping[str, Array] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    vocabulary: Any = None,
) -> Path:
    """`tensors` in Hugging Face names and order of rows; `fields` under the architecture."""
    tensors = llama_tensors() if tensors is None else tensors
    writer = gguf.GGUFWriter(path, arch)
    values: dict[str, Any] = {
        "context_length": LLAMA["max_position_embeddings"],
        "embedding_length": LLAMA["hidden_size"],
        "block_count": LLAMA["num_hidden_layers"],
        "feed_forward_length": LLAMA["intermediate_size"],
        "attention.head_count": LLAMA["num_attention_heads"],
        "attention.head_count_kv": LLAMA["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": LLAMA["rms_norm_eps"],
        "rope.dimension_count": LLAMA["hidden_size"] // LLAMA["num_attention_heads"],
        "rope.freq_base": 50000.0,
        **(fields or {}),
    }
    for key, value in values.items():
        if key not in drop:
            _add(writer, f"{arch}.{key}", value)
    (vocabulary or byte_vocabulary)(writer)
    for name, tensor in tensors.items():
        kind = (kinds or {}).get(name, Kind.F32)
        theirs = gguf_name(name)
        if arch == "llama" and ".attn_q." in theirs:
            tensor = interleaved(tensor, LLAMA["num_attention_heads"])
        if arch == "llama" and ".attn_k." in theirs:
            tensor = interleaved(tensor, LLAMA["num_key_value_heads"])
        _add_tensor(writer, theirs, tensor, kind)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_vocabulary(
    writer: gguf.GGUFWriter, pre: str = "smollm", has_digit_merge: bool = False, **fields: Any
) -> None:
    """A byte-level BPE: the 256 bytes, a few merges, three control tokens, one user's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d"]
    merges += ["1 2"] * has_digit_merge
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<think>"]
    types = [3, 3, 3, *[1] * (len(tokens) - 4), 4]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": 2}
    for key, value in {**ids, "add_bos_token": False, **fields}.items():
        _add(writer, f"tokenizer.ggml.{key}", value)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def piece_vocabulary(writer: gguf.GGUFWriter, **fields: Any) -> None:
    """A SentencePiece BPE with byte fallback; scores rank the merges."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    types = [2, 3, 3, *[6] * 256]
    pieces = ["▁he", "ll", "▁hell", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "he", "lo"]
    letters = list("▁helowrdx.")
    tokens += pieces + letters
    types += [1] * (len(pieces) + len(letters))
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [-1e3] * len(letters)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores(scores)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    for key, value in {**ids, **fields}.items():
        _add(writer, f"tokenizer.ggml.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Array, kind: Kind) -> None:
    if kind == Kind.F32:
        writer.add_tensor(name, tensor)
    elif kind == Kind.F16:
        writer.add_tensor(name, tensor.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)

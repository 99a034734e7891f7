"""Llama-type decoders (llama, mistral, qwen2): which checkpoint tensors fill which parameter."""

from __future__ import annotations

from pyvlm.models.config import DecoderConfig
from pyvlm.weights.source import Piece

Sources = dict[str, tuple[Piece, ...]]


def decoder_sources(config: DecoderConfig, prefix: str, head: str = "lm_head.weight") -> Sources:
    """Parameter name -> the tensors whose rows follow each other in it."""
    hidden = config.hidden_size
    vocab = (config.vocab_size, hidden)
    sources: Sources = {
        "embed": (Piece(f"{prefix}embed_tokens.weight", vocab),),
        "final_norm": (Piece(f"{prefix}norm.weight", (hidden,)),),
    }
    if not config.tied_head:
        sources["head"] = (Piece(head, vocab),)
    for layer in range(config.num_layers):
        sources |= _layer(config, f"{prefix}layers.{layer}.", f"layers.{layer}.")
    return sources


def _layer(config: DecoderConfig, theirs: str, ours: str) -> Sources:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    projections = (("q", q_rows), ("k", kv_rows), ("v", kv_rows))
    attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."

    def one(name: str, *shape: int) -> tuple[Piece, ...]:
        return (Piece(name, shape),)

    sources = {
        f"{ours}norm1": one(f"{theirs}input_layernorm.weight", hidden),
        f"{ours}qkv": tuple(
            Piece(f"{attention}{p}_proj.weight", (rows, hidden)) for p, rows in projections
        ),
        f"{ours}o": one(f"{attention}o_proj.weight", hidden, q_rows),
        f"{ours}norm2": one(f"{theirs}post_attention_layernorm.weight", hidden),
        f"{ours}gate_up": (
            Piece(f"{mlp}gate_proj.weight", (inner, hidden)),
            Piece(f"{mlp}up_proj.weight", (inner, hidden)),
        ),
        f"{ours}down": one(f"{mlp}down_proj.weight", hidden, inner),
    }
    if config.qkv_bias:
        sources[f"{ours}qkv_bias"] = tuple(
            Piece(f"{attention}{p}_proj.bias", (rows,)) for p, rows in projections
        )
    return sources

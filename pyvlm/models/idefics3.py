"""Idefics3 and SmolVLM: the SigLIP tower and the connector in the checkpoint's names."""

from __future__ import annotations

from pyvlm.models.config import ModelConfig, VisionConfig
from pyvlm.models.llama import Sources, decoder_sources
from pyvlm.weights.source import Piece

TEXT_PREFIX = "model.text_model."
VISION_PREFIX = "model.vision_model."


def sources(config: ModelConfig) -> Sources:
    vision = config.vision
    assert vision is not None
    width = vision.hidden_size * vision.pixel_shuffle**2
    connector = "model.connector.modality_projection.proj.weight"
    return {
        **decoder_sources(config.decoder, TEXT_PREFIX),
        **_tower(vision),
        "vision.connector": (Piece(connector, (config.decoder.hidden_size, width)),),
    }


def _tower(v: VisionConfig) -> Sources:
    hidden, patch = v.hidden_size, v.patch_size
    embeddings = f"{VISION_PREFIX}embeddings."
    position = f"{embeddings}position_embedding.weight"
    found: Sources = {
        "vision.patch": (
            Piece(f"{embeddings}patch_embedding.weight", (hidden, v.num_channels, patch, patch)),
        ),
        "vision.patch_bias": (Piece(f"{embeddings}patch_embedding.bias", (hidden,)),),
        "vision.position": (Piece(position, (v.num_patches, hidden)),),
        **_norm("vision.post_norm", f"{VISION_PREFIX}post_layernorm", hidden),
    }
    for i in range(v.num_layers):
        found |= _block(v, f"{VISION_PREFIX}encoder.layers.{i}.", f"vision.blocks.{i}.")
    return found


def _block(v: VisionConfig, theirs: str, ours: str) -> Sources:
    hidden, inner, attention = v.hidden_size, v.intermediate_size, f"{theirs}self_attn."
    qkv = tuple(f"{attention}{p}_proj" for p in "qkv")
    return {
        **_norm(f"{ours}norm1", f"{theirs}layer_norm1", hidden),
        **_linear(f"{ours}qkv", qkv, hidden, hidden),
        **_linear(f"{ours}o", (f"{attention}out_proj",), hidden, hidden),
        **_norm(f"{ours}norm2", f"{theirs}layer_norm2", hidden),
        **_linear(f"{ours}fc1", (f"{theirs}mlp.fc1",), inner, hidden),
        **_linear(f"{ours}fc2", (f"{theirs}mlp.fc2",), hidden, inner),
    }


def _norm(ours: str, theirs: str, size: int) -> Sources:
    return {
        ours: (Piece(f"{theirs}.weight", (size,)),),
        f"{ours}_bias": (Piece(f"{theirs}.bias", (size,)),),
    }


def _linear(ours: str, theirs: tuple[str, ...], rows: int, columns: int) -> Sources:
    return {
        ours: tuple(Piece(f"{name}.weight", (rows, columns)) for name in theirs),
        f"{ours}_bias": tuple(Piece(f"{name}.bias", (rows,)) for name in theirs),
    }

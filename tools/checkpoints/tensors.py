"""Names, shapes and random values of a checkpoint's tensors.

The scales keep every activation near one in size through any number of layers and give logits a
spread of about three, so that a wrong result cannot hide behind a flat distribution. What the
layers add to the residual outweighs the token's own embedding: with a tied head the model would
otherwise only repeat its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from tools.checkpoints.shapes import Shape, TextShape, VisionShape

Tensor = NDArray[np.float32]
LOGIT_SPREAD = 3.0
SCORE_SPREAD = 1.4  # of q and k: attention scores of about its square
RESIDUAL = 3.6  # size of what all layers add, against 3 / sqrt(hidden) of an embedding


class TensorSource:
    """Draws tensors from one seeded stream: the order of the calls is part of the result."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...], spread: float) -> Tensor:
        values = self._random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(spread)
        return values

    def matrix(self, rows: int, columns: int, gain: float) -> Tensor:
        """Outputs of size `gain` for inputs of size one."""
        return self.normal((rows, columns), gain / sqrt(columns))

    def norm(self, width: int) -> Tensor:
        return 1.0 + self.normal((width,), 0.1)


def _embedding_spread(text: TextShape) -> float:
    return LOGIT_SPREAD / sqrt(text.hidden)


def _layer_gain(text: TextShape) -> float:
    """Size of one of the two residual branches of a layer."""
    return RESIDUAL / sqrt(2 * text.layers)


def _decoder_layer(
    source: TensorSource, text: TextShape, prefix: str
) -> Iterator[tuple[str, Tensor]]:
    width, kv_width = text.heads * text.head_dim, text.kv_heads * text.head_dim
    gain = _layer_gain(text)
    yield f"{prefix}input_layernorm.weight", source.norm(text.hidden)
    for name, rows, spread in (
        ("q", width, SCORE_SPREAD),
        ("k", kv_width, SCORE_SPREAD),
        ("v", kv_width, 1.0),
    ):
        yield f"{prefix}self_attn.{name}_proj.weight", source.matrix(rows, text.hidden, spread)
        if text.model_type == "qwen2":
            yield f"{prefix}self_attn.{name}_proj.bias", source.normal((rows,), 0.5)
    # An average over positions is smaller than what it averages, hence the factor.
    yield f"{prefix}self_attn.o_proj.weight", source.matrix(text.hidden, width, 2.0 * gain)
    yield f"{prefix}post_attention_layernorm.weight", source.norm(text.hidden)
    for name in ("gate", "up"):
        matrix = source.matrix(text.intermediate, text.hidden, 1.2)
        yield f"{prefix}mlp.{name}_proj.weight", matrix
    # silu(gate) * up of such inputs has a size of about 0.7.
    down = source.matrix(text.hidden, text.intermediate, gain / 0.7)
    yield f"{prefix}mlp.down_proj.weight", down


def decoder_tensors(
    source: TensorSource, text: TextShape, prefix: str, head: str
) -> Iterator[tuple[str, Tensor]]:
    spread = _embedding_spread(text)
    yield f"{prefix}embed_tokens.weight", source.normal((text.vocab, text.hidden), spread)
    for layer in range(text.layers):
        yield from _decoder_layer(source, text, f"{prefix}layers.{layer}.")
    yield f"{prefix}norm.weight", source.norm(text.hidden)
    if not text.tied:
        yield head, source.matrix(text.vocab, text.hidden, LOGIT_SPREAD)


def _biased(
    source: TensorSource, name: str, rows: int, columns: int, gain: float
) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", source.matrix(rows, columns, gain)
    yield f"{name}.bias", source.normal((rows,), 0.1)


def _layer_norm(source: TensorSource, name: str, width: int) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", source.norm(width)
    yield f"{name}.bias", source.normal((width,), 0.1)


def _encoder_layer(
    source: TensorSource, vision: VisionShape, prefix: str
) -> Iterator[tuple[str, Tensor]]:
    width, gain = vision.hidden, 1.0 / sqrt(2 * vision.layers)
    yield from _layer_norm(source, f"{prefix}layer_norm1", width)
    for name, spread in (("q", SCORE_SPREAD), ("k", SCORE_SPREAD), ("v", 1.0)):
        yield from _biased(source, f"{prefix}self_attn.{name}_proj", width, width, spread)
    yield from _biased(source, f"{prefix}self_attn.out_proj", width, width, 2.0 * gain)
    yield from _layer_norm(source, f"{prefix}layer_norm2", width)
    yield from _biased(source, f"{prefix}mlp.fc1", vision.intermediate, width, 1.2)
    yield from _biased(source, f"{prefix}mlp.fc2", width, vision.intermediate, gain / 0.7)


def vision_tensors(
    source: TensorSource, vision: VisionShape, text: TextShape, prefix: str
) -> Iterator[tuple[str, Tensor]]:
    tower, width = f"{prefix}vision_model.", vision.hidden
    patch_dim = 3 * vision.patch**2
    patch = source.matrix(width, patch_dim, 1.5)
    patch = patch.reshape(width, 3, vision.patch, vision.patch)
    yield f"{tower}embeddings.patch_embedding.weight", patch
    yield f"{tower}embeddings.patch_embedding.bias", source.normal((width,), 0.1)
    position = source.normal((vision.grid**2, width), 0.5)
    yield f"{tower}embeddings.position_embedding.weight", position
    for layer in range(vision.layers):
        yield from _encoder_layer(source, vision, f"{tower}encoder.layers.{layer}.")
    yield from _layer_norm(source, f"{tower}post_layernorm", width)
    # A row of a picture is as large as a token's embedding.
    spread = _embedding_spread(text)
    projection = source.matrix(text.hidden, width * vision.scale**2, spread)
    yield f"{prefix}connector.modality_projection.proj.weight", projection


def checkpoint_tensors(shape: Shape, seed: int) -> Iterator[tuple[str, Tensor]]:
    """All tensors under transformers' names, in the order in which they are drawn."""
    source = TensorSource(seed)
    if shape.vision is None:
        yield from decoder_tensors(source, shape.text, "model.", "lm_head.weight")
        return
    yield from vision_tensors(source, shape.vision, shape.text, "model.")
    yield from decoder_tensors(source, shape.text, "model.text_model.", "lm_head.weight")

"""The shapes that `tools/make_checkpoint.py` can make: plain numbers, no weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

StoredType = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True, slots=True)
class TextShape:
    """A decoder of the Llama type. `model_type` qwen2 adds biases to q, k and v."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    model_type: Literal["llama", "qwen2"] = "llama"
    max_positions: int = 8192
    rope_theta: float = 100000.0
    rope: dict[str, float | int | str] = field(default_factory=dict)  # scaling, without theta
    tied: bool = True

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class VisionShape:
    """A SigLIP tower over tiles of `image` pixels, cut by the processor from `longest_edge`."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    image: int
    patch: int
    scale: int
    longest_edge: int
    splitting: bool = True

    @property
    def grid(self) -> int:
        return self.image // self.patch

    @property
    def rows_per_tile(self) -> int:
        return (self.grid // self.scale) ** 2


@dataclass(frozen=True, slots=True)
class Shape:
    """One checkpoint. `vision` is None for a text-only model."""

    text: TextShape
    vision: VisionShape | None
    model_type: Literal["idefics3", "smolvlm"] = "idefics3"
    stored: StoredType = "bf16"
    bpe_vocab: int = 384  # ids below the special tokens of pictures


SMOLVLM_256M = Shape(
    text=TextShape(576, 30, 9, 3, 1536, 49280),
    vision=VisionShape(768, 12, 12, 3072, image=512, patch=16, scale=4, longest_edge=2048),
    bpe_vocab=49152,
)

# The same structure in small: three query heads to a key head, tiles of four rows, 17 tiles.
REDUCED = Shape(
    text=TextShape(192, 3, 3, 1, 320, 512),
    vision=VisionShape(128, 3, 2, 256, image=64, patch=16, scale=2, longest_edge=256),
)


def _text(shape: Shape, **changes: object) -> Shape:
    return replace(shape, text=replace(shape.text, **changes))


def _vision(shape: Shape, **changes: object) -> Shape:
    assert shape.vision is not None
    return replace(shape, vision=replace(shape.vision, **changes))


def _rope(kind: str, max_positions: int, **parameters: float | int) -> Shape:
    """Text-only; a prompt of 200 tokens passes `original_max_position_embeddings`."""
    rope = {"rope_type": kind, **parameters}
    return replace(_text(REDUCED, rope=rope, max_positions=max_positions), vision=None)


# Head size 24, seven by seven patches of 14 pixels in one row a tile, nothing a multiple of 16.
_ODD = Shape(
    text=TextShape(72, 2, 3, 3, 100, 491, tied=False),
    vision=VisionShape(72, 2, 3, 100, image=98, patch=14, scale=7, longest_edge=196),
    stored="f32",
)

SHAPES: dict[str, Shape] = {
    "smolvlm-256m": SMOLVLM_256M,
    "reduced": REDUCED,
    "untiled": _vision(REDUCED, splitting=False),
    "untied": _text(REDUCED, tied=False),
    "qwen2": _text(REDUCED, model_type="qwen2", hidden=128, heads=4, kv_heads=2, rope_theta=1e6),
    "smolvlm-type": replace(REDUCED, model_type="smolvlm", stored="f16"),
    "odd": _ODD,
    "text": replace(REDUCED, vision=None),
    "rope-linear": _rope("linear", 8192, factor=4.0),
    "rope-dynamic": _rope("dynamic", 8192, factor=2.0),
    "rope-llama3": _rope(
        "llama3",
        512,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "rope-yarn": _rope("yarn", 512, factor=4.0, original_max_position_embeddings=128),
}

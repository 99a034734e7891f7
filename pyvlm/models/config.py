"""What the emitters and the packer need to know about a checkpoint: frozen, validated shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DType = Literal["f16", "f32"]
Quantize = Literal["none", "int8"]
RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding parameters under transformers' names (`rope_parameters`)."""

    theta: float = 10000.0
    type: RopeType = "default"
    factor: float = 1.0
    max_position_embeddings: int = 2048
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def max_capacity(self) -> int:
        """Longest context that one fixed table of angles is right for.

        `dynamic` changes its base beyond max_position_embeddings, `longrope` its factors beyond
        original_max_position_embeddings; within these a table per position is exact.
        """
        limit = self.max_position_embeddings
        original = self.original_max_position_embeddings
        if self.type == "longrope" and self.short_factor != self.long_factor and original:
            limit = min(limit, original)
        return limit


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-type decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float = 1e-5
    tied_head: bool = False
    qkv_bias: bool = False
    attention_scale: float | None = None  # None: head_dim ** -0.5
    rope: RopeConfig = field(default_factory=RopeConfig)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """A SigLIP tower over one square tile, pixel shuffle and a linear connector."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    pixel_shuffle: int  # scale_factor of the connector
    norm_eps: float = 1e-6
    num_channels: int = 3

    @property
    def grid(self) -> int:
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        return self.grid**2

    @property
    def patch_dim(self) -> int:
        return self.num_channels * self.patch_size**2

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def rows_per_tile(self) -> int:
        return self.num_patches // self.pixel_shuffle**2


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One checkpoint. `vision` is None for a text-only model."""

    family: str
    decoder: DecoderConfig
    vision: VisionConfig | None = None
    dtype: DType = "f16"  # of the weight matrices, unless they are quantised
    quantize: Quantize = "none"  # of every matrix of the decoder, the tower and the connector
    image_token_id: int | None = None
    text_only_reason: str | None = None  # why a checkpoint with images is served as text

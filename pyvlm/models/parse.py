"""config.json -> ModelConfig. Defaults are those of transformers' configuration classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.files import exists, read_object
from pyvlm.models.config import DecoderConfig, ModelConfig, VisionConfig
from pyvlm.models.fields import Fields, invalid, unsupported
from pyvlm.models.parse_rope import parse_rope

__all__ = ["SUPPORTED_TEXT", "SUPPORTED_VLM", "parse_config", "read_config"]


@dataclass(frozen=True, slots=True)
class _TextDefaults:
    """What transformers fills in for fields that a config leaves out (it writes differences)."""

    vocab_size: int
    intermediate_size: int
    max_positions: int
    hidden_size: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = None
    sliding_window: int | None = None


_TEXT: Mapping[str, _TextDefaults] = {
    "llama": _TextDefaults(32000, 11008, 2048),
    "mistral": _TextDefaults(32000, 14336, 4096 * 32, num_kv_heads=8, sliding_window=4096),
    "qwen2": _TextDefaults(151936, 22016, 32768, num_kv_heads=32, sliding_window=4096),
}
SUPPORTED_TEXT = tuple(_TEXT)
MAX_LAYERS = 1024  # a damaged count must not make us list millions of tensors
SUPPORTED_VLM = ("idefics3", "smolvlm")

# Fields that SmolVLM's published text and vision configs carry from their training code; the
# Idefics3 classes never read them.
_IDEFICS3_TEXT_INERT = ("perceiver_config", "pixel_shuffle_factor", "tie_word_embeddings")
_IDEFICS3_VISION_INERT = ("max_image_size", "size", "use_base_siglip", "tie_word_embeddings")


def read_config(directory: Path) -> dict[str, Any]:
    """The checkpoint's config.json as an object."""
    path = directory / "config.json"
    if not exists(path):
        raise PyvlmError(
            f"{directory} is no model directory: it has no config.json", code="model_not_found"
        )
    return read_object(path)


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Raises model_unsupported or model_invalid, naming the field and its value."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise invalid("", "model_type", model_type, "a string")
    if raw.get("quantization_config"):
        method = raw["quantization_config"]
        raise unsupported("", "quantization_config", method, "only f16, bf16 and f32 weights are")
    if model_type in SUPPORTED_VLM:
        return _parse_idefics3(raw, model_type)
    if model_type in _TEXT:
        fields = Fields(raw)
        tied = fields.boolean("tie_word_embeddings", False)
        return ModelConfig(model_type, _parse_decoder(fields, model_type, tied=tied))
    if isinstance(raw.get("text_config"), Mapping):
        return _parse_unknown_vlm(raw, model_type)
    known = ", ".join((*SUPPORTED_TEXT, *SUPPORTED_VLM))
    raise unsupported("", "model_type", model_type, f"supported: {known}")


def _parse_idefics3(raw: Mapping[str, Any], model_type: str) -> ModelConfig:
    top = Fields(raw)
    tied = top.boolean("tie_word_embeddings", False)
    text = top.child("text_config")
    text.ignore(_IDEFICS3_TEXT_INERT)
    decoder = _parse_decoder(text, text.string("model_type", "llama"), tied=tied)
    vocab_size = top.integer("vocab_size", decoder.vocab_size)
    if vocab_size != decoder.vocab_size:
        raise invalid("", "vocab_size", vocab_size, f"text_config's, {decoder.vocab_size}")
    image_token_id = top.integer("image_token_id", 128257, minimum=0)
    if image_token_id >= decoder.vocab_size:
        raise invalid("", "image_token_id", image_token_id, f"below {decoder.vocab_size}")
    vision = _parse_siglip(top.child("vision_config"), top.integer("scale_factor", 2))
    top.finish()
    return ModelConfig(model_type, decoder, vision, image_token_id=image_token_id)


def _parse_unknown_vlm(raw: Mapping[str, Any], model_type: str) -> ModelConfig:
    """The text model of a family whose vision side we do not know, if it is Llama-type."""
    text = Fields(raw["text_config"], "text_config.")
    text_type = text.string("model_type", "")
    if text_type not in _TEXT:
        raise unsupported("", "model_type", model_type, f"nor is its text model {text_type!r}")
    tied_text = text.boolean("tie_word_embeddings", False)
    tied = Fields(raw).boolean("tie_word_embeddings", tied_text)
    reason = f"the vision side of {model_type!r} is not supported; text only"
    return ModelConfig(
        text_type, _parse_decoder(text, text_type, tied=tied), text_only_reason=reason
    )


def _parse_decoder(fields: Fields, text_type: str, *, tied: bool) -> DecoderConfig:
    defaults = _TEXT.get(text_type)
    if defaults is None:
        supported = ", ".join(SUPPORTED_TEXT)
        raise unsupported(fields.where, "model_type", text_type, f"supported: {supported}")
    hidden = fields.integer("hidden_size", defaults.hidden_size)
    heads = fields.integer("num_attention_heads", defaults.num_heads)
    kv_heads = fields.integer("num_key_value_heads", defaults.num_kv_heads or heads)
    if heads % kv_heads:
        raise invalid(fields.where, "num_key_value_heads", kv_heads, f"a divisor of {heads}")
    max_positions = fields.integer("max_position_embeddings", defaults.max_positions)
    head_dim = _head_dim(fields, hidden, heads)
    _reject_decoder_options(fields, text_type, defaults, max_positions)
    decoder = DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", defaults.intermediate_size),
        num_layers=fields.integer("num_hidden_layers", defaults.num_layers, maximum=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size", defaults.vocab_size),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied_head=tied,
        qkv_bias=text_type == "qwen2",
        rope=parse_rope(fields, max_positions, head_dim),
    )
    fields.finish()
    return decoder


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if not fields.has("head_dim") and hidden % heads:
        raise invalid(fields.where, "num_attention_heads", heads, f"a divisor of {hidden}")
    head_dim = fields.integer("head_dim", hidden // heads)
    if head_dim % 8:
        raise unsupported(fields.where, "head_dim", head_dim, "a multiple of 8 is")
    return head_dim


def _reject_decoder_options(
    fields: Fields, text_type: str, defaults: _TextDefaults, max_positions: int
) -> None:
    fields.require("hidden_act", ("silu", "swish"), default="silu")
    fields.require("mlp_bias", (False,))
    fields.require("attention_bias", (True,) if text_type == "qwen2" else (False,))
    fields.require("rope_interleaved", (False,))
    fields.require("qk_layer_norms", (False,))
    fields.require("is_encoder_decoder", (False,))
    fields.require("is_decoder", (True, False))
    fields.require("add_cross_attention", (False,))
    uses_window = text_type != "qwen2" or fields.boolean("use_sliding_window", False)
    window = fields.get("sliding_window")
    if window is None and text_type == "mistral" and not fields.contains("sliding_window"):
        window = defaults.sliding_window
    if uses_window and isinstance(window, int) and window < max_positions:
        raise unsupported(fields.where, "sliding_window", window, "full attention is")
    if not uses_window:
        fields.ignore(("max_window_layers",))
    layer_types = fields.get("layer_types")
    if layer_types is not None and set(_as_list(layer_types)) != {"full_attention"}:
        raise unsupported(fields.where, "layer_types", layer_types, "full_attention is")


def _as_list(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _parse_siglip(fields: Fields, scale_factor: int) -> VisionConfig:
    fields.ignore(_IDEFICS3_VISION_INERT)
    fields.require("hidden_act", ("gelu_pytorch_tanh",))
    fields.require("num_channels", (3,))
    vision = VisionConfig(
        hidden_size=fields.integer("hidden_size", 1152),
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_layers=fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS),
        num_heads=fields.integer("num_attention_heads", 16),
        image_size=fields.integer("image_size", 224),
        patch_size=fields.integer("patch_size", 32),
        pixel_shuffle=scale_factor,
        norm_eps=fields.number("layer_norm_eps", 1e-6),
    )
    fields.finish()
    if vision.hidden_size % vision.num_heads or vision.head_dim % 8:
        raise unsupported(
            fields.where, "num_attention_heads", vision.num_heads, "heads of a multiple of 8 are"
        )
    if vision.grid < 1 or vision.grid % scale_factor:
        raise invalid("", "scale_factor", scale_factor, f"a divisor of the {vision.grid} patches")
    return vision

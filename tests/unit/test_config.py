"""Parsing of config.json: what is read, what is inert and what is refused by name."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.models.parse import parse_config, read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

# The published configuration of a SmolVLM of 256M parameters, field by field.
SMOLVLM: dict[str, Any] = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "image_token_id": 49190,
    "model_type": "idefics3",
    "scale_factor": 4,
    "text_config": {
        "_flash_attn_2_enabled": True,
        "architectures": ["VLlama3ForCausalLM"],
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "neftune_noise_alpha": 0.0,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "perceiver_config": {"model_type": "vllama3", "resampler_depth": 6},
        "pixel_shuffle_factor": 4,
        "qk_layer_norms": False,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_theta": 100000,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        "use_resampler": False,
        "vocab_size": 49280,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
    "use_cache": True,
    "use_reentrant_checkpointing": False,
    "vision_config": {
        "hidden_size": 768,
        "image_size": 512,
        "max_image_size": {"longest_edge": 512},
        "model_type": "idefics3_vision",
        "num_attention_heads": 12,
        "patch_size": 16,
        "size": {"longest_edge": 2048},
        "tie_word_embeddings": False,
        "use_base_siglip": True,
    },
    "vocab_size": 49280,
}


def llama(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(LLAMA), **changes}


def smolvlm(section: str = "", **changes: Any) -> dict[str, Any]:
    raw = copy.deepcopy(SMOLVLM)
    (raw[section] if section else raw).update(changes)
    return raw


def test_llama_fields_are_read() -> None:
    decoder = parse_config(LLAMA).decoder
    assert (decoder.hidden_size, decoder.intermediate_size, decoder.num_layers) == (64, 96, 2)
    assert (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim) == (4, 2, 16)
    assert (decoder.vocab_size, decoder.norm_eps, decoder.tied_head) == (128, 1e-5, True)
    assert decoder.rope.theta == 10000.0
    assert decoder.rope.max_position_embeddings == 512
    assert not decoder.qkv_bias


def test_smolvlm_published_config_is_read() -> None:
    model = parse_config(SMOLVLM)
    assert model.family == "idefics3"
    assert model.image_token_id == 49190
    decoder, vision = model.decoder, model.vision
    assert vision is not None
    assert (decoder.head_dim, decoder.rope.theta, decoder.tied_head) == (64, 100000.0, False)
    assert (vision.intermediate_size, vision.num_layers, vision.norm_eps) == (3072, 12, 1e-6)
    assert (vision.grid, vision.num_patches, vision.patch_dim, vision.rows_per_tile) == (
        32, 1024, 768, 64,
    )  # fmt: skip


def test_patches_that_do_not_fill_the_tile_are_cut() -> None:
    raw = smolvlm("vision_config", image_size=384, patch_size=14)
    raw["scale_factor"] = 3
    vision = parse_config(raw).vision
    assert vision is not None
    assert (vision.grid, vision.rows_per_tile) == (27, 81)


def test_qwen2_has_qkv_bias_and_ignores_a_window_that_is_off() -> None:
    raw = llama(
        model_type="qwen2", use_sliding_window=False, sliding_window=32, max_window_layers=1
    )
    assert parse_config(raw).decoder.qkv_bias


def test_defaults_are_those_of_the_configuration_class() -> None:
    decoder = parse_config({"model_type": "qwen2"}).decoder
    assert (decoder.vocab_size, decoder.intermediate_size) == (151936, 22016)
    assert (decoder.num_kv_heads, decoder.rope.max_position_embeddings) == (32, 32768)


def test_mistral_without_window_is_read_and_its_default_window_refused() -> None:
    raw = llama(model_type="mistral", max_position_embeddings=32768)
    assert parse_config({**raw, "sliding_window": None}).decoder.num_kv_heads == 2
    with pytest.raises(PyvlmError, match="sliding_window = 4096") as info:
        parse_config(raw)
    assert info.value.code == "model_unsupported"


def test_window_longer_than_the_model_has_no_effect() -> None:
    raw = llama(model_type="mistral", max_position_embeddings=2048, sliding_window=4096)
    assert parse_config(raw).decoder.rope.max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("mlp_bias", True),
        ("attention_bias", True),
        ("sliding_window", 128),
        ("rope_interleaved", True),
        ("qk_layer_norms", True),
        ("partial_rotary_factor", 0.5),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 50.0),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("quantization_config", {"quant_method": "gptq"}),
        ("rope_scaling", {"rope_type": "mrope", "factor": 2.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0, "mrope_section": [1, 2]}),
        ("num_local_experts", 8),
        ("head_dim", 12),
        ("a_field_of_the_future", "on"),
    ],
)
def test_unsupported_option_is_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(PyvlmError) as info:
        parse_config(llama(**{field: value}))
    shown = value
    if field == "rope_scaling":
        field, shown = ("mrope_section", [1, 2]) if "type" in value else ("rope_type", "mrope")
    assert field in info.value.message
    assert repr(shown) in info.value.message
    assert info.value.code == "model_unsupported"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", 0),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 4278190082),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 10),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", float("inf")),
        ("tie_word_embeddings", "yes"),
        ("rope_theta", float("nan")),
    ],
)
def test_malformed_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(PyvlmError, match=field) as info:
        parse_config(llama(**{field: value}))
    assert info.value.code == "model_invalid"


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_unknown_field_that_is_off_is_accepted(value: Any) -> None:
    assert parse_config(llama(a_field_of_the_future=value)) == parse_config(LLAMA)


def test_unsupported_option_below_text_config_names_the_path() -> None:
    with pytest.raises(PyvlmError, match=r"text_config\.hidden_act = 'relu'"):
        parse_config(smolvlm("text_config", hidden_act="relu"))
    with pytest.raises(PyvlmError, match=r"vision_config\.hidden_act = 'gelu'"):
        parse_config(smolvlm("vision_config", hidden_act="gelu"))
    with pytest.raises(PyvlmError, match=r"vision_config\.num_channels = 1"):
        parse_config(smolvlm("vision_config", num_channels=1))


def test_smolvlm_inconsistencies_are_refused() -> None:
    with pytest.raises(PyvlmError, match="vocab_size"):
        parse_config(smolvlm(vocab_size=49152))
    with pytest.raises(PyvlmError, match="image_token_id"):
        parse_config(smolvlm(image_token_id=49280))
    with pytest.raises(PyvlmError, match="scale_factor"):
        parse_config(smolvlm(scale_factor=5))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_rope_in_both_spellings(key: str) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }  # fmt: skip
    if key == "rope_parameters":
        scaling["rope_theta"] = 500000.0
        raw = llama(rope_parameters=scaling)
    else:
        raw = llama(rope_scaling=scaling, rope_theta=500000.0)
    rope = parse_config(raw).decoder.rope
    assert (rope.type, rope.factor, rope.theta) == ("llama3", 8.0, 500000.0)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    assert rope.original_max_position_embeddings == 256


def test_yarn_rope_keeps_its_options() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "truncate": False}
    rope = parse_config(llama(rope_scaling=scaling)).decoder.rope
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (16.0, 1.0, False)
    assert rope.original_max_position_embeddings == 512


def test_longrope_is_capped_where_its_factors_change() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 128, **factors}
    rope = parse_config(llama(rope_scaling=scaling)).decoder.rope
    assert (rope.factor, rope.max_capacity) == (4.0, 128)
    same = {**scaling, "long_factor": [1.0] * 8}
    assert parse_config(llama(rope_scaling=same)).decoder.rope.max_capacity == 512
    with pytest.raises(PyvlmError, match="short_factor"):
        parse_config(llama(rope_scaling={**scaling, "short_factor": [1.0]}))


def test_unknown_vlm_with_llama_text_is_served_as_text() -> None:
    raw = {"model_type": "shinyvlm", "text_config": LLAMA, "vision_config": {"x": 1}}
    model = parse_config(raw)
    assert model.family == "llama"
    assert model.vision is None
    assert model.text_only_reason is not None
    assert "shinyvlm" in model.text_only_reason
    assert model.decoder.tied_head


def test_unknown_vlm_with_unknown_text_is_refused() -> None:
    raw = {"model_type": "shinyvlm", "text_config": {"model_type": "mamba"}}
    with pytest.raises(PyvlmError, match="mamba"):
        parse_config(raw)


def test_unknown_model_type_lists_what_is_supported() -> None:
    with pytest.raises(PyvlmError, match=r"gemma.*llama, mistral, qwen2"):
        parse_config({"model_type": "gemma"})
    with pytest.raises(PyvlmError, match="model_type"):
        parse_config({})


def test_read_config_errors(tmp_path: Any) -> None:
    with pytest.raises(PyvlmError) as info:
        read_config(tmp_path)
    assert info.value.code == "model_not_found"
    assert str(tmp_path) in info.value.message
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PyvlmError) as info:
        read_config(tmp_path)
    assert info.value.code == "model_invalid"
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(PyvlmError, match="object"):
        read_config(tmp_path)

"""Shape of the model, in the words of its config.json."""

from __future__ import annotations

VISION = {
    "model_type": "idefics3_vision",
    "hidden_size": 192,
    "intermediate_size": 640,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_channels": 3,
    "image_size": 96,
    "patch_size": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
}
TEXT = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "vocab_size": 1280,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "use_cache": True,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "pad_token_id": 2,
    "initializer_range": 0.02,
}
SCALE_FACTOR = 2
IMAGE_TOKENS = (VISION["image_size"] // VISION["patch_size"] // SCALE_FACTOR) ** 2

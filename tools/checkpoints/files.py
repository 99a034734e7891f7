"""The JSON files beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.checkpoints.shapes import Shape, TextShape, VisionShape
from tools.checkpoints.tokenizer import SpecialIds

# The published template: a turn ends with `<end_of_utterance>` and a newline.
CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TEXT_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_CLASSES = {"idefics3": "Idefics3", "smolvlm": "SmolVLM", "llama": "Llama", "qwen2": "Qwen2"}


def _rope_fields(text: TextShape) -> dict[str, Any]:
    """Scaled shapes use the present spelling of the parameters, plain ones the older one."""
    if text.rope:
        return {"rope_parameters": {"rope_theta": text.rope_theta, **text.rope}}
    return {"rope_theta": text.rope_theta, "rope_scaling": None}


def _text_config(text: TextShape, ids: SpecialIds) -> dict[str, Any]:
    return {
        "architectures": [f"{_CLASSES[text.model_type]}ForCausalLM"],
        "model_type": text.model_type,
        "attention_dropout": 0.0,
        "bos_token_id": ids.start,
        "eos_token_id": ids.end_of_utterance,
        "pad_token_id": ids.pad,
        "head_dim": text.head_dim,
        "hidden_act": "silu",
        "hidden_size": text.hidden,
        "intermediate_size": text.intermediate,
        "max_position_embeddings": text.max_positions,
        "num_attention_heads": text.heads,
        "num_hidden_layers": text.layers,
        "num_key_value_heads": text.kv_heads,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": text.tied,
        "vocab_size": text.vocab,
        **_rope_fields(text),
        **({} if text.model_type == "qwen2" else {"attention_bias": False, "mlp_bias": False}),
    }


def _vision_config(vision: VisionShape, model_type: str) -> dict[str, Any]:
    return {
        "model_type": f"{model_type}_vision",
        "attention_dropout": 0.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": vision.hidden,
        "image_size": vision.image,
        "intermediate_size": vision.intermediate,
        "layer_norm_eps": 1e-6,
        "num_attention_heads": vision.heads,
        "num_channels": 3,
        "num_hidden_layers": vision.layers,
        "patch_size": vision.patch,
    }


def _config(shape: Shape, ids: SpecialIds) -> dict[str, Any]:
    text, name = _text_config(shape.text, ids), TORCH_NAMES[shape.stored]
    if shape.vision is None:
        return {**text, "torch_dtype": name}
    return {
        "architectures": [f"{_CLASSES[shape.model_type]}ForConditionalGeneration"],
        "model_type": shape.model_type,
        "image_token_id": ids.image,
        "scale_factor": shape.vision.scale,
        "tie_word_embeddings": shape.text.tied,
        "torch_dtype": name,
        "text_config": text,
        "vision_config": _vision_config(shape.vision, shape.model_type),
        "vocab_size": shape.text.vocab,
    }


def _processor_files(shape: Shape, vision: VisionShape) -> dict[str, dict[str, Any]]:
    name = _CLASSES[shape.model_type]
    return {
        "preprocessor_config.json": {
            "image_processor_type": f"{name}ImageProcessor",
            "processor_class": f"{name}Processor",
            "do_convert_rgb": True,
            "do_image_splitting": vision.splitting,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": vision.image},
            "resample": 1,  # Lanczos
            "rescale_factor": 1 / 255,
            "size": {"longest_edge": vision.longest_edge},
        },
        "processor_config.json": {
            "image_seq_len": vision.rows_per_tile,
            "processor_class": f"{name}Processor",
        },
    }


def write_json_files(directory: Path, shape: Shape, ids: SpecialIds) -> None:
    files = {
        "config.json": _config(shape, ids),
        "generation_config.json": {
            "bos_token_id": ids.start,
            "eos_token_id": ids.end_of_utterance,
            "pad_token_id": ids.pad,
        },
    }
    if shape.vision is None:
        (directory / "chat_template.jinja").write_text(TEXT_CHAT_TEMPLATE, encoding="utf-8")
    else:
        files["chat_template.json"] = {"chat_template": CHAT_TEMPLATE}
        files |= _processor_files(shape, shape.vision)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

"""Writing the model in the Hugging Face layout (Idefics3, float16 safetensors)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from tools.train_tiny.config import IMAGE_TOKENS, SCALE_FACTOR, TEXT, VISION
from tools.train_tiny.shapes import LONGEST_EDGE, TILE
from tools.train_tiny.tokenizer import BOS, EOU, IMAGE, PAD, save, write_json

CHAT_TEMPLATE = """<|im_start|>{% for message in messages %}
{{- message['role'] | capitalize }}
{%- if message['content'] is string %}{{ ': ' + message['content'] }}
{%- else %}
{%- if message['content'] and message['content'][0]['type'] == 'image' %}{{ ':' }}
{%- else %}{{ ': ' }}
{%- endif %}
{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}
{%- elif part['type'] == 'image' %}{{ '<image>' }}
{%- endif %}
{%- endfor %}
{%- endif %}<end_of_utterance>
{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}
{%- endif %}"""


def configs(tokenizer: Tokenizer) -> dict[str, dict]:
    """File name to content of every JSON file but the tokenizer's."""
    bos, eou, pad, image = (tokenizer.token_to_id(t) for t in (BOS, EOU, PAD, IMAGE))
    text = {**TEXT, "bos_token_id": bos, "eos_token_id": eou, "pad_token_id": pad}
    shared = {"bos_token_id": bos, "eos_token_id": eou, "pad_token_id": pad}
    model = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": image,
        "scale_factor": SCALE_FACTOR,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "float16",
        "torch_dtype": "float16",
        **shared,
        "vocab_size": TEXT["vocab_size"],
        "vision_config": VISION,
        "text_config": text,
    }
    picture = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "do_convert_rgb": True,
        "do_image_splitting": False,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": TILE},
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": LONGEST_EDGE},
    }
    return {
        "config.json": model,
        "generation_config.json": {**shared, "do_sample": False, "max_new_tokens": 32},
        "preprocessor_config.json": picture,
        "processor_config.json": {
            "processor_class": "Idefics3Processor",
            "image_seq_len": IMAGE_TOKENS,
        },
    }


def write_weights(model: nn.Module, folder: Path) -> None:
    """model.safetensors: float16, without the tied and the auxiliary heads; replaced at once."""
    tensors = {
        name: value.detach().to(torch.float16).contiguous()
        for name, value in model.state_dict().items()
        if not name.startswith("aux.")
    }
    scratch = folder / "model.safetensors.tmp"
    save_file(tensors, scratch, metadata={"format": "pt"})
    scratch.chmod(0o644)
    scratch.replace(folder / "model.safetensors")


def write_all(model: nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """The whole model directory, save its README."""
    folder.mkdir(parents=True, exist_ok=True)
    save(tokenizer, folder)
    for name, content in configs(tokenizer).items():
        write_json(folder / name, content)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_weights(model, folder)


def main() -> None:
    """Export a training checkpoint."""
    from tools.train_tiny.model import TinyVlm

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--out", type=Path, required=True, help="model directory to write")
    args = parser.parse_args()
    model = TinyVlm()
    model.load_state_dict(torch.load(args.run / "checkpoint.pt", weights_only=True)["model"])
    write_all(model, Tokenizer.from_file(str(args.run / "tokenizer.json")), args.out)


if __name__ == "__main__":
    main()

"""A checkpoint's own text and image side: tokenizer, chat template, placeholders, transform.

Everything between a request and PreparedPrefill that depends on the checkpoint, and nothing that
depends on the engine. Immutable after loading; safe to share between threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyvlm.capabilities import Capabilities, capabilities
from pyvlm.chat import ChatTemplate, Message
from pyvlm.errors import PyvlmError
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.transform import ImageTransform, transform_from_config
from pyvlm.models.config import ModelConfig
from pyvlm.models.idefics3_prompt import IMAGE_TOKEN, MARKERS, Idefics3Prompt
from pyvlm.tokenizer import Tokenizer

_IMAGE_PROCESSORS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")


@dataclass(frozen=True)
class Frontend:
    tokenizer: Tokenizer
    template: ChatTemplate | None
    transform: ImageTransform | None
    image_prompt: Idefics3Prompt | None
    stop_token_ids: tuple[int, ...]
    policy: MediaPolicy
    capabilities: Capabilities

    @property
    def image_token_id(self) -> int | None:
        return None if self.image_prompt is None else self.image_prompt.image_token_id

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """Logical ids of a conversation: one placeholder per image part."""
        if self.template is None:
            raise PyvlmError(
                "the checkpoint has no chat template; give it a raw prompt",
                code="chat_template_failed",
                param="messages",
            )
        if any(message.num_images for message in messages):
            self.capabilities.require("image")
        if not any(message.content for message in messages):
            raise PyvlmError("the prompt is empty", code="empty_prompt", param="messages")
        return self.tokenizer.encode_pieces(self.template.render(messages))

    def raw_ids(self, prompt: str) -> list[int]:
        """Logical ids of trusted text, in which special tokens are what they spell."""
        return self.tokenizer.encode(prompt, add_special_tokens=True)


def load_frontend(directory: Path, model: ModelConfig, policy: MediaPolicy) -> Frontend:
    """From a checkpoint's side files. Whatever is missing or contradictory fails here, at start."""
    takes_images = model.vision is not None
    tokenizer = Tokenizer.from_directory(directory, MARKERS if takes_images else ())
    config = _read(directory, "tokenizer_config.json")
    source = _chat_template(directory, config)
    tokens = _named_tokens({**_read(directory, "special_tokens_map.json"), **config})
    template = source and ChatTemplate(
        source,
        tokens=tokens,
        special_tokens=tokenizer.special_tokens,
        image_token=IMAGE_TOKEN if takes_images else None,
    )
    return Frontend(
        tokenizer=tokenizer,
        template=template or None,
        transform=_transform(directory, model) if takes_images else None,
        image_prompt=_image_prompt(directory, model, tokenizer) if takes_images else None,
        stop_token_ids=_stop_token_ids(directory, tokenizer, tokens.get("eos_token")),
        policy=policy,
        capabilities=capabilities(
            model, has_chat_template=bool(source), image_formats=policy.allowed_formats
        ),
    )


def _transform(directory: Path, model: ModelConfig) -> ImageTransform:
    assert model.vision is not None
    config = _read(directory, "preprocessor_config.json")
    if not config:
        nested = _read(directory, "processor_config.json").get("image_processor")
        config = nested if isinstance(nested, dict) else {}
    if not config:
        raise PyvlmError(
            f"{directory} takes images but has no preprocessor_config.json", code="model_invalid"
        )
    kind = str(config.get("image_processor_type", ""))
    if kind.removesuffix("Fast").removesuffix("Pil") not in _IMAGE_PROCESSORS:
        raise PyvlmError(
            f"preprocessor_config.json: image_processor_type {kind!r} is not one of "
            f"{', '.join(_IMAGE_PROCESSORS)}",
            code="model_unsupported",
        )
    return transform_from_config(
        config, image_size=model.vision.image_size, patch_size=model.vision.patch_size
    )


def _image_prompt(directory: Path, model: ModelConfig, tokenizer: Tokenizer) -> Idefics3Prompt:
    assert model.vision is not None
    assert model.image_token_id is not None
    rows = model.vision.rows_per_tile
    declared = _read(directory, "processor_config.json").get("image_seq_len", rows)
    if declared != rows:
        raise PyvlmError(
            f"processor_config.json: image_seq_len is {declared}, but config.json makes {rows} "
            "rows of a tile",
            code="model_invalid",
        )
    return Idefics3Prompt(tokenizer, image_token_id=model.image_token_id, rows_per_tile=rows)


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = _read(directory, "chat_template.json").get("chat_template")
    found = found or _read(directory, "processor_config.json").get("chat_template")
    found = found or config.get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _stop_token_ids(
    directory: Path, tokenizer: Tokenizer, eos_token: str | None
) -> tuple[int, ...]:
    """All that end a turn: generation_config's, and of the others those that are special."""
    found = _id_list(_read(directory, "generation_config.json").get("eos_token_id"))
    others = _id_list(_read(directory, "config.json").get("eos_token_id"))
    if eos_token is not None:
        others += _id_list(tokenizer.token_id(eos_token))
    found += [i for i in others if i in tokenizer.special_ids]
    return tuple(dict.fromkeys(found))


def _id_list(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]


def _read(directory: Path, name: str) -> dict[str, Any]:
    path = directory / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise PyvlmError(f"{path} is not valid JSON", code="model_invalid") from None
    if not isinstance(value, dict):
        raise PyvlmError(f"{path} does not hold a JSON object", code="model_invalid")
    return value

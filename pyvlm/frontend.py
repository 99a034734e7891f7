"""A checkpoint's own text and image side: tokenizer, chat template, placeholders, transform.

Everything between a request and PreparedPrefill that depends on the checkpoint, and nothing that
depends on the engine. Immutable after loading; safe to share between threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyvlm.capabilities import Capabilities, capabilities
from pyvlm.chat import ChatTemplate, Message
from pyvlm.errors import PyvlmError
from pyvlm.files import is_file, read_if_any, read_text
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.settings import load_transform
from pyvlm.media.transform import ImageTransform
from pyvlm.models.config import ModelConfig
from pyvlm.models.idefics3_prompt import IMAGE_TOKEN, MARKERS, Idefics3Prompt
from pyvlm.tokenizer import Tokenizer


@dataclass(frozen=True)
class Frontend:
    tokenizer: Tokenizer
    template: ChatTemplate | None
    transform: ImageTransform | None
    image_prompt: Idefics3Prompt | None
    stop_token_ids: tuple[int, ...]
    vocab_size: int  # of the model; the tokenizer may know fewer
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

    def text_ids(self, prompt: str, *, allow_special: bool = True) -> list[int]:
        """Logical ids of text without a template. Trusted text may spell special tokens; in other
        text they stay text. What the tokenizer puts around any text is added to both."""
        if allow_special:
            return self.tokenizer.encode(prompt, add_special_tokens=True)
        return self.tokenizer.encode_untrusted(prompt, add_special_tokens=True)


def load_frontend(directory: Path, model: ModelConfig, policy: MediaPolicy) -> Frontend:
    """From a checkpoint's side files. Whatever is missing or contradictory fails here, at start."""
    takes_images = model.vision is not None
    tokenizer = Tokenizer.from_directory(directory, MARKERS if takes_images else ())
    config = read_if_any(directory, "tokenizer_config.json")
    source = _chat_template(directory, config)
    tokens = _named_tokens({**read_if_any(directory, "special_tokens_map.json"), **config})
    template = source and ChatTemplate(
        source,
        tokens=tokens,
        special_tokens=tokenizer.special_tokens,
        image_token=IMAGE_TOKEN if takes_images else None,
    )
    return Frontend(
        tokenizer=tokenizer,
        template=template or None,
        transform=None
        if model.vision is None
        else load_transform(partial(read_if_any, directory), model.vision),
        image_prompt=_image_prompt(directory, model, tokenizer) if takes_images else None,
        stop_token_ids=_stop_token_ids(directory, tokenizer, tokens.get("eos_token")),
        vocab_size=model.decoder.vocab_size,
        policy=policy,
        capabilities=capabilities(
            model, has_chat_template=bool(source), image_formats=policy.allowed_formats
        ),
    )


def _image_prompt(directory: Path, model: ModelConfig, tokenizer: Tokenizer) -> Idefics3Prompt:
    assert model.vision is not None
    assert model.image_token_id is not None
    rows = model.vision.rows_per_tile
    declared = read_if_any(directory, "processor_config.json").get("image_seq_len", rows)
    if declared != rows:
        raise PyvlmError(
            f"processor_config.json: image_seq_len is {declared}, but config.json makes {rows} "
            "rows of a tile",
            code="model_invalid",
        )
    return Idefics3Prompt(tokenizer, image_token_id=model.image_token_id, rows_per_tile=rows)


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if is_file(path):
        return read_text(path)
    found = read_if_any(directory, "chat_template.json").get("chat_template")
    found = found or read_if_any(directory, "processor_config.json").get("chat_template")
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
    found = _id_list(read_if_any(directory, "generation_config.json").get("eos_token_id"))
    others = _id_list(read_if_any(directory, "config.json").get("eos_token_id"))
    if eos_token is not None:
        others += _id_list(tokenizer.token_id(eos_token))
    found += [i for i in others if i in tokenizer.special_ids]
    return tuple(dict.fromkeys(found))


def _id_list(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]

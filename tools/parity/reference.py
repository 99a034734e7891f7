"""transformers on torch, in f32 arithmetic with eager attention, on the weights that pyvlm packs.

Under `weights="f16"` every matrix is rounded to f16 as the archive holds it, under `"int8"` to what
its int8 levels stand for, while norms, biases and position embeddings keep f32. Under `kv="f16"`
the cached keys (rotated) and values are rounded to f16 as well, which the comparison of record does
not do: it is there to tell rounding from error.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    DynamicCache,
    Idefics3Processor,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from pyvlm.emit.quantize import dequantize_rows, quantize_rows
from tools.parity.prompts import Prompt, Question

Float = Literal["f16", "f32"]
Weights = Literal["f16", "f32", "int8"]
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """Hidden states of the tower over all tiles of a prompt.

    embed [tiles, P, Dv], blocks [layer][tiles, P, Dv], post_norm [tiles, P, Dv],
    rows [tiles * R, H]
    """

    embed: Array
    blocks: tuple[Array, ...]
    post_norm: Array
    rows: Array


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """Greedy tokens [steps] and the logits [steps, V] that chose them."""

    tokens: NDArray[np.int32]
    logits: Array


class RoundedCache(DynamicCache):
    """Keys and values go through f16 on their way into the cache."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key_states, value_states = key_states.half().float(), value_states.half().float()
        return super().update(key_states, value_states, *args, **kwargs)


def round_matrices(model: torch.nn.Module, weights: Weights) -> None:
    """Rounds what the archive stores as matrices."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or "position_embedding" in name:
                continue
            if weights == "f16":
                parameter.copy_(parameter.half().float())
            elif weights == "int8":
                rows = parameter.numpy().reshape(len(parameter), -1)
                rounded = dequantize_rows(*quantize_rows(rows), rows.shape[1])
                parameter.copy_(torch.from_numpy(rounded).reshape(parameter.shape))


class Reference:
    """One checkpoint in transformers. `processor` is None for a text-only model."""

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        processor: Idefics3Processor | None = None,
        *,
        weights: Weights = "f16",
        kv: Float = "f32",
    ) -> None:
        round_matrices(model, weights)
        self.model: Any = model.eval()
        self.tokenizer, self.processor, self.kv = tokenizer, processor, kv
        self._encoded: tuple[Array, Any] | None = None  # pixels of the last prompt, its features

    @classmethod
    def load(cls, directory: Path, *, weights: Weights = "f16", kv: Float = "f32") -> Reference:
        has_vision = hasattr(AutoConfig.from_pretrained(directory), "vision_config")
        loader = AutoModelForImageTextToText if has_vision else AutoModelForCausalLM
        model = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        tokenizer = AutoTokenizer.from_pretrained(directory)
        processor = _processor(directory, tokenizer) if has_vision else None
        return cls(model, tokenizer, processor, weights=weights, kv=kv)

    @property
    def has_vision(self) -> bool:
        return self.processor is not None

    def with_cache(self, kv: Float) -> Reference:
        """The same model with another cache."""
        other = copy.copy(self)
        other.kv = kv
        return other

    def prompt(self, question: Question, name: str = "") -> Prompt:
        """Through the checkpoint's chat template and processor."""
        if self.processor is None:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": question.text}],
                add_generation_prompt=True,
                tokenize=False,
            )
        else:
            text = self.processor.apply_chat_template(
                question.messages(), add_generation_prompt=True
            )
        return self.raw_prompt(text, question.images, name)

    def raw_prompt(self, text: str, images: Sequence[Any], name: str = "") -> Prompt:
        """`text` holds one `<image>` for each picture."""
        if not images:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return Prompt(np.asarray(ids, np.int32), name=name)
        assert self.processor is not None
        counts = []
        for image in images:
            one = self.processor.image_processor([[image]], return_tensors="np")
            counts.append(one["pixel_values"].shape[1])
        inputs = self.processor(
            text=text, images=list(images), add_special_tokens=False, return_tensors="np"
        )
        pixels = inputs["pixel_values"][0].astype(np.float32)
        patch = self.model.config.vision_config.patch_size
        mask = inputs["pixel_attention_mask"][0].astype(bool)
        valid = _patch_mask(mask, patch)
        ids = inputs["input_ids"][0].astype(np.int32)
        return Prompt(ids, pixels, valid, tuple(counts), name)

    @torch.no_grad()
    def tower(self, pixels: Array, valid: NDArray[np.bool_]) -> Tower:
        vision = self.model.model.vision_model
        outputs = vision(
            pixel_values=torch.from_numpy(pixels),
            patch_attention_mask=torch.from_numpy(valid),
            output_hidden_states=True,
        )
        embed, *blocks = (state.numpy() for state in outputs.hidden_states)
        rows = self.model.model.connector(outputs.last_hidden_state)
        post_norm = outputs.last_hidden_state.numpy()
        return Tower(embed, tuple(blocks), post_norm, rows.flatten(0, 1).numpy())

    @torch.no_grad()
    def logits(self, prompt: Prompt) -> Array:
        """[T, V]: teacher-forced, of every position. Pictures of the last prompt are not encoded
        again."""
        inputs = self._inputs(prompt)
        if prompt.pixels is not None:
            if self._encoded is None or self._encoded[0] is not prompt.pixels:
                pixels = {key: inputs[key] for key in ("pixel_values", "pixel_attention_mask")}
                features = self.model.model.get_image_features(**pixels, return_dict=True)
                self._encoded = (prompt.pixels, features)
            encoded = {"image": self._encoded[1]}
            inputs = {"input_ids": inputs["input_ids"], "mm_encoder_outputs": encoded}
        outputs = self.model(**inputs, cache=self._cache(), use_cache=True)
        return outputs.logits[0].numpy()

    @torch.no_grad()
    def greedy(self, prompt: Prompt, steps: int, stop: Sequence[int] = ()) -> Generated:
        """Free-running, through transformers' own `generate`."""
        inputs = self._inputs(prompt)
        outputs = self.model.generate(
            **inputs,
            cache=self._cache(),
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=steps,
            do_sample=False,
            eos_token_id=list(stop) or None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = outputs.sequences[0, prompt.ids.size :].numpy().astype(np.int32)
        return Generated(tokens, torch.cat(outputs.logits).numpy())

    def follow(self, prompt: Prompt, tokens: NDArray[np.int32]) -> Generated:
        """What greedy decoding takes after the prompt and each prefix of `tokens`, in one pass.

        As long as these are `tokens` themselves, a free run is the same; it parts from them at
        the first difference.
        """
        ids = np.concatenate([prompt.ids, tokens[:-1]])
        whole = Prompt(ids, prompt.pixels, prompt.valid, prompt.num_tiles, prompt.name)
        logits = self.logits(whole)[prompt.ids.size - 1 :]
        return Generated(logits.argmax(axis=-1).astype(np.int32), logits)

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        inputs = {"input_ids": torch.from_numpy(prompt.ids.astype(np.int64))[None]}
        if prompt.pixels is not None and prompt.valid is not None:
            patch = self.model.config.vision_config.patch_size
            mask = prompt.valid.repeat(patch, 1).repeat(patch, 2)
            inputs["pixel_values"] = torch.from_numpy(prompt.pixels)[None]
            inputs["pixel_attention_mask"] = torch.from_numpy(mask)[None]
        return inputs

    def _cache(self) -> DynamicCache:
        kind = RoundedCache if self.kv == "f16" else DynamicCache
        return kind(config=self.model.config.get_text_config())


def _processor(directory: Path, tokenizer: Any) -> Idefics3Processor:
    """SmolVLM's own processor class wants torchvision for its videos; pictures are the same."""
    images = Idefics3ImageProcessorPil.from_pretrained(directory)
    fields = json.loads((directory / "processor_config.json").read_text(encoding="utf-8"))
    template_file = directory / "chat_template.json"
    template = tokenizer.chat_template
    if template_file.exists():
        template = json.loads(template_file.read_text(encoding="utf-8"))["chat_template"]
    return Idefics3Processor(
        images, tokenizer, image_seq_len=fields["image_seq_len"], chat_template=template
    )


def _patch_mask(mask: NDArray[np.bool_], patch: int) -> NDArray[np.bool_]:
    """[tiles, S, S] pixels -> [tiles, n, n] patches with any pixel in them, as the model does."""
    tiles, height, width = mask.shape
    cut = mask[:, : height // patch * patch, : width // patch * patch]
    return cut.reshape(tiles, height // patch, patch, width // patch, patch).any(axis=(2, 4))

"""Strict reading of one config.json object: every field is read, known to be inert, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyvlm.errors import PyvlmError

# Bookkeeping of transformers' PreTrainedConfig: training, generation and loading options that do
# not change what the model computes for given token ids.
INERT_FIELDS = frozenset(
    """
    _name_or_path architectures auto_map transformers_version torch_dtype dtype model_type
    use_cache initializer_range pad_token_id bos_token_id eos_token_id sep_token_id
    decoder_start_token_id attention_dropout attn_implementation _attn_implementation
    _attn_implementation_autoset _flash_attn_2_enabled id2label label2id num_labels problem_type
    finetuning_task task_specific_params return_dict return_dict_in_generate output_attentions
    output_hidden_states output_scores torchscript use_bfloat16 tokenizer_class prefix
    tf_legacy_loss chunk_size_feed_forward pruned_heads gradient_checkpointing
    use_reentrant_checkpointing neftune_noise_alpha pretraining_tp transformers.js_config
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens unsloth_version unsloth_fixed is_llama_config initializer_factor
    freeze_text_layers freeze_vision_layers freeze_lm_head
    """.split()  # noqa: SIM905
)


def unsupported(where: str, field: str, value: object, accepted: str = "") -> PyvlmError:
    hint = f" ({accepted})" if accepted else ""
    return PyvlmError(
        f"config.json: {where}{field} = {value!r} is not supported{hint}", code="model_unsupported"
    )


def invalid(where: str, field: str, value: object, expected: str) -> PyvlmError:
    return PyvlmError(
        f"config.json: {where}{field} must be {expected}, not {value!r}", code="model_invalid"
    )


class Fields:
    """One JSON object of the config. `finish` rejects whatever nobody asked for."""

    def __init__(self, raw: object, where: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise invalid("", where.rstrip(".") or "the file", raw, "an object")
        self.where = where
        self._raw = raw
        self._seen: set[str] = set()

    def has(self, name: str) -> bool:
        return self._raw.get(name) is not None

    def contains(self, name: str) -> bool:
        return name in self._raw

    def get(self, name: str) -> object:
        self._seen.add(name)
        return self._raw.get(name)

    def child(self, name: str) -> Fields:
        return Fields(self.get(name), f"{self.where}{name}.")

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = 1 << 31
    ) -> int:
        value = self.get(name)
        if value is None:
            value = default
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not minimum <= value <= maximum:  # type: ignore[operator]
            raise invalid(self.where, name, value, f"an integer from {minimum} to {maximum}")
        return int(value)  # type: ignore[call-overload, no-any-return]

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None:
            value = default
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):  # type: ignore[operator]
            raise invalid(self.where, name, value, "a positive number")
        return float(value)  # type: ignore[arg-type]

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(self.where, name, value, "true or false")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise invalid(self.where, name, value, "a string")
        return value

    def require(self, name: str, accepted: tuple[object, ...], *, default: object = None) -> None:
        """An option that we implement for some values only; absent or null means `default`."""
        value = self.get(name)
        if value is None:
            value = default
        if value is not None and not any(value == a and type(value) is type(a) for a in accepted):
            listed = " or ".join(repr(a) for a in accepted)
            raise unsupported(self.where, name, value, f"{listed} is")

    def ignore(self, names: Iterable[str]) -> None:
        self._seen.update(names)

    def finish(self) -> None:
        """A field that nobody knows is an error unless it is visibly switched off."""
        for name, value in self._raw.items():
            if name in self._seen or name in INERT_FIELDS:
                continue
            if value is None or value in (False, 0, "", [], {}):
                continue
            raise unsupported(self.where, str(name), value, "unknown field")

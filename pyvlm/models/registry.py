"""The families that we know: how each one's checkpoint tensors become parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyvlm.errors import PyvlmError
from pyvlm.models import idefics3
from pyvlm.models.config import ModelConfig
from pyvlm.models.llama import Sources, decoder_sources

__all__ = ["FAMILIES", "Family", "WeightPlan", "weight_plan"]


@dataclass(frozen=True, slots=True)
class Family:
    """`sources` maps parameter names to the checkpoint's tensors."""

    name: str
    modalities: tuple[str, ...]
    sources: Callable[[ModelConfig], Sources]


def _text(config: ModelConfig) -> Sources:
    return decoder_sources(config.decoder, "model.")


FAMILIES = {
    family.name: family
    for family in (
        Family("llama", ("text",), _text),
        Family("mistral", ("text",), _text),
        Family("qwen2", ("text",), _text),
        Family("idefics3", ("text", "image"), idefics3.sources),
        Family("smolvlm", ("text", "image"), idefics3.sources),
    )
}


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """`ignored` are tensors of the checkpoint that no parameter needs, by name."""

    sources: Sources
    ignored: frozenset[str]
    tied_copy: tuple[str, str] | None = None  # (head, embedding): must hold the same values


def weight_plan(config: ModelConfig, names: Iterable[str]) -> WeightPlan:
    """`names` are the checkpoint's tensors; nothing is read here."""
    names = frozenset(names)
    if config.text_only_reason is not None:
        return _text_part(config, names)
    sources = FAMILIES[config.family].sources(config)
    ignored = {name for name in names if name.endswith(_BUFFERS)}
    return _with_tied_copy(config, sources, names, "lm_head.weight", ignored)


# Buffers that older versions of transformers stored; they follow from the configuration.
_BUFFERS = (".rotary_emb.inv_freq", ".embeddings.position_ids")


def _text_part(config: ModelConfig, names: frozenset[str]) -> WeightPlan:
    """The decoder inside a checkpoint whose other parts we do not know, found by its embedding."""
    prefix = _only(names, "embed_tokens.weight")
    head = "lm_head.weight"
    if not config.decoder.tied_head:
        head = _only(names, head) + head
    sources = decoder_sources(config.decoder, prefix, head)
    ours = {piece.name for pieces in sources.values() for piece in pieces}
    ignored = {n for n in names - ours if not n.startswith(f"{prefix}layers.")}
    ignored |= {n for n in names if n.endswith(_BUFFERS)}
    return _with_tied_copy(config, sources, names, head, ignored)


def _only(names: frozenset[str], suffix: str) -> str:
    found = sorted(n.removesuffix(suffix) for n in names if f".{n}".endswith(f".{suffix}"))
    if len(found) == 1:
        return found[0]
    listed = ", ".join(prefix + suffix for prefix in found) or "none"
    raise PyvlmError(
        f"one tensor named ...{suffix} marks the text model; found: {listed}",
        code="missing_tensor" if not found else "model_unsupported",
    )


def _with_tied_copy(
    config: ModelConfig, sources: Sources, names: frozenset[str], head: str, ignored: set[str]
) -> WeightPlan:
    copies = head in names and config.decoder.tied_head
    tied = (head, sources["embed"][0].name) if copies else None
    return WeightPlan(sources, frozenset(ignored | ({head} if copies else set())), tied)

"""tokenizer.json and tokenizer_config.json from a GGUF file's own vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from pyvlm.errors import PyvlmError

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut before the merges; `split` None is GPT-2's own pattern."""

    split: str | None = None
    single_digits: bool = False
    whole_words: bool = False  # a piece that is a token by itself is never merged from parts
    adds_bos: bool = False  # unless the file says otherwise
    normalizes: bool = False  # NFC


_GPT2 = _PreTokenizer()
_DIGITS = _PreTokenizer(single_digits=True)
_LLAMA3 = _PreTokenizer(_LLAMA3_SPLIT, whole_words=True, adds_bos=True)
_PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    "qwen2": _PreTokenizer(_QWEN2_SPLIT, normalizes=True),
    "deepseek-r1-qwen": _PreTokenizer(_QWEN2_SPLIT),
    "tekken": _PreTokenizer(_TEKKEN_SPLIT, whole_words=True, adds_bos=True),
}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Raises model_unsupported for a tokenizer kind that we cannot rebuild exactly."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _invalid("tokenizer.ggml.tokens is missing")
    if len(set(tokens)) != len(tokens):
        raise _invalid("tokenizer.ggml.tokens holds a token twice")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(metadata, tokens), True
    else:
        raise _unsupported(f"tokenizer.ggml.model = {kind!r} is not supported (gpt2 and llama are)")
    _add_tokens(tokenizer, metadata, tokens)
    _add_markers(tokenizer, metadata, tokens, adds_bos)
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What AutoTokenizer needs beside tokenizer.json: special tokens and the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for ours, theirs in names.items():
        if (index := metadata.get(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            config[f"{ours}_token"] = tokens[_token(index, tokens)]
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return config


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[Tokenizer, bool]:
    name = str(metadata.get("tokenizer.ggml.pre"))
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise _unsupported(f"tokenizer.ggml.pre = {name!r} is not supported (known: {known})")
    rules = _PRE_TOKENIZERS[name]
    merges = [_pair(merge) for merge in metadata.get("tokenizer.ggml.merges", [])]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(_bpe(vocab, merges, ignore_merges=rules.whole_words))
    if rules.normalizes:
        tokenizer.normalizer = normalizers.NFC()
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] * rules.single_digits
    if rules.split is not None:
        steps.append(pre_tokenizers.Split(Regex(rules.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=rules.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rules.adds_bos


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    if "tokenizer.ggml.merges" in metadata:
        merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    else:
        merges = _merges_by_score(vocab, metadata.get("tokenizer.ggml.scores", []))
    unknown = tokens[_token(metadata.get("tokenizer.ggml.unknown_token_id", 0), tokens)]
    model = _bpe(vocab, merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    tokenizer = Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefix else "never", split=False
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies: each way to cut a token into two
    others, the best token first; among equals the shorter right part loses."""
    if len(scores) != len(vocab):
        raise _invalid(f"tokenizer.ggml.scores has {len(scores)} values for {len(vocab)} tokens")
    ranked: list[tuple[float, str, str]] = []
    for token, index in vocab.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [cut for cut in cuts if cut[0] in vocab and cut[1] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        ranked += [(scores[index], *pair) for pair in pairs]
    ranked.sort(key=lambda entry: (entry[0], len(entry[1]), len(entry[2])), reverse=True)
    return [(left, right) for _, left, right in ranked]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Any:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the package raises Exception itself
        raise _invalid(f"tokenizer.ggml.merges do not fit the vocabulary: {error}") from error


def _add_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Control and user-defined tokens are matched whole, before anything cuts the text."""
    types = metadata.get("tokenizer.ggml.token_type", [])
    if types and len(types) != len(tokens):
        raise _invalid(f"tokenizer.ggml.token_type has {len(types)} values")
    kinds = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in kinds if kind == _USER_DEFINED]
    )


def _add_markers(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], adds_bos: bool
) -> None:
    """Beginning and end of text, as far as the file wants them added."""
    wanted = {
        "bos": bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        "eos": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    }
    markers: dict[str, tuple[str, int]] = {}
    for name, is_wanted in wanted.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if is_wanted and index is not None:
            markers[name] = (tokens[_token(index, tokens)], index)
    if not markers:
        return
    first = [markers["bos"][0]] if "bos" in markers else []
    last = [markers["eos"][0]] if "eos" in markers else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *first, "$B:1", *last],
        special_tokens=list(markers.values()),
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _token(index: object, tokens: list[str]) -> int:
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise _invalid(f"special token {index!r} is outside the vocabulary of {len(tokens)}")
    return index


def _invalid(message: str) -> PyvlmError:
    return PyvlmError(f"GGUF: {message}", code="model_invalid")


def _unsupported(message: str) -> PyvlmError:
    return PyvlmError(f"GGUF: {message}", code="model_unsupported")

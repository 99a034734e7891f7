"""A small byte-level BPE tokenizer with SmolVLM's special tokens.

Ids: 0-2 `<|endoftext|> <|im_start|> <|im_end|>`, merges up to the BPE's size (filled up with
pieces that no merge makes), then `<global-img>`, the 36 `<row_i_col_j>`, the two image tokens and,
last in the vocabulary, `<end_of_utterance>`. With the sizes of SmolVLM-256M these are the
published ids: 49152, 49153.., 49189, 49190 and 49279.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BASE_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TRAINED = 384
_BLANK_LINE = "\u010a\u010a"  # llama.cpp looks this piece up to begin a picture
_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<end_of_utterance>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False,
    "add_prefix_space": False,
    "model_max_length": 8192,
    "processor_class": "Idefics3Processor",
}
_CORPUS = (
    "User: What colour is the shape?\nAssistant: The shape is red.\n",
    "User: How many circles do you see in this picture?\nAssistant: There are three circles.\n",
    "User: Is there a blue square left of the star?\nAssistant: Yes, it is left of the star.\n",
    "System: You are an assistant that describes pictures and answers questions about them.\n",
    "The quick brown fox jumps over the lazy dog while 0123456789 others look on.\n",
)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    image: int
    fake: int
    end_of_utterance: int
    start: int = 1
    pad: int = 2


def _trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TRAINED,
        show_progress=False,
        special_tokens=list(BASE_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _vision_tokens() -> list[str]:
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    return ["<global-img>", *tiles, "<fake_token_around_image>", "<image>"]


def _added_token(content: str, index: int) -> dict[str, object]:
    return {
        "id": index,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def write_tokenizer(directory: Path, bpe_vocab: int, vocab: int) -> SpecialIds:
    """Writes tokenizer.json and tokenizer_config.json. `vocab` is the model's."""
    description = json.loads(_trained().to_str())
    pieces: dict[str, int] = description["model"]["vocab"]
    if len(pieces) < bpe_vocab:
        pieces[_BLANK_LINE] = len(pieces)
    for index in range(len(pieces), bpe_vocab):
        pieces[f"\u0120unused{index}"] = index
    extra = dict(enumerate(_vision_tokens(), start=bpe_vocab))
    for index in range(bpe_vocab + len(extra), vocab - 1):
        extra[index] = f"<|reserved_{index}|>"
    extra[vocab - 1] = "<end_of_utterance>"
    description["added_tokens"] += [_added_token(text, index) for index, text in extra.items()]
    (directory / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n")
    ids = {text: index for index, text in extra.items()}
    return SpecialIds(ids["<image>"], ids["<fake_token_around_image>"], vocab - 1)

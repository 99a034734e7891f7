"""The byte-level BPE tokenizer, trained on the phrasing corpus; special tokens as in SmolVLM."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_tiny import easyvqa
from tools.train_tiny.freetext import UNKNOWN, unknown_question
from tools.train_tiny.phrases import style
from tools.train_tiny.questions import make_question, no_picture, two_pictures
from tools.train_tiny.scene import SAMPLERS, sample_scene

VOCAB_SIZE = 1280
SEED = 7
BOS, PAD, IMAGE, FAKE, EOU = (
    "<|im_start|>",
    "<|im_end|>",
    "<image>",
    "<fake_token_around_image>",
    "<end_of_utterance>",
)
GLOBAL = "<global-img>"
TILES = [f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)]
HEAD_TOKENS = ["<|endoftext|>", BOS, PAD]
TAIL_TOKENS = [GLOBAL, *TILES, FAKE, IMAGE, EOU]
ROLES = "User: Assistant: System: You are a helpful assistant. Answer briefly. first second nothing"


def corpus(seed: int, num_scenes: int = 6000) -> Iterator[str]:
    """Questions and answers as they occur in training."""
    rng = random.Random(f"{seed}/tokenizer")
    kinds = list(SAMPLERS)
    for i in range(num_scenes):
        scene = sample_scene(rng, kinds[i % len(kinds)])
        for _ in range(3):
            qa = make_question(rng, scene)
            yield qa.question
            yield " " + qa.answer
        yield no_picture(rng).question
        yield style(rng, unknown_question(rng))
        if i % 5 == 0:
            yield two_pictures(
                rng, sample_scene(rng, "single"), sample_scene(rng, "single")
            ).question
    for _ in range(200):
        yield ROLES
        yield " " + UNKNOWN
    for picture in easyvqa.load("train")[:300]:
        yield from (question for question, _ in picture.questions)


def train(seed: int = SEED) -> Tokenizer:
    """A tokenizer with the full byte alphabet: any text can be encoded and comes back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TAIL_TOKENS),
        special_tokens=HEAD_TOKENS,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(seed), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in TAIL_TOKENS]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json, special_tokens_map.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        "bos_token": BOS,
        "eos_token": EOU,
        "pad_token": PAD,
        "unk_token": "<|endoftext|>",
        "additional_special_tokens": [FAKE, IMAGE, EOU],
    }
    config = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "padding_side": "left",
        "processor_class": "Idefics3Processor",
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
    }
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", special)


def write_json(path: Path, value: object) -> None:
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

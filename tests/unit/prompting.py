"""A small byte-level tokenizer with SmolVLM's markers and templates, for tests of prompts."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from pyvlm.chat import ChatTemplate
from pyvlm.models.idefics3_prompt import MARKERS, Idefics3Prompt
from pyvlm.tokenizer import Tokenizer

SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "What colour is the shape? User: Assistant: system\n\nThe red square is left of the circle.",
    "How many stars do you see? <image> im_start row_1_col_1 fake_token_around_image global-img",
    "one two  three\n\n\nfour\t: :: the the the and and user assistant<end_of_utterance>\n",
]


@cache
def hf_tokenizer() -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(MARKERS)]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    return tokenizer


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(HfTokenizer.from_str(hf_tokenizer().to_str()), MARKERS)


def image_token_id() -> int:
    found = tokenizer().token_id("<image>")
    assert found is not None
    return found


@cache
def template(source: str = SMOLVLM, image_token: str | None = "<image>") -> ChatTemplate:
    return ChatTemplate(
        source,
        tokens={"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>"},
        special_tokens=tokenizer().special_tokens,
        image_token=image_token,
    )


def image_prompt(rows_per_tile: int = 4) -> Idefics3Prompt:
    return Idefics3Prompt(tokenizer(), image_token_id=image_token_id(), rows_per_tile=rows_per_tile)

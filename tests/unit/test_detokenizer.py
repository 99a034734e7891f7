from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as HfTokenizer

from pyvlm.detokenizer import make_detokenizer, token_bytes
from pyvlm.tokenizer import Tokenizer
from tests.unit.prompting import tokenizer as byte_level


@cache
def sentencepiece() -> Tokenizer:
    """Llama-2's kind: byte fallback, spaces as U+2581, the first space dropped."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)]]
    pieces += ["▁", "▁the", "▁a", "e", "x", "é", "語", "▁▁", "<", "0", "ab"]
    model = models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True)
    tokenizer = HfTokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return Tokenizer(tokenizer)


@cache
def odd_added_tokens() -> Tokenizer:
    hf = HfTokenizer.from_str(byte_level().hf.to_str())
    hf.add_tokens([AddedToken("<tool call>", special=False), AddedToken("é→", special=False)])
    hf.add_special_tokens([AddedToken("<|hidden|>", special=True)])
    return Tokenizer(hf)


TOKENIZERS = {"byte-level": byte_level, "sentencepiece": sentencepiece, "added": odd_added_tokens}


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = make_detokenizer(tokenizer)
    return [*[detokenizer.push(i) for i in ids], detokenizer.flush()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_ids_stream_to_the_whole_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]()
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_text_streams_back_whole_and_never_in_half_characters(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    ids = tokenizer.encode_untrusted(text)
    parts = stream(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_a_character_over_four_tokens_arrives_at_its_last() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("🎉x")
    assert len(ids) == 5
    assert stream(tokenizer, ids) == ["", "", "", "🎉", "x", ""]


def test_an_unfinished_character_is_replaced_at_the_end_only() -> None:
    tokenizer = byte_level()
    parts = stream(tokenizer, tokenizer.encode("a🎉")[:-1])
    assert parts == ["a", "", "", "", "\ufffd"]


def test_text_is_not_delayed_without_need() -> None:
    tokenizer = sentencepiece()
    ids = [tokenizer.token_id(t) for t in ("▁the", "▁a", "x", "<0xE8>", "<0xAA>", "<0x9E>", "e")]
    assert stream(tokenizer, ids) == ["the", " a", "x", "", "", "", "語e", ""]


def test_bytes_of_single_tokens() -> None:
    """Joined, they are the text's bytes, whole characters or not."""
    text = "two  words, Ünï 漢字 👋"
    plain = byte_level()
    assert b"".join(token_bytes(plain, i) for i in plain.encode_untrusted(text)) == text.encode()
    pieces = sentencepiece()
    joined = b"".join(token_bytes(pieces, i) for i in pieces.encode("ab 漢"))
    assert joined.removeprefix(b" ") == "ab 漢".encode()
    special = min(plain.special_ids)
    assert token_bytes(plain, special).decode() == plain.token(special)
    assert token_bytes(plain, 10**6) == b""

"""Ids to text as they arrive: never half a character, and in the end exactly the whole decode.

Invariant, after any number of pushes and one flush: the concatenated results equal
`tokenizer.decode(all ids)`.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Protocol

from tokenizers import decoders

from pyvlm.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>\Z")
_REPLACEMENT = "\ufffd"
_SPACE = "\u2581"  # how SentencePiece vocabularies write a space


class Detokenizer(Protocol):
    """State of one generation; not shared between threads."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this id; special tokens give none."""
        ...

    def flush(self) -> str:
        """What is left at the end; an unfinished character becomes U+FFFD. Call once."""
        ...


def make_detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    if isinstance(tokenizer.hf.decoder, decoders.ByteLevel):
        return _ByteLevelDetokenizer(tokenizer)
    return _WindowDetokenizer(tokenizer)


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What the token stands for by itself; a special token is its own name."""
    token = tokenizer.token(token_id)
    if token is None:
        return b""
    if token_id in tokenizer.special_ids:
        return token.encode()
    if isinstance(tokenizer.hf.decoder, decoders.ByteLevel):
        return _token_bytes(token)
    if _BYTE_TOKEN.match(token):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()


class _ByteLevelDetokenizer:
    """Each token is a run of bytes: decoding is incremental by itself."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        token = self._tokenizer.token(token_id)
        if token is None or token_id in self._tokenizer.special_ids:
            return ""
        return self._utf8.decode(_token_bytes(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDetokenizer:
    """Any other decoder: decode a short window twice and emit the difference.

    _ids[:_begin] is emitted and forgotten; _ids[_begin:_end] is emitted and kept as context, since
    a decoder may treat the first token of a text in its own way; _ids[_end:] is not yet emitted.
    Held back: a tail that decodes to U+FFFD, and a run of byte tokens that may still grow, because
    decoders judge such a run as a whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._end = 0

    def push(self, token_id: int) -> str:
        token = self._tokenizer.token(token_id)
        if token is None or token_id in self._tokenizer.special_ids:
            return ""
        self._ids.append(token_id)
        if _BYTE_TOKEN.match(token):
            return ""
        return self._emit(final=False)

    def flush(self) -> str:
        return self._emit(final=True)

    def _emit(self, final: bool) -> str:
        known = self._tokenizer.decode(self._ids[: self._end])
        text = self._tokenizer.decode(self._ids)
        fresh = text[len(known) :]
        if not fresh or (fresh.endswith(_REPLACEMENT) and not final):
            return ""
        del self._ids[: self._end]
        self._end = len(self._ids)
        return fresh


@cache
def _byte_of_char() -> dict[str, int]:
    """The printable stand-ins of byte-level vocabularies: bytes that print stand for themselves,
    the others for 256, 257, ... in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    return table | {chr(256 + i): b for i, b in enumerate(others)}


def _token_bytes(token: str) -> bytes:
    """An added token whose characters are no stand-ins is its own UTF-8."""
    table = _byte_of_char()
    try:
        return bytes([table[char] for char in token])
    except KeyError:
        return token.encode()

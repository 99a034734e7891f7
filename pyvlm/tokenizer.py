"""The checkpoint's tokenizer: text to ids and back, with trusted and untrusted text kept apart.

A special token (role marker, image placeholder, end of turn) may only come from trusted text, that
is from the template. Untrusted text is encoded so that whatever it spells stays text.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as HfTokenizer

from pyvlm.errors import PyvlmError
from pyvlm.files import is_file


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt. Special tokens are recognised in trusted pieces only."""

    text: str
    trusted: bool


class Tokenizer:
    """Immutable after construction; safe to share between threads."""

    def __init__(self, tokenizer: HfTokenizer, markers: Iterable[str] = ()) -> None:
        """`markers` are strings that count as special even if the vocabulary file forgets to say
        so (a family's image placeholder and its like)."""
        self._hf = _with_special_markers(tokenizer, frozenset(markers))
        self._hf.no_truncation()
        self._hf.no_padding()
        added = self._hf.get_added_tokens_decoder()
        special = {i: str(token.content) for i, token in added.items() if token.special}
        self.special_ids = frozenset(special)
        self.special_tokens = frozenset(special.values())

    @classmethod
    def from_directory(cls, directory: Path, markers: Iterable[str] = ()) -> Tokenizer:
        path = directory / "tokenizer.json"
        if not is_file(path):
            raise PyvlmError(f"{directory} has no tokenizer.json", code="model_invalid")
        try:
            tokenizer = HfTokenizer.from_file(str(path))
        except Exception:  # the library raises plain Exception
            raise PyvlmError(f"{path} is not a tokenizer file", code="model_invalid") from None
        return cls(tokenizer, markers)

    @property
    def vocab_size(self) -> int:
        return int(self._hf.get_vocab_size())

    @property
    def hf(self) -> HfTokenizer:
        """The library's own object; not to be changed."""
        return self._hf

    @cached_property
    def max_token_chars(self) -> int:
        """Of the longest token as the vocabulary spells it: none stands for more characters."""
        return max(map(len, self._hf.get_vocab()), default=1)

    def token_id(self, token: str) -> int | None:
        found = self._hf.token_to_id(token)
        return None if found is None else int(found)

    def token(self, token_id: int) -> str | None:
        found = self._hf.id_to_token(token_id)
        return None if found is None else str(found)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Trusted text: special tokens are recognised."""
        return list(self._encode(self._hf, text, add_special_tokens).ids)

    def encode_untrusted(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """No special token comes of the text, whatever it spells."""
        return list(self._encode(self._plain, text, add_special_tokens).ids)

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Ids of the joined text, with special tokens from trusted pieces only.

        For ordinary text these are the ids of the joined text as a whole: merges run across the
        borders of pieces. If untrusted text spells a special token, alone or with its neighbours,
        everything between two trusted special tokens is encoded as plain text instead.
        """
        encoding = self._encode(self._hf, "".join(p.text for p in pieces), False)
        ids = list(encoding.ids)
        if self._is_forged(ids, encoding, pieces):
            return self._encode_apart(pieces)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._hf.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def _is_forged(self, ids: list[int], encoding: Encoding, pieces: Sequence[Piece]) -> bool:
        starts, at = [], 0
        for piece in pieces:
            starts.append(at)
            at += len(piece.text)
        special = [i for i, token_id in enumerate(ids) if token_id in self.special_ids]
        if not special:
            return False
        offsets = encoding.offsets
        for i in special:
            begin, end = offsets[i]
            first, last = bisect_right(starts, begin) - 1, bisect_right(starts, end - 1) - 1
            if any(p.text and not p.trusted for p in pieces[first : last + 1]):
                return True
        return False

    def _encode_apart(self, pieces: Sequence[Piece]) -> list[int]:
        ids: list[int] = []
        run = ""
        for piece in pieces:
            if not piece.trusted:
                run += piece.text
                continue
            encoding, at = self._encode(self._hf, piece.text, False), 0
            for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token_id in self.special_ids:
                    ids += self.encode_untrusted(run + piece.text[at:begin])
                    ids.append(token_id)
                    run, at = "", end
            run += piece.text[at:]
        return ids + self.encode_untrusted(run)

    @cached_property
    def _plain(self) -> HfTokenizer:
        plain = HfTokenizer.from_str(self._hf.to_str())
        plain.encode_special_tokens = True
        return plain

    def _encode(self, hf: HfTokenizer, text: str, add_special_tokens: bool) -> Encoding:
        try:
            return hf.encode(text, add_special_tokens=add_special_tokens)
        except Exception:  # lone surrogates: the library cannot take them
            raise PyvlmError(
                "the text is not valid Unicode: it holds lone surrogates", code="invalid_parameter"
            ) from None


def _with_special_markers(tokenizer: HfTokenizer, markers: frozenset[str]) -> HfTokenizer:
    added = tokenizer.get_added_tokens_decoder().values()
    if not any(token.content in markers and not token.special for token in added):
        return tokenizer
    raw: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in raw["added_tokens"]:
        token["special"] = token["special"] or token["content"] in markers
    return HfTokenizer.from_str(json.dumps(raw))

"""Conversations as token rows: the chat template, branches that share a picture."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from tools.train_tiny.config import IMAGE_TOKENS
from tools.train_tiny.tokenizer import BOS, EOU, FAKE, GLOBAL, IMAGE

PICTURE = FAKE + GLOBAL + IMAGE * IMAGE_TOKENS + FAKE
SYSTEMS = [
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "Answer briefly.",
    "Be brief.",
    "You are a vision assistant. Answer with one word.",
    "Answer the question about the picture.",
    "You answer questions about pictures.",
    "Reply in a few words.",
    "You see simple shapes.",
    "You are an expert in shapes and colours.",
    "You are a polite and honest assistant.",
]

Turn = tuple[str, str]


@dataclass
class Row:
    """A row of tokens, fields as in batch.Batch. `tiles` are indices of pictures, in order."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    tiles: list[int] = field(default_factory=list)


class RowBuilder:
    """Fills one row up to `limit` tokens: an optional shared prefix, then independent branches."""

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self.tokenizer, self.limit = tokenizer, limit
        self.row, self.prefix, self.branch = Row(), 0, 0

    def add_prefix(self, text: str, tiles: list[int]) -> None:
        """Context that every branch sees, pictures included."""
        ids = self.tokenizer.encode(text).ids
        self._extend(ids, list(range(len(ids))), 0, [-100] * len(ids), tiles)
        self.prefix = len(ids)

    def add_branch(self, pieces: list[Turn], tiles: list[int] | None = None) -> bool:
        """A conversation that goes on from the prefix: (prompt, answer) pieces. False if full."""
        ids: list[int] = []
        learnt: list[bool] = []
        for prompt, answer in pieces:
            prompt_ids = self.tokenizer.encode(prompt).ids
            answer_ids = self.tokenizer.encode(answer).ids
            ids += prompt_ids + answer_ids
            learnt += [False] * len(prompt_ids) + [True] * len(answer_ids)
        if len(self.row.tokens) + len(ids) > self.limit:
            return False
        targets = [ids[i + 1] if learnt[i + 1] else -100 for i in range(len(ids) - 1)] + [-100]
        self.branch += 1
        start = self.prefix
        self._extend(ids, list(range(start, start + len(ids))), self.branch, targets, tiles or [])
        return True

    def _extend(
        self,
        ids: list[int],
        positions: list[int],
        branch: int,
        targets: list[int],
        tiles: list[int],
    ) -> None:
        row = self.row
        row.tokens += ids
        row.positions += positions
        row.branches += [branch] * len(ids)
        row.targets += targets
        row.tiles += tiles


def turns(qas: list[Turn], opening: str = "") -> list[Turn]:
    """Pieces of a conversation: first prompt `opening` + question, later ones whole turns."""
    pieces = []
    for i, (question, answer) in enumerate(qas):
        start = opening if i == 0 else "\nUser: "
        pieces.append((f"{start}{question}{EOU}\nAssistant:", f" {answer}{EOU}"))
    return pieces


def odd_opening(rng: random.Random, question: str) -> tuple[str, str]:
    """A less usual prompt with one picture: (opening, first question)."""
    head = BOS
    if rng.random() < 0.5:
        head += f"System: {rng.choice(SYSTEMS)}{EOU}\n"
        if rng.random() < 0.6:
            return f"{head}User:{PICTURE}", question
    draw = rng.random()
    if draw < 0.5:
        return f"{head}User: ", question + PICTURE
    if draw < 0.7:
        return f"{head}User: ", question + rng.choice([" ", "\n"]) + PICTURE
    return f"{head}User:{PICTURE}" + rng.choice([" ", "\n", "\n\n"]), question


def text_opening(rng: random.Random) -> str:
    """The opening of a conversation with no picture."""
    if rng.random() < 0.3:
        return f"{BOS}System: {rng.choice(SYSTEMS)}{EOU}\nUser: "
    return f"{BOS}User: "

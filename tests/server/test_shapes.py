"""Response objects of hand-made values."""

from __future__ import annotations

from pyvlm.outputs import TokenLogprob, TopLogprob
from pyvlm.server.shapes import ChatShape, CompletionShape

PARTS = (b"\xf0\x9f", b"\x98", b"red", "\N{REPLACEMENT CHARACTER}".encode())


def text(part: bytes) -> str:
    return part.decode("utf-8", "replace")


TOP = tuple(TopLogprob(i, text(part), part, -float(i)) for i, part in enumerate(PARTS))
LOGPROB = TokenLogprob(0, text(PARTS[0]), PARTS[0], -0.5, TOP)


def test_parts_of_characters_are_keys_of_their_own_in_completions() -> None:
    told = CompletionShape("id", "tiny").choice(0, "", [LOGPROB], None)["logprobs"]
    assert told["tokens"] == ["bytes:\\xf0\\x9f"]
    assert told["top_logprobs"] == [
        {"bytes:\\xf0\\x9f": 0.0, "bytes:\\x98": -1.0, "red": -2.0, "\ufffd": -3.0}
    ]


def test_chat_has_their_bytes_apart() -> None:
    told = ChatShape("id", "tiny").choice(0, "", [LOGPROB], None)["logprobs"]["content"]
    assert [top["bytes"] for top in told[0]["top_logprobs"]] == [list(part) for part in PARTS]

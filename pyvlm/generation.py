"""From generated ids to the text that a client sees: detokenizer, then stop strings.

Withholding order: the detokenizer keeps incomplete characters, the stop matcher keeps any tail
that may begin a stop string. `finish` flushes in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyvlm.detokenizer import make_detokenizer
from pyvlm.errors import PyvlmError
from pyvlm.tokenizer import Tokenizer

MAX_STOPS = 16
MAX_STOP_CHARS = 1024


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise _invalid(f"at most {MAX_STOPS} stop strings are accepted, not {len(stops)}")
    for stop in stops:
        if not stop:
            raise _invalid("a stop string is empty")
        if len(stop) > MAX_STOP_CHARS:
            raise _invalid(f"a stop string has {len(stop)} characters, at most {MAX_STOP_CHARS}")
    return tuple(dict.fromkeys(stops))


class StopMatcher:
    """Passes text on up to the first stop string; what may still become one is withheld.

    The first is the one whose last character comes first; of several that end there, the longest.
    So the result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = check_stops(stops)
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        if self.matched:
            return ""
        text, self._held = self._held + text, ""
        hits = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if hits:
            self.matched = True
            return text[: min(hits)[1]]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text ends here, so what was withheld is no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[len(text) - size :]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


class TextStream:
    """The visible text of one generation. Not shared between threads."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = make_detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self.num_tokens = 0  # ids taken, up to and with the one that completed a stop string

    @property
    def stopped(self) -> bool:
        return self._matcher.matched

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that is certain now. Ids after a stop string are ignored."""
        out = ""
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            out += self._matcher.push(self._detokenizer.push(token_id))
        return out

    def finish(self) -> str:
        if self.stopped:
            return ""
        out = self._matcher.push(self._detokenizer.flush())
        return out if self.stopped else out + self._matcher.flush()


def _invalid(message: str) -> PyvlmError:
    return PyvlmError(message, code="invalid_parameter", param="stop")

"""Messages to prompt pieces through the checkpoint's own chat template, in a sandbox.

User text is marked with random private strings while the template runs, so that afterwards every
character of the prompt is known to be the template's (trusted) or the user's (untrusted). The
template is rendered a second time without marks: if both agree, the marks changed nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError

from pyvlm.chat_sandbox import TemplateRefusedError, compile_template, render_bounded
from pyvlm.errors import PyvlmError
from pyvlm.tokenizer import Piece

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture's place in the conversation; pictures are numbered in order of appearance."""


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str | Sequence[Part]

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PyvlmError(
                f"role {self.role!r} is not one of {', '.join(ROLES)}",
                code="invalid_parameter",
                param="messages",
            )

    @property
    def num_images(self) -> int:
        if isinstance(self.content, str):
            return 0
        return sum(isinstance(part, ImagePart) for part in self.content)

    @property
    def num_chars(self) -> int:
        if isinstance(self.content, str):
            return len(self.content)
        return sum(len(part.text) for part in self.content if isinstance(part, TextPart))


def user_message(prompt: str, num_images: int = 0) -> Message:
    """Pictures first, in order, then the text."""
    text = [TextPart(prompt)] if prompt else []
    return Message("user", [*[ImagePart()] * num_images, *text])


class ChatTemplate:
    """One checkpoint's template. Immutable; safe to share between threads."""

    def __init__(
        self,
        source: str,
        *,
        tokens: Mapping[str, str],
        special_tokens: Collection[str],
        image_token: str | None = None,
    ) -> None:
        """`tokens`: bos_token, eos_token and the like, as templates name them; `special_tokens`:
        every string that the tokenizer would take for a special token."""
        self._tokens = dict(tokens)
        self._special_tokens = tuple(special_tokens)
        self._image_token = image_token
        try:
            self._template = compile_template(source)
        except (TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            raise PyvlmError(
                f"the checkpoint's chat template does not parse (line {line})",
                code="model_invalid",
            ) from None

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[Piece]:
        """The prompt in pieces; trusted ones hold one placeholder per picture, in order."""
        if not messages:
            raise PyvlmError("there are no messages", code="empty_prompt", param="messages")
        now, marks = datetime.now(), _Marks()
        plain = self._run(messages, None, now, add_generation_prompt)
        marked = self._run(messages, marks, now, add_generation_prompt)
        pieces = marks.split(marked)
        if pieces is None or "".join(p.text for p in pieces) != plain:
            pieces = self._untouchable(plain, messages)
        self._check_images(pieces, messages)
        return pieces

    def _untouchable(self, plain: str, messages: Sequence[Message]) -> list[Piece]:
        """The template rewrote texts, so their place is unknown: fine unless one spells a
        special token."""
        texts = "".join(text for message in messages for text in _texts(message))
        if any(token in texts for token in self._special_tokens):
            raise _failed("it rewrites message texts, and one of them spells a special token")
        return [Piece(plain, trusted=True)]

    def _check_images(self, pieces: Sequence[Piece], messages: Sequence[Message]) -> None:
        wanted = sum(message.num_images for message in messages)
        if self._image_token is None:
            found = 0
        else:
            found = sum(p.text.count(self._image_token) for p in pieces if p.trusted)
        if found != wanted:
            raise _failed(f"it made {found} placeholders for {wanted} images")

    def _run(
        self,
        messages: Sequence[Message],
        marks: _Marks | None,
        now: datetime,
        add_generation_prompt: bool,
    ) -> str:
        values = [self._message_value(message, marks) for message in messages]
        return self._render_values(values, now, add_generation_prompt)

    def _message_value(self, message: Message, marks: _Marks | None) -> dict[str, Any]:
        wrap = marks.wrap if marks else str
        if isinstance(message.content, str):
            text: Any = wrap(message.content)
            if not self._takes_strings:
                text = [{"type": "text", "text": text}]
            return {"role": message.role, "content": text}
        if self._takes_parts:
            parts: Any = [
                {"type": "text", "text": wrap(part.text)}
                if isinstance(part, TextPart)
                else {"type": "image"}
                for part in message.content
            ]
            return {"role": message.role, "content": parts}
        lines = [
            wrap(part.text) if isinstance(part, TextPart) else self._image_token or ""
            for part in message.content
        ]
        return {"role": message.role, "content": "\n".join(lines)}

    def _render_values(
        self, values: list[dict[str, Any]], now: datetime, add_generation_prompt: bool = True
    ) -> str:
        context = {
            **self._tokens,
            "messages": values,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": now.strftime,
        }
        try:
            return render_bounded(self._template, context)
        except TemplateRefusedError as error:
            raise _failed(f"it says: {str(error)[:500]}") from None
        except Exception as error:  # whatever a template can make Python raise
            raise _failed(f"rendering stopped with {type(error).__name__}") from None

    @cached_property
    def _takes_parts(self) -> bool:
        return self._probe([{"type": "text", "text": "probe"}])

    @cached_property
    def _takes_strings(self) -> bool:
        return self._probe("probe")

    def _probe(self, content: object) -> bool:
        """Whether content of this form arrives in the prompt as text."""
        try:
            text = self._render_values([{"role": "user", "content": content}], datetime.now())
        except PyvlmError:
            return False
        text = text.lower()
        return "probe" in text and "'text'" not in text and '"text"' not in text


class _Marks:
    """Private strings around user text. White space at its ends stays outside, so that a template
    may trim it as it would without marks; it cannot spell a special token."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(12)
        self._start, self._end = f"\uf8f0{self.key}\uf8f1", f"\uf8f2{self.key}\uf8f3"

    def wrap(self, text: str) -> str:
        inner = text.strip()
        if not inner:
            return text
        at = text.index(inner)
        return f"{text[:at]}{self._start}{inner}{self._end}{text[at + len(inner) :]}"

    def split(self, marked: str) -> list[Piece] | None:
        """Pieces without marks; None if they are not properly paired any more."""
        head, *rest = marked.split(self._start)
        pieces = [Piece(head, trusted=True)]
        for part in rest:
            inner, found, outer = part.partition(self._end)
            if not found:
                return None
            pieces += [Piece(inner, trusted=False), Piece(outer, trusted=True)]
        if any(self.key in piece.text for piece in pieces):
            return None
        return [piece for piece in pieces if piece.text]


def _texts(message: Message) -> list[str]:
    if isinstance(message.content, str):
        return [message.content]
    return [part.text for part in message.content if isinstance(part, TextPart)]


def _failed(reason: str) -> PyvlmError:
    return PyvlmError(
        f"the chat template failed: {reason}", code="chat_template_failed", param="messages"
    )

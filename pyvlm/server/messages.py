"""Wire messages to the conversation that the chat template takes, and where its pictures are."""

from __future__ import annotations

from collections.abc import Sequence

from pyvlm.capabilities import Capabilities
from pyvlm.chat import ImagePart, Message, TextPart
from pyvlm.errors import PyvlmError
from pyvlm.server import schema

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def conversation(messages: Sequence[schema.ChatMessage]) -> list[Message]:
    return [_message(message, index) for index, message in enumerate(messages)]


def image_urls(messages: Sequence[schema.ChatMessage], capabilities: Capabilities) -> list[str]:
    """In order of appearance. A model that takes no pictures refuses before any is fetched."""
    urls = [
        part.url
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, schema.ImagePart)
    ]
    if urls:
        capabilities.require("image")
    return urls


def _message(message: schema.ChatMessage, index: int) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise PyvlmError(
            f"messages[{index}].role must be one of {', '.join(_ROLES)}, not {message.role[:40]!r}",
            code="invalid_parameter",
            param=f"messages[{index}].role",
        )
    if isinstance(message.content, str):
        return Message(role, message.content)
    return Message(
        role,
        [
            TextPart(part.text) if isinstance(part, schema.TextPart) else ImagePart()
            for part in message.content
        ],
    )

"""Messages between the pool and a worker: one JSON object in one packet, never pickled objects.

Pixels and picture bytes do not travel here, so a message is small and sending one never blocks.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict
from typing import Any

from pyvlm.media.header import ImageHeader

MAX_MESSAGE_BYTES = 1 << 16

Message = dict[str, Any]


def send(channel: socket.socket, message: Message) -> None:
    channel.send(json.dumps(message).encode())


def receive(channel: socket.socket) -> Message | None:
    """None at the end of the stream; ValueError for what is not a message."""
    packet = channel.recv(MAX_MESSAGE_BYTES)
    if not packet:
        return None
    try:
        message = json.loads(packet)
    except RecursionError:
        raise ValueError("a message of many levels") from None
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def header_fields(header: ImageHeader) -> Message:
    return asdict(header)


def header_from(fields: Message) -> ImageHeader:
    frame = fields["first_frame"]
    return ImageHeader(**{**fields, "first_frame": None if frame is None else tuple(frame)})

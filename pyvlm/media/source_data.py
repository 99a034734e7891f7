"""The bytes in a data: URL, in every spelling that clients send.

Accepted: any declared type (the bytes decide what it is), parameters, either base64 alphabet,
blanks and line ends in the payload, the escapes that base64 may need, missing padding. Sizes are
judged from counts before anything is copied, and again exactly before base64 is decoded. Work goes
by pieces: one call for 20 MiB would hold the GIL, and so every other request, for a tenth of a
second.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator

from pyvlm.errors import PyvlmError
from pyvlm.media.header import decode_failed
from pyvlm.media.policy import MediaPolicy

MAX_HEADER_LENGTH = 1_024  # of everything before the comma

_PIECE = 1 << 18  # a multiple of 4: whole groups of base64 digits

_BLANKS = " \t\r\n\f\v"
_ESCAPES = {"%2B": b"+", "%2F": b"/", "%3D": b"=", "%2D": b"-", "%5F": b"_"} | {
    f"%{ord(blank):02X}": b" " for blank in _BLANKS
}
_STANDARD_ALPHABET = bytes.maketrans(b"-_", b"+/")


def decode_data_url(url: str, policy: MediaPolicy, index: int = 0) -> bytes:
    """The picture's bytes; `media_policy_violation` if they are more than the policy allows."""
    start = _payload_start(url, index)
    policy.require_within("max_image_bytes", _least_size(url, start), "bytes", index)
    try:
        payload = url[start:].encode("ascii")
    except UnicodeEncodeError:
        raise _broken(index, "has characters that are not ASCII") from None
    digits = _without_padding(_standard_digits(payload, index), index)
    policy.require_within("max_image_bytes", len(digits) * 3 // 4, "bytes", index)
    digits += b"=" * (-len(digits) % 4)
    try:
        return b"".join(
            binascii.a2b_base64(digits[at : at + _PIECE], strict_mode=True)
            for at in range(0, len(digits), _PIECE)
        )
    except binascii.Error:
        raise _broken(index, "is not base64") from None


def _payload_start(url: str, index: int) -> int:
    comma = url.find(",", 0, MAX_HEADER_LENGTH)
    if comma < 0:
        raise _broken(index, f"has no comma in its first {MAX_HEADER_LENGTH} characters")
    parameters = [item.strip().lower() for item in url[len("data:") : comma].split(";")]
    if "base64" not in parameters[1:]:
        raise _broken(index, "does not say ;base64, the only encoding taken")
    return comma + 1


def _least_size(url: str, start: int) -> int:
    """No payload decodes to fewer bytes than this; exact if it has no escapes."""
    blanks = sum(url.count(blank, start) for blank in _BLANKS)
    escapes = url.count("%", start)  # three characters for one, which may be a blank
    padding = url.count("=", start)
    return max(0, len(url) - start - blanks - 3 * escapes - padding) * 3 // 4


def _standard_digits(payload: bytes, index: int) -> bytes:
    """Without blanks and escapes, in the standard alphabet; padding stays."""
    blanks = _BLANKS.encode()
    return b"".join(
        (_unescaped(piece, index) if b"%" in piece else piece).translate(
            _STANDARD_ALPHABET, delete=blanks
        )
        for piece in _pieces(payload)
    )


def _pieces(payload: bytes) -> Iterator[bytes]:
    """Of about _PIECE bytes; none ends within an escape."""
    at = 0
    while at < len(payload):
        end = at + _PIECE
        escape = payload.find(b"%", end - 2, end)
        end = end if escape < 0 else escape + 3
        yield payload[at:end]
        at = end


def _unescaped(payload: bytes, index: int) -> bytes:
    for escape, plain in _ESCAPES.items():
        for spelling in {escape, escape.lower()}:
            payload = payload.replace(spelling.encode(), plain)
    if b"%" in payload:
        raise _broken(index, "has an escape that base64 never needs")
    return payload


def _without_padding(payload: bytes, index: int) -> bytes:
    digits = payload.rstrip(b"=")
    if not digits:
        raise _broken(index, "is empty")
    if b"=" in digits:
        raise _broken(index, "has padding in its middle")
    if len(digits) % 4 == 1 or len(payload) - len(digits) > 2:
        raise _broken(index, "has the wrong length for base64")
    return digits


def _broken(index: int, reason: str) -> PyvlmError:
    return decode_failed(index, f"the data URL's payload {reason}")

"""JSON bodies to typed objects, or an error of ours that names the field.

Types are strict: no number from a string or a boolean, no NaN, no infinity. A field that is not
declared is refused by name, unless it is a known one at its neutral value.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json

from pyvlm.errors import PyvlmError

Neutral = Mapping[str, tuple[object, ...]]
_Model = TypeVar("_Model", bound="WireModel")

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "an array",
    "model_type": "an object",
    "string_type": "a string",
    "string_unicode": "valid Unicode",
}
_MAX_NAME = 64
_LARGE_BYTES = 1 << 20
# Bounds what a body can unfold to: an empty array costs 50 times its size on the wire.
MAX_STRUCTURE = 250_000


class WireModel(BaseModel):
    """A request or a part of one. `neutral`: known fields that have no effect at these values."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, value: object) -> object:
        if not isinstance(value, dict) or not cls.neutral.keys() & value.keys():
            return value
        return {k: v for k, v in value.items() if not _is_neutral(cls.neutral, k, v)}


async def parse(model: type[_Model], body: bytearray) -> _Model:
    """A large body in a thread: other requests go on between its passes."""
    if len(body) > _LARGE_BYTES:
        return await asyncio.to_thread(_parse, model, body)
    return _parse(model, body)


def _parse(model: type[_Model], body: bytearray) -> _Model:
    structure = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if structure > MAX_STRUCTURE:
        raise PyvlmError(
            f"a body may hold {MAX_STRUCTURE} commas, brackets and braces, this one has "
            f"{structure}",
            code="invalid_parameter",
        )
    try:
        value = from_json(body)
    except ValueError as error:
        raise PyvlmError(_syntax(str(error)), code="invalid_parameter") from None
    if not isinstance(value, dict):
        raise PyvlmError("the body must be a JSON object", code="invalid_parameter")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)) from None


def _is_neutral(neutral: Neutral, name: str, value: object) -> bool:
    return any(type(value) is type(v) and value == v for v in neutral.get(name, ()))


def _syntax(library_text: str) -> str:
    """Only the place is taken from the library's text."""
    if "recursion limit" in library_text:
        return "the body's JSON is nested too deeply"
    place = re.search(r"line (\d+) column (\d+)$", library_text)
    where = f" (line {place[1]}, column {place[2]})" if place else ""
    return f"the body is not valid JSON in UTF-8{where}"


def _refusal(errors: Iterable[ErrorDetails]) -> PyvlmError:
    """Of several, an undeclared field is named last: a wrong value says more."""
    first, *others = sorted(errors, key=lambda e: e["type"] == "extra_forbidden")
    del others
    path = field_path(first["loc"])
    if first["type"] == "extra_forbidden":
        return PyvlmError(f"{path} is not supported", code="unsupported_parameter", param=path)
    if first["type"] == "missing":
        return PyvlmError(f"{path} is required", code="invalid_parameter", param=path)
    expected = _expected(first)
    return PyvlmError(f"{path} must be {expected}", code="invalid_parameter", param=path)


def _expected(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":  # the words are those of our own declaration
        return f"one of {context['expected']}"
    if kind in ("too_long", "string_too_long"):
        return f"no longer than {context['max_length']}"
    return f"{_EXPECTED.get(kind, 'of another form')}, not {_kind(error['input'])}"


def field_path(location: Iterable[int | str]) -> str:
    """`messages[0].content`. Tags of unions, which are written in angle brackets, are left out."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (step.startswith("<") and step.endswith(">")):
            name = step if len(step) <= _MAX_NAME else step[:_MAX_NAME] + "..."
            path += f".{name}" if path else name
    return path or "the body"


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return "NaN or infinity"
        case int() if abs(value) >= 1 << 64:
            return "a number of that size"
        case int() | float():
            return f"{value}"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
    return "that"


def neutral_report(neutral: Neutral) -> dict[str, list[Any]]:
    """For machines: the fields that are refused unless they hold one of these values."""
    return {name: [v for v in values if v is not None] for name, values in sorted(neutral.items())}

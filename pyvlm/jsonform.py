"""Frozen dataclasses from JSON, strictly: no unknown key, no missing one, no other type."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class FormError(ValueError):
    """Names the place in the document and what was expected there."""


def decode(kind: type[T], raw: object, where: str = "") -> T:
    """`raw` (as json.loads gives it) as the dataclass `kind`."""
    return typing.cast(T, _decode(kind, raw, where or kind.__name__))


def _decode(kind: Any, raw: object, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _object(kind, raw, where)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = next(arg for arg in typing.get_args(kind) if arg is not type(None))
        return None if raw is None else _decode(inner, raw, where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise FormError(f"{where} is not a list")
        inner = typing.get_args(kind)[0]
        return tuple(_decode(inner, item, f"{where}[{i}]") for i, item in enumerate(raw))
    if origin is dict:
        if not isinstance(raw, Mapping):
            raise FormError(f"{where} is not an object")
        inner = typing.get_args(kind)[1]
        return {str(k): _decode(inner, item, f"{where}.{k}") for k, item in raw.items()}
    if type(raw) is not kind:
        raise FormError(f"{where} is {raw!r}, expected {kind.__name__}")
    return raw


def _object(kind: Any, raw: object, where: str) -> Any:
    if not isinstance(raw, Mapping):
        raise FormError(f"{where} is not an object")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for key in raw:
        if key not in names:
            raise FormError(f"{where}.{key} is unknown")
    for name in names:
        if name not in raw:
            raise FormError(f"{where}.{name} is missing")
    return kind(**{name: _decode(hints[name], raw[name], f"{where}.{name}") for name in names})

"""The sandbox that chat templates run in: no attribute access to Python's internals, bounded work.

Templates come with checkpoints, so they are code of strangers; none is ever taken from a request.
On top of jinja2's immutable sandbox: a budget of loop iterations for a whole rendering, a cap on
its output, and none of the operators, filters and string methods that make huge values from small
ones without a cap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, cast

from jinja2 import Environment, Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_ITERATIONS = 2_000_000
MAX_OUTPUT_CHARS = 16_000_000
MAX_OPERAND = 1_000_000
_GROWING_METHODS = frozenset(
    {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"}
)

_iterations_left: ContextVar[list[int]] = ContextVar("iterations_left")


class TemplateRefusedError(Exception):
    """The template called raise_exception; the message is the template's own."""


def compile_template(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def render_bounded(template: Template, context: Mapping[str, Any]) -> str:
    token = _iterations_left.set([MAX_ITERATIONS])
    try:
        parts, size = [], 0
        for part in template.generate(**context):
            size += len(part)
            if size > MAX_OUTPUT_CHARS:
                raise SecurityError("the output is too long")
            parts.append(part)
        return "".join(parts)
    finally:
        _iterations_left.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_size(left) <= MAX_OPERAND and _size(right) <= 64):
            raise SecurityError("a power is too large")
        if operator == "*" and _size(left) * _size(right) > MAX_OPERAND**2:
            raise SecurityError("a product is too large")
        if operator == "*" and _is_sized(left, right) and _size(left) * _size(right) > MAX_OPERAND:
            raise SecurityError("a repetition is too long")
        if operator == "+" and _is_sized(left, right):
            _check_length(_size(left) + _size(right))
        if operator == "%" and isinstance(left, str):
            raise SecurityError("string formatting is not available")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _GROWING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return _BoundWork().visit(tree)  # type: ignore[no-any-return]


class _BoundWork(NodeTransformer):
    """`for x in xs` becomes `for x in xs|bounded`, `a ~ b` becomes `[a, b]|concat`."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filter(node.iter, "__bounded")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "__concat")


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """{% generation %} marks an assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bounded(items: Iterable[Any]) -> Iterator[Any]:
    left = _iterations_left.get()
    for item in items:
        left[0] -= 1
        if left[0] < 0:
            raise SecurityError("too many iterations")
        yield item


def _concat(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(len(text) for text in texts))
    return "".join(texts)


def _indent(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, int) or not 0 <= width <= 100:
        raise SecurityError("an indentation is too wide")
    return do_indent(text, width, first, blank)


def _is_sized(*values: object) -> bool:
    return any(isinstance(value, (str, list, tuple)) for value in values)


def _size(value: object) -> float:
    if isinstance(value, (str, list, tuple)):
        return len(value)
    return abs(value) if isinstance(value, (int, float)) else 1


def _check_length(length: float) -> None:
    if length > MAX_OUTPUT_CHARS:
        raise SecurityError("a text is too long")


def _raise_exception(message: object) -> None:
    raise TemplateRefusedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without HTML escapes, unlike jinja2's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    for name in ("center", "format", "xmlattr", "urlize", "pprint"):
        del environment.filters[name]
    environment.filters |= {
        "__bounded": _bounded,
        "__concat": _concat,
        "indent": _indent,
        "tojson": _tojson,
    }
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    return environment


_ENVIRONMENT = _environment()

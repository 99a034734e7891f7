"""Typed SSA text: the small part of MLIR that the emitters write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyvlm.emit.layout import Param

DYNAMIC = None


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ranked tensor; a None extent is dynamic."""

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        extents = "".join(f"{'?' if n is None else n}x" for n in self.shape)
        return f"tensor<{extents}{self.dtype}>"

    @property
    def static_shape(self) -> tuple[int, ...]:
        if None in self.shape:
            raise ValueError(f"{self} has a dynamic extent")
        return tuple(n for n in self.shape if n is not None)


@dataclass(frozen=True, slots=True)
class ScalarType:
    name: str

    def __str__(self) -> str:
        return self.name


Type = TensorType | ScalarType
INDEX = ScalarType("index")
I32 = ScalarType("i32")
F32 = ScalarType("f32")


def tensor(dtype: str, *shape: int | None) -> TensorType:
    return TensorType(shape, dtype)


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA value: its name with the % sign, and its type."""

    name: str
    type: Type

    def __str__(self) -> str:
        return self.name

    @property
    def tensor(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise TypeError(f"{self.name} is {self.type}, not a tensor")
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.static_shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    type: Type
    consume: bool = False  # updated in place: the caller gives the buffer away

    def __str__(self) -> str:
        attribute = " {iree.abi.consume}" if self.consume else ""
        return f"%arg_{self.name}: {self.type}{attribute}"


class Function:
    """A public function under construction. Values are named by a hint and a running number."""

    def __init__(self, module: Module, name: str, arguments: Sequence[Argument]) -> None:
        self.module = module
        self.name = name
        self.arguments = tuple(arguments)
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._once: dict[str, Value] = {}
        self._header = ""

    def argument(self, name: str) -> Value:
        for argument in self.arguments:
            if argument.name == name:
                return Value(f"%arg_{name}", argument.type)
        raise KeyError(name)

    def line(self, text: str) -> None:
        self._lines.append(text)

    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"%{hint}_{self._count}"

    def op(self, text: str, type_: Type, hint: str = "v") -> Value:
        """Emits `%hint_n = text`. The text carries its own trailing type."""
        value = Value(self.fresh(hint), type_)
        self.line(f"{value} = {text}")
        return value

    def ops(self, text: str, types: Sequence[Type], hint: str = "r") -> list[Value]:
        """Emits one operation of several results."""
        if len(types) == 1:
            return [self.op(text, types[0], hint)]
        name = self.fresh(hint)
        self.line(f"{name}:{len(types)} = {text}")
        return [Value(f"{name}#{i}", type_) for i, type_ in enumerate(types)]

    def opaque_index(self, number: int) -> Value:
        """A constant that the compiler cannot fold, so that it becomes a dispatch operand.

        It stands at the entry: between two dispatches it would cut a step into two submissions.
        """

        def build() -> Value:
            constant, value = self.fresh("c"), Value(self.fresh("opaque"), INDEX)
            self._entry.append(f"{constant} = arith.constant {number} : index")
            self._entry.append(f"{value} = util.optimization_barrier {constant} : index")
            return value

        return self.once(f"opaque {number}", build)

    def once(self, key: str, build: Callable[[], Value]) -> Value:
        """A value that the whole function shares, built at its first use."""
        if key not in self._once:
            self._once[key] = build()
        return self._once[key]

    def constant(self, number: int | float, type_: ScalarType) -> Value:
        text = str(number) if isinstance(number, int) else f"{number:.9e}"
        line = f"arith.constant {text} : {type_}"
        return self.once(line, lambda: self.op(line, type_, "c"))

    def extent(self, value: Value) -> Value:
        """The dynamic extent of a tensor's first dimension."""
        zero = self.constant(0, INDEX)
        return self.op(f"tensor.dim {value}, {zero} : {value.type}", INDEX, "n")

    def param(self, name: str) -> Value:
        """The value of a model parameter, loaded once per function."""
        type_ = self.module.use(name)
        line = f"util.global.load @p.{name} : {type_}"
        return self.once(line, lambda: self.op(line, type_, "w"))

    def logical(self, name: str) -> tuple[int, ...]:
        """The parameter's shape before packing, e.g. [N, K] of a matrix."""
        return self.module.params[name].logical

    def result(self, *values: Value) -> None:
        types = ", ".join(str(v.type) for v in values)
        self.line(f"return {', '.join(map(str, values))} : {types}")
        arguments = ", ".join(map(str, self.arguments))
        self._header = f"func.func @{self.name}({arguments}) -> ({types})"

    def text(self) -> str:
        if not self._header:
            raise ValueError(f"function {self.name} returns nothing")
        body = "\n".join(f"  {line}" for line in self._entry + self._lines)
        return f"{self._header} {{\n{body}\n}}"


class Module:
    """Functions over one set of parameters; only parameters that a function reads are declared."""

    def __init__(self, name: str, params: Mapping[str, Param], scope: str = "model") -> None:
        self.name = name
        self.params = params
        self._scope = scope
        self._used: dict[str, TensorType] = {}
        self._symbols: dict[str, str] = {}  # content of an executable -> its symbol
        self._executables: dict[str, str] = {}
        self._functions: list[Function] = []

    def function(self, name: str, arguments: Sequence[Argument]) -> Function:
        function = Function(self, name, arguments)
        self._functions.append(function)
        return function

    def use(self, name: str) -> TensorType:
        if name not in self._used:
            param = self.params[name]
            self._used[name] = TensorType(param.shape, param.dtype)
        return self._used[name]

    def executable(self, key: str, prefix: str) -> tuple[str, bool]:
        """The symbol of the executable with this content, and whether it still has no text."""
        if key in self._symbols:
            return self._symbols[key], False
        self._symbols[key] = f"{prefix}_{len(self._symbols)}"
        return self._symbols[key], True

    def define(self, symbol: str, text: str) -> None:
        self._executables[symbol] = text

    def text(self) -> str:
        globals_ = [
            f'util.global private @p.{name} = #flow.parameter.named<"{self._scope}"::"{name}">'
            f" : {type_}"
            for name, type_ in self._used.items()
        ]
        functions = [function.text() for function in self._functions]
        parts = [f"module @{self.name} {{", *self._executables.values(), *globals_, *functions, "}"]
        return "\n".join(parts) + "\n"

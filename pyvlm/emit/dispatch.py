"""Calls of native kernels: one `stream.executable` per kernel and static shape.

The executable's function passes each binding as (pointer, offset in elements) and then the scalars
as size_t, the workgroup id and count last: the C side sees one packed struct (`llvm.bareptr`).
Layers differ by operands only, so all of them share an executable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyvlm.emit.builder import Function, TensorType, Value

Scalar = int | Value  # a constant of the executable, or an index operand


@dataclass(frozen=True, slots=True)
class Workgroups:
    """`units * ceil(rows / rows_per_unit)` workgroups; rows None: `units` of them."""

    units: int
    rows: Value | int | None = None
    rows_per_unit: int = 1

    def folded(self) -> Workgroups:
        """With a static row count, a plain number."""
        if isinstance(self.rows, int):
            return Workgroups(self.units * -(-self.rows // self.rows_per_unit))
        return self


@dataclass(frozen=True, slots=True)
class Binding:
    """A tensor operand or result; `extents` are the values of its dynamic dimensions."""

    value: Value
    extents: tuple[Value, ...] = ()

    @property
    def type(self) -> TensorType:
        return self.value.tensor


@dataclass(frozen=True, slots=True)
class Output:
    """A fresh result."""

    type: TensorType
    extents: tuple[Value, ...] = ()


def dispatch(
    f: Function,
    kernel: str,
    inputs: Sequence[Value | Binding],
    scalars: Sequence[Scalar],
    workgroups: Workgroups,
    *,
    outputs: Sequence[TensorType | Output] = (),
    tied: Sequence[int] = (),
) -> list[Value]:
    """Emits one kernel call; results are the inputs updated in place (`tied`), then `outputs`."""
    fresh = [o if isinstance(o, Output) else Output(o) for o in outputs]
    bindings = [b if isinstance(b, Binding) else Binding(b) for b in inputs]
    workgroups = workgroups.folded()
    operands = [s for s in scalars if isinstance(s, Value)]
    types = [b.type for b in bindings] + [o.type for o in fresh]
    symbol = _executable(f, kernel, types, scalars, workgroups)
    workload = f"[{workgroups.rows}]" if workgroups.rows is not None else ""
    arguments = [*map(str, operands), *(str(b.value) for b in bindings)]
    argument_types = ["index"] * len(operands) + [f"{b.type}{_extents(b)}" for b in bindings]
    results = [f"{bindings[i].value}{_extents(bindings[i])}" for i in tied]
    results += [f"{o.type}{_extents(o)}" for o in fresh]
    return f.ops(
        f"flow.dispatch @{symbol}::@{symbol}_run{workload}({', '.join(arguments)})"
        f" : ({', '.join(argument_types)}) -> ({', '.join(results)})",
        [bindings[i].type for i in tied] + [o.type for o in fresh],
        "d",
    )


def _extents(tensor: Binding | Output) -> str:
    return "{" + ", ".join(map(str, tensor.extents)) + "}" if tensor.extents else ""


def _executable(
    f: Function,
    kernel: str,
    types: Sequence[TensorType],
    scalars: Sequence[Scalar],
    workgroups: Workgroups,
) -> str:
    body = _body(kernel, types, scalars)
    grid = _grid(workgroups)
    symbol, missing = f.module.executable(body + grid, kernel.removeprefix("pyvlm_"))
    if missing:
        f.module.define(symbol, _wrap(symbol, grid, body))
    return symbol


def _wrap(symbol: str, grid: str, body: str) -> str:
    return (
        f"stream.executable private @{symbol} {{\n"
        f"  stream.executable.export public @{symbol}_run {grid}\n"
        f"  builtin.module {{\n{body.replace('@RUN', f'@{symbol}_run')}  }}\n}}"
    )


def _grid(workgroups: Workgroups) -> str:
    lines = ["%c1 = arith.constant 1 : index", f"%u = arith.constant {workgroups.units} : index"]
    argument, x = "", "%u"
    if workgroups.rows is not None:
        argument, x = "%rows: index", "%x"
        lines += [
            f"%p = arith.constant {workgroups.rows_per_unit} : index",
            "%n = arith.ceildivui %rows, %p : index",
            "%x = arith.muli %n, %u : index",
        ]
    lines.append(f"stream.return {x}, %c1, %c1 : index, index, index")
    body = "".join(f"    {line}\n" for line in lines)
    return f"workgroups({argument}) -> (index, index, index) {{\n{body}  }}"


def _body(kernel: str, types: Sequence[TensorType], scalars: Sequence[Scalar]) -> str:
    num_operands = sum(isinstance(s, Value) for s in scalars)
    arguments = [f"%s{i}: index" for i in range(num_operands)]
    arguments += [f"%b{i}: !stream.binding" for i in range(len(types))]
    lines = ["%c0 = arith.constant 0 : index"]
    call: list[str] = []
    for i, type_ in enumerate(types):
        memref = _flat_memref(type_)
        base = f"memref<{type_.dtype}>"
        lines += [
            f"%m{i} = stream.binding.subspan %b{i}[%c0] : !stream.binding -> {memref}",
            f"%p{i}, %o{i}, %n{i}, %t{i} = iree_codegen.extract_strided_metadata %m{i}"
            f" : {memref} -> {base}, index, index, index",
        ]
        call += [f"%p{i}", f"%o{i}"]
    operand = 0
    for i, scalar in enumerate(scalars):
        if isinstance(scalar, Value):
            call.append(f"%s{operand}")
            operand += 1
        else:
            lines.append(f"%k{i} = arith.constant {scalar} : index")
            call.append(f"%k{i}")
    lines += [
        "%id = stream.dispatch.workgroup.id[0] : index",
        "%count = stream.dispatch.workgroup.count[0] : index",
    ]
    call += ["%id", "%count"]
    parts = [f"memref<{t.dtype}>, index" for t in types] + ["index"] * (len(scalars) + 2)
    signature = f"({', '.join(parts)}) -> ()"
    lines += [f"func.call @{kernel}({', '.join(call)}) : {signature}", "return"]
    text = "".join(f"      {line}\n" for line in lines)
    return (
        f"    func.func private @{kernel}({', '.join(parts)})"
        f" attributes {{llvm.bareptr = true}}\n"
        f"    func.func @RUN({', '.join(arguments)}) {{\n{text}    }}\n"
    )


def _flat_memref(type_: TensorType) -> str:
    """Kernels compute addresses themselves: the extent only has to be right where it is known."""
    elements = 1
    for extent in type_.shape:
        elements *= extent or 1  # a dynamic extent: generated code never indexes the binding
    return f"memref<{elements}x{type_.dtype}>"

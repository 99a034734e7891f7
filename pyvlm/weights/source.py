"""Where tensors come from: one row-wise view of safetensors and GGUF checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyvlm.emit.quantize import OVERFLOW
from pyvlm.errors import PyvlmError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`dtype` is the stored type under its file format's own name, for messages."""

    shape: tuple[int, ...]
    dtype: str


class TensorSource(Protocol):
    """Tensors under Hugging Face names. Reading is lazy: a row range at a time."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop) of the tensor seen as [shape[0], -1], as float16 or float32."""
        ...

    def label(self, name: str) -> str:
        """The name as the user finds it in the file."""
        ...

    def digest(self) -> str:
        """SHA-256 of the files' content."""
        ...

    def identity(self) -> tuple[tuple[str, int, int], ...]:
        """(path, size, mtime in ns) of each file: cheap, and changed by any rewrite."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of the checkpoint that fills some rows of a parameter."""

    name: str
    shape: tuple[int, ...]


def check_tensors(
    source: TensorSource, wanted: Iterable[Piece], ignored: frozenset[str] = frozenset()
) -> None:
    """Every wanted tensor there with its shape, and none left over."""
    pieces = {piece.name: piece for piece in wanted}
    missing = [name for name in pieces if name not in source.tensors]
    if missing:
        raise PyvlmError(f"missing tensors: {_some(source, missing)}", code="missing_tensor")
    for name, piece in pieces.items():
        shape = source.tensors[name].shape
        if shape != piece.shape:
            raise PyvlmError(
                f"tensor {source.label(name)} has shape {list(shape)}, "
                f"the configuration asks for {list(piece.shape)}",
                code="model_invalid",
            )
    unexpected = [n for n in source.tensors if n not in pieces and n not in ignored]
    if unexpected:
        raise PyvlmError(f"unexpected tensors: {_some(source, unexpected)}", code="model_invalid")


def _some(source: TensorSource, names: list[str], limit: int = 6) -> str:
    shown = ", ".join(source.label(name) for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def to_dtype(values: Array, dtype: str, label: str) -> Array:
    """float16 or float32 `values` as `dtype` ("f16" or "f32"), refusing what does not fit."""
    if values.dtype == np.float16:
        bits = values.view(np.uint16) & np.uint16(0x7C00)
        if (bits == 0x7C00).any():
            raise _non_finite(label)
        return values if dtype == "f16" else values.astype(np.float32)
    if not values.size:
        return values.astype(np.float16 if dtype == "f16" else np.float32)
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise _non_finite(label)
    if dtype == "f32":
        return values
    extreme = low if -low > high else high
    if abs(extreme) >= _F16_OVERFLOW:
        raise PyvlmError(
            f"tensor {label} holds {float(extreme):g}, beyond the range of f16; use --dtype f32",
            code="model_invalid",
            param="dtype",
        )
    return values.astype(np.float16)


def to_quantizable(values: Array, label: str) -> Array:
    """`values` as float32, refusing what int8 with f16 scales cannot hold."""
    wide = to_dtype(values, "f32", label)
    extreme = max(wide.max(initial=0.0), -wide.min(initial=0.0))
    if extreme >= OVERFLOW:
        raise PyvlmError(
            f"tensor {label} holds a magnitude of {float(extreme):g}, beyond the range of int8 "
            "weights; use --quantize none --dtype f32",
            code="model_invalid",
            param="quantize",
        )
    return wide


_F16_OVERFLOW = 65520.0  # the smallest magnitude that rounds to infinity


def _non_finite(label: str) -> PyvlmError:
    return PyvlmError(f"tensor {label} holds NaN or infinity", code="model_invalid")

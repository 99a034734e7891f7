"""Checkpoint tensors -> packed parameters -> archive, a block of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from pyvlm.emit.layout import NUMPY_DTYPES, PANEL, Lowering, Param, pack, parameters, position_table
from pyvlm.emit.rope import rope_table
from pyvlm.errors import PyvlmError
from pyvlm.models.config import ModelConfig
from pyvlm.models.registry import WeightPlan, weight_plan
from pyvlm.weights.archive import ArchiveInfo, ArchiveWriter
from pyvlm.weights.source import Array, Piece, TensorSource, check_tensors, to_dtype, to_quantizable

BLOCK_BYTES = 8 << 20  # of float32 rows held at once

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def check_checkpoint(config: ModelConfig, source: TensorSource) -> WeightPlan:
    """Names, shapes and a stored copy of a tied head; reads no other values."""
    plan = weight_plan(config, source.tensors)
    pieces = [piece for pieces in plan.sources.values() for piece in pieces]
    check_tensors(source, pieces, plan.ignored)
    if plan.tied_copy is not None:
        _check_tied(source, *plan.tied_copy)
    return plan


def parameter_bytes(config: ModelConfig, lowering: Lowering, capacity: int) -> dict[str, int]:
    """Stored size of each parameter, in archive order."""
    return {
        name: math.prod(param.shape) * np.dtype(NUMPY_DTYPES[param.dtype]).itemsize
        for name, param in parameters(config, lowering, capacity).items()
    }


def write_parameters(
    path: Path,
    config: ModelConfig,
    source: TensorSource,
    *,
    lowering: Lowering,
    capacity: int,
    progress: Progress | None = None,
) -> ArchiveInfo:
    """Writes the whole archive. Holds a few blocks of rows beside the mapped checkpoint."""
    plan = check_checkpoint(config, source)
    sizes = parameter_bytes(config, lowering, capacity)
    total, done = sum(sizes.values()), 0
    with ArchiveWriter(path, sizes) as writer:
        for name, param in parameters(config, lowering, capacity).items():
            writer.add(name, _blocks(config, source, plan, param))
            done += sizes[name]
            if progress is not None:
                progress(done, total)
    return writer.info


def _blocks(
    config: ModelConfig, source: TensorSource, plan: WeightPlan, param: Param
) -> Iterator[Array]:
    if param.name == "rope":
        rope = rope_table(config.decoder.rope, config.decoder.head_dim, param.logical[0])
        return iter((pack(param, rope),))
    if param.name == "vision.position_table":
        return iter((pack(param, position_table(param.logical[1])),))
    pieces = plan.sources[param.matrix]
    if len(param.logical) == 1:
        values = _read(source, pieces, 0, param.logical[0], param)
        return iter((pack(param, values.reshape(-1)),))
    return _packed_rows(source, pieces, param)


def _packed_rows(source: TensorSource, pieces: tuple[Piece, ...], param: Param) -> Iterator[Array]:
    """Panels are independent of each other, so a block of whole panels packs by itself."""
    rows, columns = param.logical
    step = max(1, BLOCK_BYTES // (4 * columns * PANEL)) * PANEL
    if not param.is_gate_up:
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            part = _read(source, pieces, start, stop, param)
            yield pack(replace(param, logical=part.shape), part)
        return
    half, step = rows // 2, step // 2
    for start in range(0, half, step):
        stop = min(start + step, half)
        spans = ((start, stop), (half + start, half + stop))
        part = np.concatenate([_read(source, pieces, *span, param) for span in spans])
        yield pack(replace(param, logical=part.shape), part)


def _read(
    source: TensorSource, pieces: tuple[Piece, ...], start: int, stop: int, param: Param
) -> Array:
    """Rows [start, stop) of the pieces laid one after the other, in the type that `pack` takes."""
    parts, offset = [], 0
    for piece in pieces:
        low, high = max(start - offset, 0), min(stop - offset, piece.shape[0])
        if low < high:
            values = source.rows(piece.name, low, high)
            label = source.label(piece.name)
            if param.is_quantized:
                parts.append(to_quantizable(values, label))
            else:
                parts.append(to_dtype(values, param.dtype, label))
        offset += piece.shape[0]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _check_tied(source: TensorSource, head: str, embed: str) -> None:
    if source.tensors[head] == source.tensors[embed]:
        rows, step = source.tensors[embed].shape[0], 4096
        ranges = [(start, min(start + step, rows)) for start in range(0, rows, step)]
        if all(np.array_equal(source.rows(head, *r), source.rows(embed, *r)) for r in ranges):
            return
    raise PyvlmError(
        f"tie_word_embeddings is true, but {source.label(head)} and {source.label(embed)} differ",
        code="model_invalid",
    )

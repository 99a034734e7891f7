"""One compiled model called function by function: no engine, no sampling, exact positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyvlm.build import BuildOptions, prepare_bundle, resolve_model
from pyvlm.runtime import open_program
from tools.checkpoints.shapes import SHAPES
from tools.make_checkpoint import make_checkpoint

Array = npt.NDArray[Any]


def find_checkpoint(model: str, folder: Path) -> Path:
    """A path, `tiny`, or the name of a shape of `tools.checkpoints`, made in `folder` once."""
    if model not in SHAPES:
        return resolve_model(model)
    path = folder / model
    if not (path / "config.json").exists():
        make_checkpoint(path, SHAPES[model])
    return path


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros at a multiple of 64 bytes, as a device takes them in place."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(dtype).reshape(shape)


class BenchModel:
    """The cache is filled with noise of the size of real keys, so that no position is special."""

    def __init__(self, checkpoint: Path, *, num_threads: int = 0, **options: Any) -> None:
        self.bundle = prepare_bundle(checkpoint, BuildOptions(**options))
        self.manifest = self.bundle.manifest
        self.program = open_program(self.bundle, num_threads)
        model, kv = self.manifest.model, self.manifest.kv
        self.vocab_size, self.hidden_size = model.vocab_size, model.hidden_size
        shape = (model.num_layers, kv.num_slots, model.num_kv_heads, kv.capacity, model.head_dim)
        rng = np.random.default_rng(0)
        self.cache = [aligned(shape, np.float16 if kv.dtype == "f16" else np.float32) for _ in "kv"]
        for buffer in self.cache:
            buffer[:] = rng.standard_normal(shape[2:], np.float32)[None, None]
        self._no_rows = aligned((1, self.hidden_size), np.float32)

    @property
    def num_threads(self) -> int:
        return self.program.device.num_threads

    @property
    def dtype(self) -> str:
        """Of the weight matrices."""
        model = self.manifest.model
        return model.dtype if model.quantize == "none" else model.quantize

    def decode(self, tokens: list[int], slots: list[int], positions: list[int]) -> Array:
        """Logits [B, V] of one token for each of B rows."""
        entry = min(
            (e for e in self.manifest.decode
             if e.batch >= len(tokens) and e.context > max(positions)),
            key=lambda e: (e.batch, e.context),
        )  # fmt: skip
        padded = [aligned((entry.batch,), np.int32) for _ in range(3)]
        for array, values in zip(padded, (tokens, slots, positions), strict=True):
            array[: len(values)] = values
        arguments: list[Array | int] = [*padded, len(tokens), *self.cache]
        results = self.program.invoke(entry.function, arguments, copy=False)
        logits: Array = results[0][: len(tokens)]
        return logits

    def prefill(self, tokens: Array, slot: int, start: int) -> Array:
        """Logits of the last of one chunk of positions."""
        entry = min(
            (e for e in self.manifest.prefill
             if e.chunk >= len(tokens) and e.context >= start + len(tokens)),
            key=lambda e: (e.chunk, e.context),
        )  # fmt: skip
        ids = aligned((entry.chunk,), np.int32)
        ids[: len(tokens)] = tokens
        rows = aligned((entry.chunk,), np.int32)
        rows[:] = -1
        arguments: list[Array | int] = [
            ids,
            rows,
            self._no_rows,
            slot,
            start,
            len(tokens),
            *self.cache,
        ]
        logits: Array = self.program.invoke(entry.function, arguments, copy=False)[0]
        last: Array = logits.reshape(-1, self.vocab_size)[-1]
        return last

    @property
    def max_chunk(self) -> int:
        return max(entry.chunk for entry in self.manifest.prefill)

    def tile(self, seed: int) -> tuple[Array, Array]:
        """Patches [P, K] and the rows and columns that are valid: all."""
        vision = self.manifest.vision
        assert vision is not None
        patches = aligned((vision.num_patches, vision.patch_dim), np.float32)
        patches[:] = np.random.default_rng(seed).uniform(-1, 1, patches.shape)
        valid = aligned((2,), np.int32)
        valid[:] = vision.grid
        return patches, valid

    def encode(self, patches: Array, valid: Array, rows: Array, tile: int) -> Array:
        """One tile through the tower: writes its part of `rows` [N * rows_per_tile, H]."""
        vision = self.manifest.vision
        assert vision is not None
        (hidden,) = self.program.invoke("vision_embed", [patches, valid], copy=False)
        for group in range(vision.num_block_groups):
            name = f"vision_blocks_{group}"
            (hidden,) = self.program.invoke(name, [hidden, valid], copy=False)
        (rows,) = self.program.invoke("vision_project", [hidden, rows, tile], copy=False)
        return rows

"""pyvlm's side of the comparison, function by function through `Program.invoke`.

Shows what the engine never gives out: hidden states of the tower and logits of every position. The
tokens of whole generations come from the engine itself, see `tools.parity.generation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyvlm.emit.layout import kv_shape
from pyvlm.models.config import ModelConfig, VisionConfig
from tools.parity.bundles import Built, InvokesFunctions
from tools.parity.prompts import Prompt

Array = NDArray[np.float32]

STALE = 8.0  # size of what earlier owners left in the cache: no result may depend on it


@dataclass(frozen=True, slots=True, eq=False)
class TowerStates:
    """As `reference.Tower`, without the state after the post norm, which is fused."""

    embed: Array
    blocks: tuple[Array, ...]
    rows: Array


def cut_patches(pixels: Array, patch: int) -> Array:
    """[tiles, 3, S, S] -> [tiles, P, 3 * patch * patch] in raster order."""
    tiles, channels, size, _ = pixels.shape
    n = size // patch
    cut = pixels[:, :, : n * patch, : n * patch].reshape(tiles, channels, n, patch, n, patch)
    cut = cut.transpose(0, 2, 4, 1, 3, 5)
    return np.ascontiguousarray(cut.reshape(tiles, n * n, -1))


def valid_sizes(valid: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[tiles, n, n] rectangles from the corner -> [tiles, 2] rows and columns."""
    sizes = np.stack([valid[:, :, 0].sum(axis=1), valid[:, 0, :].sum(axis=1)], axis=1)
    for mask, (rows, columns) in zip(valid, sizes, strict=True):
        if mask.sum() != rows * columns or not mask[:rows, :columns].all():
            raise ValueError("the real patches of a tile are no rectangle from its corner")
    return sizes.astype(np.int32)


class Subject:
    """One compiled program."""

    def __init__(self, built: Built, program: InvokesFunctions) -> None:
        self.built, self.program = built, program
        self.config: ModelConfig = built.config

    def tower(self, pixels: Array, valid: NDArray[np.bool_]) -> TowerStates:
        return self.tower_of_patches(
            cut_patches(pixels, self._vision().patch_size), valid_sizes(valid)
        )

    def tower_of_patches(self, patches: Array, sizes: NDArray[np.int32]) -> TowerStates:
        """[tiles, P, 3 * patch * patch], and the real rows and columns of each tile."""
        states = [self._tile(p, s) for p, s in zip(patches, sizes, strict=True)]
        rows_per_tile = self._vision().rows_per_tile
        rows = np.zeros((len(states) * rows_per_tile, self.config.decoder.hidden_size), np.float32)
        for tile, hidden in enumerate(states):
            (rows,) = self.program.invoke("vision_project", [hidden[-1], rows, tile])
        stacked = [np.stack(layer) for layer in zip(*states, strict=True)]
        return TowerStates(stacked[0], tuple(stacked[1:]), rows)

    def _tile(self, patches: Array, size: NDArray[np.int32]) -> list[Array]:
        """Hidden states of one tile: after the embedding, then after each group of blocks."""
        (hidden,) = self.program.invoke("vision_embed", [patches, size])
        states = [hidden]
        for group in range(self.built.num_block_groups):
            (hidden,) = self.program.invoke(f"vision_blocks_{group}", [hidden, size])
            states.append(hidden)
        return states

    def rows(self, prompt: Prompt) -> Array:
        """[rows, H] of all pictures of a prompt; one unused row if it has none."""
        if prompt.pixels is None or prompt.valid is None:
            return np.zeros((1, self.config.decoder.hidden_size), np.float32)
        return self.tower(prompt.pixels, prompt.valid).rows

    def _vision(self) -> VisionConfig:
        assert self.config.vision is not None
        return self.config.vision


class Cache:
    """The K and V of one program, full of stale values, and the calls that change it."""

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        self._subject, self._built = subject, subject.built
        options = subject.built.options
        shape = kv_shape(subject.config.decoder, options.num_slots, options.capacity)
        dtype = np.float16 if options.kv_dtype == "f16" else np.float32
        random = np.random.default_rng(seed)
        self.k, self.v = (
            (STALE * random.standard_normal(shape, np.float32)).astype(dtype) for _ in range(2)
        )

    def prefill(
        self,
        slot: int,
        start: int,
        ids: NDArray[np.int32],
        row_index: NDArray[np.int32],
        rows: Array,
    ) -> Array:
        """Logits [count, V] of one chunk at cache positions start.."""
        count = len(ids)
        entry = next(
            e for e in self._built.prefill if e.size >= count and e.context >= start + count
        )
        tokens, index = np.zeros(entry.size, np.int32), np.full(entry.size, -1, np.int32)
        tokens[:count], index[:count] = ids, row_index
        arguments = [tokens, index, rows, slot, start, count, self.k, self.v]
        logits, self.k, self.v = self._subject.program.invoke(entry.function, arguments)
        return logits[:count]

    def decode(
        self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]
    ) -> Array:
        """Logits [rows, V] of one step; the rest of the batch is padding."""
        count, furthest = len(tokens), max(positions) + 1
        entry = next(e for e in self._built.decode if e.size >= count and e.context >= furthest)
        columns = [_padded(values, entry.size) for values in (tokens, slots, positions)]
        arguments = [*columns, count, self.k, self.v]
        logits, self.k, self.v = self._subject.program.invoke(entry.function, arguments)
        return logits[:count]


def _padded(values: Sequence[int], size: int) -> NDArray[np.int32]:
    """Padding rows repeat row 0, as the runner does it."""
    return np.array([*values, *[values[0]] * (size - len(values))], np.int32)


def row_index(ids: NDArray[np.int32], image_token_id: int | None) -> NDArray[np.int32]:
    """Position -> row of the encoder, -1 where the id itself is embedded."""
    index = np.full(len(ids), -1, np.int32)
    if image_token_id is not None:
        taken = ids == image_token_id
        index[taken] = np.arange(taken.sum())
    return index


def teacher_forced(
    subject: Subject,
    prompt: Prompt,
    chunks: Sequence[int],
    *,
    slot: int = 0,
    seed: int = 0,
    rows: Array | None = None,
) -> Array:
    """Logits [T, V] of every position, prefilled in the given chunks. `rows` are the prompt's, if
    they are known already."""
    if sum(chunks) != len(prompt.ids):
        raise ValueError(f"chunks of {sum(chunks)} for {len(prompt.ids)} positions")
    cache = Cache(subject, seed)
    rows = subject.rows(prompt) if rows is None else rows
    index = row_index(prompt.ids, subject.config.image_token_id)
    return np.concatenate(_prefill(cache, slot, prompt, chunks, rows, index))


def _prefill(
    cache: Cache,
    slot: int,
    prompt: Prompt,
    chunks: Sequence[int],
    rows: Array,
    index: NDArray[np.int32],
) -> list[Array]:
    parts, start = [], 0
    for count in chunks:
        span = slice(start, start + count)
        parts.append(cache.prefill(slot, start, prompt.ids[span], index[span], rows))
        start += count
    return parts


def decoded_in_batch(
    subject: Subject, prompts: Sequence[Prompt], prefix: Sequence[int], *, seed: int = 0
) -> list[Array]:
    """Logits of every position of several sequences in one cache: `prefix` positions of each are
    prefilled, the rest goes through decode steps, together while there are any (ragged)."""
    cache, largest = Cache(subject, seed), max(e.size for e in subject.built.prefill)
    parts: list[list[Array]] = []
    for slot, (prompt, count) in enumerate(zip(prompts, prefix, strict=True)):
        index, rows = row_index(prompt.ids, subject.config.image_token_id), subject.rows(prompt)
        if (index[count:] >= 0).any():
            raise ValueError("rows of pictures belong to the prefilled part")
        parts.append(_prefill(cache, slot, prompt, chunk_plan(count, largest), rows, index))
    for slots, positions in _steps([len(p.ids) for p in prompts], prefix):
        tokens = [int(prompts[s].ids[p]) for s, p in zip(slots, positions, strict=True)]
        logits = cache.decode(tokens, slots, positions)
        for slot, row in zip(slots, logits, strict=True):
            parts[slot].append(row[None])
    return [np.concatenate(p) for p in parts]


def _steps(lengths: Sequence[int], prefix: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """(slots, positions) of each decode step: every sequence advances until it ends."""
    positions = list(prefix)
    while rows := [s for s, p in enumerate(positions) if p < lengths[s]]:
        yield rows, [positions[s] for s in rows]
        for s in rows:
            positions[s] += 1


def chunk_plan(length: int, chunk: int, seed: int | None = None) -> list[int]:
    """Chunks of one size and a rest, or of random sizes up to `chunk` when seeded."""
    random, plan = np.random.default_rng(seed), []
    while (left := length - sum(plan)) > 0:
        size = chunk if seed is None else int(random.integers(1, chunk + 1))
        plan.append(min(size, left))
    return plan

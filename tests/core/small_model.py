"""A small random model as a real program in both lowerings, and engines over it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from aligned_arrays import aligned

from pyvlm import _core
from pyvlm.compile import CompileOptions, compile_module
from pyvlm.emit.layout import pack, parameters
from pyvlm.emit.program import Program, emit
from pyvlm.weights.archive import ArchiveWriter
from tests.reference.model_cases import TIED

IMAGE_ID = 129  # the last id of the vocabulary
NUM_ROWS = TIED.config.vision.rows_per_tile
HIDDEN = TIED.config.decoder.hidden_size


def spec_of(program: Program) -> object:
    d, v = TIED.config.decoder, TIED.config.vision
    vision = _core.VisionSpec(
        num_patches=v.num_patches,
        grid=v.grid,
        patch_dim=v.patch_dim,
        hidden_size=v.hidden_size,
        rows_per_tile=v.rows_per_tile,
        num_block_groups=program.num_block_groups,
    )
    return _core.ModelSpec(
        hidden_size=d.hidden_size,
        vocab_size=d.vocab_size,
        num_layers=d.num_layers,
        num_heads=d.num_heads,
        num_kv_heads=d.num_kv_heads,
        head_dim=d.head_dim,
        num_slots=TIED.num_slots,
        capacity=TIED.capacity,
        prefill=[_core.EntryPoint(e.function, e.size, e.context) for e in program.prefill],
        decode=[_core.EntryPoint(e.function, e.size, e.context) for e in program.decode],
        vision=vision,
    )


class SmallModel:
    """A program of the reference model with its spec, and its own greedy decoding by Invoke."""

    def __init__(self, lowering: str, folder: Path) -> None:
        self.lowering = lowering
        program = emit(TIED.config, TIED.options(lowering))
        params = parameters(TIED.config, lowering, TIED.capacity)
        packed = {name: pack(param, TIED.weights[name]) for name, param in params.items()}
        sizes = {name: array.nbytes for name, array in packed.items()}
        with ArchiveWriter(folder / "weights.irpa", sizes) as writer:
            for name, array in packed.items():
                writer.add(name, [array])
        (folder / "model.vmfb").write_bytes(
            compile_module(program.mlir, CompileOptions(lowering=lowering))
        )
        self.paths = (str(folder / "model.vmfb"), str(folder / "weights.irpa"))
        self.num_groups = program.num_block_groups
        self.spec = spec_of(program)
        self.program = _core.Program(_core.Device(num_threads=2), *self.paths, self.spec)

    def engine(self, runner: object | None = None) -> object:
        options = _core.EngineOptions(check_invariants=True)
        return _core.Engine(runner or self.program, options)

    def encode(self, patches: np.ndarray, valid: np.ndarray) -> np.ndarray:
        rows = aligned((len(patches) * NUM_ROWS, HIDDEN))
        for tile in range(len(patches)):
            (hidden,) = self.program.invoke("vision_embed", [patches[tile], valid[tile]])
            for group in range(self.num_groups):
                name = f"vision_blocks_{group}"
                (hidden,) = self.program.invoke(name, [hidden, valid[tile]])
            (rows,) = self.program.invoke("vision_project", [hidden, rows, tile])
        return np.array(rows)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """After a text, by single-token prefills."""
        d = TIED.config.decoder
        shape = (d.num_layers, TIED.num_slots, d.num_kv_heads, TIED.capacity, d.head_dim)
        k, v = np.zeros(shape, "float16"), np.zeros(shape, "float16")
        rows, index = np.zeros((1, HIDDEN), "float32"), np.full(TIED.chunk, -1, "int32")
        for position, token in enumerate(tokens):
            ids = np.full(TIED.chunk, token, "int32")
            arguments = [ids, index, rows, 3, position, 1, k, v]
            logits, k, v = self.program.invoke("prefill_16", arguments)
        return np.array(logits).reshape(-1, d.vocab_size)[0]

    def greedy(self, tokens: list[int], rows: np.ndarray | None, num_tokens: int) -> list[int]:
        """By single-token prefills in slot 3, without chunks or a decode function."""
        d = TIED.config.decoder
        shape = (d.num_layers, TIED.num_slots, d.num_kv_heads, TIED.capacity, d.head_dim)
        k, v = np.zeros(shape, "float16"), np.zeros(shape, "float16")
        given = rows if rows is not None else np.zeros((1, HIDDEN), "float32")
        row, generated, position = 0, [], 0
        for token in tokens:
            index = np.full(TIED.chunk, -1, "int32")
            if token == IMAGE_ID:
                index[0], row = row, row + 1
            ids = np.full(TIED.chunk, 0 if token == IMAGE_ID else token, "int32")
            arguments = [ids, index, given, 3, position, 1, k, v]
            logits, k, v = self.program.invoke("prefill_16", arguments)
            position += 1
        for _ in range(num_tokens):
            generated.append(int(logits.argmax()))
            ids = np.full(TIED.chunk, generated[-1], "int32")
            index = np.full(TIED.chunk, -1, "int32")
            arguments = [ids, index, given, 3, position, 1, k, v]
            logits, k, v = self.program.invoke("prefill_16", arguments)
            position += 1
        return generated


def prepare(
    text: list[int], images=(), num_tokens: int = 6, sampling: object | None = None
) -> object:
    logical, segments = list(text), [_core.Segment.text(0, len(text))]
    for index, (_, num_rows) in enumerate(images):
        logical.append(IMAGE_ID)
        segments.append(_core.Segment.image(index, [3, *[IMAGE_ID] * num_rows, 4]))
    return _core.PreparedPrefill(
        logical_ids=np.array(logical, "int32"),
        segments=segments,
        images=[image for image, _ in images],
        image_token_id=IMAGE_ID,
        sampling=sampling or _core.SamplingParams(),
        max_new_tokens=num_tokens,
        stop_token_ids=[],
    )


def run(engine: object, *prepared: object) -> list[list[int]]:
    ids = [engine.submit(p) for p in prepared]
    tokens: dict[int, list[int]] = {seq_id: [] for seq_id in ids}
    reasons: dict[int, object] = {}
    deadline = time.monotonic() + 60
    while len(reasons) < len(ids):
        assert time.monotonic() < deadline
        for output in engine.wait_outputs(1.0):
            tokens[output.seq_id] += output.token_ids
            if output.finish_reason is not None:
                reasons[output.seq_id] = output.finish_reason, output.error_message
    assert [reasons[seq_id][0] for seq_id in ids] == ["length"] * len(ids), reasons
    return [tokens[seq_id] for seq_id in ids]


def pixels(num_tiles: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    v = TIED.config.vision
    shape = (num_tiles, v.num_patches, v.patch_dim)
    patches = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    valid = np.full((num_tiles, 2), v.grid, "int32")
    valid[-1] = (v.grid - 2, v.grid)
    return patches, valid


def unaligned(array: np.ndarray) -> np.ndarray:
    copy = aligned(array.shape, str(array.dtype), offset=array.itemsize)
    copy[...] = array
    return copy


def readable(model: SmallModel, array: np.ndarray) -> np.ndarray:
    """A copy at the worst address where the lowering can still read it."""
    if model.lowering == "kernels":
        return unaligned(array)
    copy = aligned(array.shape, str(array.dtype))
    copy[...] = array
    return copy

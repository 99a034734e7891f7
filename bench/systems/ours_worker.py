"""One measurement of pyvlm in a process of its own; prints one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.rows import BATCHES, DECODED, POSITION, PREFILLS
from bench.systems.base import pss_mib
from pyvlm import _core
from pyvlm.build import BuildOptions, compile_bundle, prepare_bundle
from pyvlm.runtime import open_program

SLOTS, CAPACITY = 8, 1024
REPEATS = 3
TILES = 5
NO_LIMIT_MS = 1e6  # all prompts before the first decode step, so that rows start together
Values = dict[str, float]


class Worker:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rng = np.random.default_rng(0)

    def build(self, num_slots: int = SLOTS, capacity: int = CAPACITY) -> BuildOptions:
        return BuildOptions(
            dtype=self.args.dtype,
            quantize=self.args.quantize,
            max_model_len=capacity,
            max_num_seqs=num_slots,
        )

    def engine(self, num_slots: int = SLOTS, capacity: int = CAPACITY) -> _core.Engine:
        self.bundle = prepare_bundle(self.args.checkpoint, self.build(num_slots, capacity))
        program = open_program(self.bundle, self.args.threads)
        return _core.Engine(program, _core.EngineOptions(step_budget_ms=NO_LIMIT_MS))

    def text(self, num_ids: int, num_tokens: int) -> _core.PreparedPrefill:
        ids = self.rng.integers(10, self.bundle.manifest.model.vocab_size // 2, num_ids)
        return _core.PreparedPrefill(
            logical_ids=ids.astype(np.int32),
            segments=[_core.Segment.text(0, num_ids)],
            images=[],
            sampling=_core.SamplingParams(),
            max_new_tokens=num_tokens,
            stop_token_ids=[],
        )

    def images(self, count: int) -> _core.PreparedPrefill:
        """Pictures of one tile of new noise each, one text id after them."""
        vision = self.bundle.manifest.vision
        assert vision is not None
        shape = (1, vision.num_patches, vision.patch_dim)
        valid = np.full((1, 2), vision.grid, np.int32)
        pictures = [self.rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(count)]
        image_id = self.bundle.manifest.model.vocab_size - 1
        rows = [image_id] * vision.rows_per_tile
        return _core.PreparedPrefill(
            logical_ids=[image_id] * count + [10],
            segments=[
                *(_core.Segment.image(index, rows) for index in range(count)),
                _core.Segment.text(count, 1),
            ],
            images=[_core.ImageInput.pixels(patches, valid) for patches in pictures],
            image_token_id=image_id,
            sampling=_core.SamplingParams(),
            max_new_tokens=1,
            stop_token_ids=[],
        )

    def prepare(self) -> Values:
        prepare_bundle(self.args.checkpoint, self.build(capacity=self.args.capacity))
        return {}

    def imports(self) -> Values:
        return {"memory_imports": pss_mib_here()}

    def load(self) -> Values:
        begin = time.perf_counter()
        with self.engine() as engine:
            engine.stats()
            return {"load": time.perf_counter() - begin}

    def compile(self) -> Values:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            compile_bundle(self.args.checkpoint, Path(folder) / "bundle", self.build())
            return {"compile": time.perf_counter() - begin}

    def decode(self) -> Values:
        with self.engine() as engine:
            finish(engine, [self.text(32, 8)])
            return {
                f"decode_b{batch}": decode_rate(
                    finish(engine, [self.text(POSITION, DECODED) for _ in range(batch)])
                )
                for batch in BATCHES
            }

    def prefill(self) -> Values:
        with self.engine(capacity=2048) as engine:
            finish(engine, [self.text(PREFILLS[0], 1)])
            values = {}
            for length in PREFILLS:
                times = [
                    finish(engine, [self.text(length, 1)])[0].prefill_us for _ in range(REPEATS)
                ]
                values[f"prefill_{length}"] = length / statistics.median(times) * 1e6
            return values

    def image_tile(self) -> Values:
        with self.engine() as engine:
            finish(engine, [self.images(1)])
            times = [finish(engine, [self.images(1)])[0].encode_us for _ in range(TILES)]
            return {"image_tile": statistics.median(times) / 1e3}

    def memory_text(self) -> Values:
        with self.engine() as engine:
            finish(engine, [self.text(POSITION, 8) for _ in range(SLOTS)])
        return {}

    def memory_image(self) -> Values:
        with self.engine(num_slots=4) as engine:
            finish(engine, [self.images(1)])
        return {}


def finish(engine: _core.Engine, prompts: list[_core.PreparedPrefill]) -> list[_core.TokenOutput]:
    """The last output of each, in order; each must have made all its tokens."""
    ids = [engine.submit(prompt) for prompt in prompts]
    last: dict[int, _core.TokenOutput] = {}
    while len(last) < len(ids):
        for output in engine.wait_outputs(60.0):
            if output.finish_reason is not None:
                assert output.finish_reason == "length", output.error_message
                last[output.seq_id] = output
    return [last[seq_id] for seq_id in ids]


def decode_rate(outputs: list[_core.TokenOutput]) -> float:
    """Rows decode together from when the last has its first token: its time is the batch's."""
    tokens = outputs[-1].num_generated - 1
    return len(outputs) * tokens / min(output.decode_us for output in outputs) * 1e6


def pss_mib_here() -> float:
    return pss_mib(os.getpid())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="of prepare")
    args = parser.parse_args()
    name = {"image": "image_tile"}.get(args.section, args.section)
    measure: Callable[[], Values] = getattr(Worker(args), name)
    print(json.dumps(measure()))


if __name__ == "__main__":
    main()

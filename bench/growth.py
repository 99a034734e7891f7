"""How cost grows: with positions, batch, pictures, waiting requests and layers.

python -m bench.growth --output DIR [--shape NAME] [--curves NAMES] [--threads N]

Writes growth.json, growth.md and, with matplotlib, growth.png. Each point is the median of its
repeats after a warm-up; `exponent` is the slope of the last half of a curve on two logarithmic
axes: 0 does not grow, 1 is linear, 2 is quadratic.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.model import BenchModel, find_checkpoint
from bench.quiet import CpuTimes, share_since
from bench.systems.ours_worker import Worker, finish
from bench.waiting import WaitingBench
from tools.checkpoints.shapes import SHAPES
from tools.make_checkpoint import make_checkpoint

POSITIONS = (0, 64, 128, 256, 512, 1024, 1536, 2032)
CHUNK_STARTS = (0, 256, 512, 1024, 1536, 1792)
PROMPTS = (16, 64, 128, 256, 512, 1024, 2000)
IMAGES = (1, 2, 4, 8)
WAITING = (0, 10, 100, 1000, 10_000)
LAYERS = (5, 10, 20, 30)
CAPACITY, SLOTS = 2048, 8
REPEATS = 9


@dataclass
class Curve:
    title: str
    x: str
    y: str
    points: list[tuple[float, float]] = field(default_factory=list)
    foreign_percent: float = 0.0

    @property
    def exponent(self) -> float | None:
        """None where fewer than two points of the last half are above 0."""
        half = [point for point in self.points[len(self.points) // 2 - 1 :] if min(point) > 0]
        if len(half) < 2:
            return None
        logs = np.log(np.array(half))
        return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def median_ms(call: Callable[[], object], repeats: int = REPEATS) -> float:
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


class Growth:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.checkpoint = find_checkpoint(args.shape, args.folder)
        self._model: BenchModel | None = None

    @property
    def model(self) -> BenchModel:
        if self._model is None:
            self._model = self.load(self.checkpoint)
        return self._model

    def load(self, checkpoint: Path) -> BenchModel:
        return BenchModel(
            checkpoint, num_threads=self.args.threads, max_model_len=CAPACITY, max_num_seqs=SLOTS
        )

    def positions(self) -> Iterator[Curve]:
        for batch in (1, SLOTS):
            curve = Curve(f"decode step, batch {batch}", "position", "ms")
            for position in POSITIONS:
                rows = [[5] * batch, list(range(batch)), [position] * batch]
                curve.points.append((position, median_ms(partial(self.model.decode, *rows))))
            yield curve

    def chunks(self) -> Iterator[Curve]:
        tokens = np.arange(10, 10 + self.model.max_chunk, dtype=np.int32)
        curve = Curve(f"prefill chunk of {len(tokens)}", "start position", "ms")
        for start in CHUNK_STARTS:
            call = partial(self.model.prefill, tokens, 0, start)
            curve.points.append((start, median_ms(call, 3)))
        yield curve

    def prompts(self) -> Iterator[Curve]:
        worker = self._worker()
        curve = Curve("prefill of a whole prompt", "tokens", "ms")
        with worker.engine(capacity=CAPACITY) as engine:
            finish(engine, [worker.text(16, 1)])
            for length in PROMPTS:
                times = [finish(engine, [worker.text(length, 1)])[0].prefill_us for _ in range(3)]
                curve.points.append((length, statistics.median(times) / 1e3))
        yield curve

    def batch(self) -> Iterator[Curve]:
        curve = Curve("decode step at position 512", "rows", "ms")
        for batch in range(1, SLOTS + 1):
            rows = [[5] * batch, list(range(batch)), [512] * batch]
            curve.points.append((batch, median_ms(partial(self.model.decode, *rows))))
        yield curve

    def images(self) -> Iterator[Curve]:
        worker = self._worker()
        curve = Curve("encoding the pictures of one prompt, one tile each", "pictures", "ms")
        with worker.engine(capacity=CAPACITY) as engine:
            finish(engine, [worker.images(1)])
            for count in IMAGES:
                output = finish(engine, [worker.images(count)])[0]
                curve.points.append((count, output.encode_us / 1e3))
        yield curve

    def waiting(self) -> Iterator[Curve]:
        bench = WaitingBench()
        step = Curve("engine step of 8 rows without a model", "waiting requests", "us")
        submit = Curve("submitting a request", "waiting requests", "us")
        for count in WAITING:
            step_us, submit_us = bench.measure(count)
            step.points.append((count, step_us))
            if count:
                submit.points.append((count, submit_us))
        yield step
        yield submit

    def layers(self) -> Iterator[Curve]:
        decode = Curve("decode step, batch 1, position 512", "layers", "ms")
        prefill = Curve("prefill of 256", "layers", "ms")
        for count in LAYERS:
            shape = SHAPES[self.args.shape]
            shape = replace(shape, text=replace(shape.text, layers=count), vision=None)
            path = self.args.folder / f"{self.args.shape}-{count}-layers"
            if not (path / "config.json").exists():
                make_checkpoint(path, shape)
            model = self.load(path)
            tokens = np.arange(10, 266, dtype=np.int32)[: model.max_chunk]
            decode.points.append((count, median_ms(partial(model.decode, [5], [0], [512]))))
            prefill.points.append((count, median_ms(partial(model.prefill, tokens, 0, 0), 3)))
        yield decode
        yield prefill

    def _worker(self) -> Worker:
        return Worker(
            argparse.Namespace(
                checkpoint=self.checkpoint, threads=self.args.threads, dtype="f16", capacity=None
            )
        )


CURVES = ("positions", "chunks", "prompts", "batch", "images", "waiting", "layers")


def main() -> int:
    args = _arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    growth, curves = Growth(args), list[Curve]()
    for name in args.curves:
        before = CpuTimes.now()
        made = list(getattr(growth, name)())
        for curve in made:
            curve.foreign_percent = share_since(before).foreign
        curves += made
        _write(curves, args)
        sys.stderr.write(f"{name}: done\n")
    print(_markdown(curves))
    return 0


def _markdown(curves: list[Curve]) -> str:
    lines = ["| cost | by | exponent | points |", "|---|---|---|---|"]
    for curve in curves:
        exponent = "-" if curve.exponent is None else f"{curve.exponent:.2f}"
        points = ", ".join(f"{x:g}: {y:.4g} {curve.y}" for x, y in curve.points)
        lines.append(f"| {curve.title} | {curve.x} | {exponent} | {points} |")
    return "\n".join(lines) + "\n"


def _write(curves: list[Curve], args: argparse.Namespace) -> None:
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "shape": args.shape,
        "threads": args.threads,
        "curves": [asdict(curve) | {"exponent": curve.exponent} for curve in curves],
    }
    (args.output / "growth.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.output / "growth.md").write_text(_markdown(curves))
    if importlib.util.find_spec("matplotlib") is not None:
        _plot(curves, args.output / "growth.png")


def _plot(curves: list[Curve], path: Path) -> None:
    figure_type = importlib.import_module("matplotlib.figure").Figure
    columns = 3
    lines = math.ceil(len(curves) / columns)
    figure = figure_type(figsize=(4.6 * columns, 3.2 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis, curve in zip(axes, curves, strict=False):
        axis.plot(*zip(*curve.points, strict=True), marker="o")
        if curve.x == "waiting requests":
            axis.set_xscale("symlog")
        axis.set(title=curve.title, xlabel=curve.x, ylabel=curve.y, ylim=(0, None))
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=110)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="of the models")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smolvlm-256m")
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

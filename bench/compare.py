"""pyvlm and others on one checkpoint shape, in one run, in turns: A B A B.

python -m bench.compare --output DIR [--systems NAMES] [--sections NAMES] [--rounds N]
                        [--llama-cpp DIR] [--torch-python PYTHON]

Writes compare.json, compare.md and, with matplotlib, compare.png. Before each measurement it waits
until other processes leave the cores alone, and notes what they took during it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench import limits, tables
from bench.quiet import CpuTimes, share_since, wait_until_quiet
from bench.serve_section import measure_serve
from bench.systems.base import ChildError, Context, System
from bench.systems.llama_cpp import LlamaCpp
from bench.systems.ours import Ours
from bench.systems.torch_peer import TorchPeer
from tools.checkpoints.shapes import SHAPES, Shape
from tools.make_checkpoint import make_checkpoint

SECTIONS = ("decode", "prefill", "image", "memory", "load", "compile", "serve")
ONCE = ("memory", "compile")  # hardly varies, or takes long


def main() -> int:
    args = _arguments()
    context = _context(args)
    systems = [
        system for system in _systems(context)
        if any(fnmatch(system.name, pattern) for pattern in args.systems)
    ]  # fmt: skip
    for system in systems:
        _say(f"preparing {system.name}")
        system.prepare()
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": _machine(),
        "shape": args.shape,
        "threads": args.threads,
        "limits": None if args.no_limits else _limits(args, context),
        "records": [],
    }
    for section in args.sections:
        for turn in range(1 if section in ONCE else args.rounds):
            ordered = systems if turn % 2 == 0 else systems[::-1]
            for system in ordered:
                if section in system.sections:
                    result["records"] += _measure(system, section, turn, args, context)
                    _write(result, args.output)
    print(tables.markdown(result["records"]))
    return 0


def _measure(
    system: System, section: str, turn: int, args: argparse.Namespace, context: Context
) -> list[dict[str, Any]]:
    """The quietest of at most `--tries`; nothing if it fails, which is said."""
    best: dict[str, Any] | None = None
    for _ in range(args.tries):
        was_quiet = wait_until_quiet(args.max_foreign, args.quiet_timeout)
        before = CpuTimes.now()
        try:
            if section == "serve":
                values = measure_serve(system, context)
            else:
                values = system.measure(section)
        except ChildError as error:
            _say(f"{system.name}: {section}: {error}")
            return []
        share = share_since(before)
        record = {
            "system": system.name,
            "section": section,
            "round": turn,
            "values": values,
            "was_quiet": was_quiet,
            "foreign_percent": share.foreign,
            "steal_percent": share.steal,
            "seconds": share.seconds,
        }
        if best is None or share.foreign < best["foreign_percent"]:
            best = record
        if share.foreign <= args.max_foreign:
            break
    assert best is not None
    _say(f"{system.name}: {section}: {_short(best)}")
    return [best]


def _short(record: dict[str, Any]) -> str:
    values = ", ".join(f"{row} {tables.number(value)}" for row, value in record["values"].items())
    return f"{values} (others {record['foreign_percent']} %)"


def _systems(context: Context) -> list[System]:
    systems: list[System] = [Ours(context, "int8"), Ours(context, "f16"), Ours(context, "f32")]
    if context.llama_cpp is not None:
        systems += [LlamaCpp(context, "F16"), LlamaCpp(context, "Q8_0"), LlamaCpp(context, "Q4_0")]
    systems += [TorchPeer(context, "f32"), TorchPeer(context, "bf16")]
    return systems


def _context(args: argparse.Namespace) -> Context:
    args.output.mkdir(parents=True, exist_ok=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[args.shape]
    return Context(
        checkpoint=_checkpoint(args.folder / args.shape, shape),
        untiled=_checkpoint(args.folder / f"{args.shape}-untiled", _untiled(shape)),
        folder=args.folder,
        threads=args.threads,
        llama_cpp=args.llama_cpp,
        torch_python=args.torch_python,
    )


def _untiled(shape: Shape) -> Shape:
    assert shape.vision is not None
    vision = replace(shape.vision, splitting=False, longest_edge=shape.vision.image)
    return replace(shape, vision=vision)


def _checkpoint(path: Path, shape: Shape) -> Path:
    if not (path / "config.json").exists():
        _say(f"making {path.name}")
        make_checkpoint(path, shape)
    return path


def _limits(args: argparse.Namespace, context: Context) -> dict[str, Any]:
    wait_until_quiet(args.max_foreign, args.quiet_timeout)
    measured = limits.measure(args.threads)
    work = limits.Work.of(json.loads((context.checkpoint / "config.json").read_text()))
    return {**measured, "allowed": limits.table(measured, work)}


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(),
            "kernel": platform.release(), "python": platform.python_version()}  # fmt: skip


def _write(result: dict[str, Any], output: Path) -> None:
    """After each measurement: an interrupted run keeps what it has."""
    records = result["records"]
    (output / "compare.json").write_text(json.dumps(result, indent=1) + "\n")
    (output / "compare.md").write_text(tables.markdown(records))
    if importlib.util.find_spec("matplotlib") is not None:
        tables.write_plot(records, output / "compare.png")


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="of the models")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smolvlm-256m")
    parser.add_argument("--systems", nargs="+", default=["*"], metavar="PATTERN",
                        help="names, as 'pyvlm f16' 'llama.cpp *'")  # fmt: skip
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tries", type=int, default=2, help="of a measurement that was disturbed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="of build_llama_cpp.sh")
    parser.add_argument("--torch-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--max-foreign", type=float, default=5.0, metavar="PERCENT",
                        help="of one core, taken by other processes")  # fmt: skip
    parser.add_argument("--quiet-timeout", type=float, default=300.0, metavar="S")
    parser.add_argument("--no-limits", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Measures parity with transformers and prints the tables of docs/parity.md.

python -m tools.parity.run --all [--write]                  tiny and the reduced shapes
python -m tools.parity.run --model odd                      one of them
python -m tools.parity.run --shape smolvlm-256m [--write]   the full shape, one picture of 17 tiles
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from tools.parity import full_shape, report
from tools.parity.bundles import Variant
from tools.parity.lab import MATRIX, Lab
from tools.parity.tables import Tables, measure, measure_greedy


def chosen_cases(model: str | None) -> Iterator[tuple[str, Variant]]:
    for name, variants in MATRIX.items():
        if model in (None, name):
            yield from ((name, variant) for variant in variants)


def run(folder: Path, model: str | None) -> Tables:
    lab, tables = Lab(folder), Tables()
    for name, variant in chosen_cases(model):
        print(f"{name}, {variant}", flush=True)
        measure(lab, name, variant, tables)
        measure_greedy(lab, name, variant, tables)
    return tables


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="tiny and every reduced shape")
    what.add_argument("--model", choices=sorted(MATRIX))
    what.add_argument("--shape", choices=("smolvlm-256m",), help="the full shape")
    parser.add_argument(
        "--lowering", choices=("kernels", "codegen"), default="kernels", help="of the full shape"
    )
    parser.add_argument("--folder", type=Path, help="keep checkpoints and programs here")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/parity.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="pyvlm-parity-") as temporary:
        folder = chosen.folder or Path(temporary)
        if chosen.shape:
            section, tables = "full shape", full_shape.run(folder, chosen.lowering)
        else:
            section, tables = "all", run(folder, chosen.model)
    print(tables.as_text())
    if chosen.write:
        report.write_section(section, tables.as_text())
    return 1 if tables.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

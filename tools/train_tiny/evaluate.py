"""Accuracy per task on held-out questions, through transformers, greedy.

python -m tools.train_tiny.evaluate --model pyvlm/assets/tiny --per-task 400
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from tools.train_tiny.heldout import HELD_OUT_SEED, TASKS, Item, items


class Answerer:
    """A model directory that answers batches of items."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answer(self, batch: list[Item]) -> list[str]:
        """Greedy answers; all items must hold the same number of pictures."""
        texts = [
            self.processor.apply_chat_template(item.messages(), add_generation_prompt=True)
            for item in batch
        ]
        images = [item.images for item in batch] if batch[0].images else None
        inputs = self.processor(text=texts, images=images, padding=True, return_tensors="pt")
        output = self.model.generate(**inputs, max_new_tokens=12, do_sample=False)
        fresh = output[:, inputs["input_ids"].shape[1] :]
        return [t.strip() for t in self.processor.batch_decode(fresh, skip_special_tokens=True)]


def evaluate(answerer: Answerer, task: str, count: int, seed: int, show: int) -> float:
    """Share of answers that match exactly; prints some of the misses."""
    chosen = list(items(task, count, seed))
    misses: list[tuple[Item, str]] = []
    for start in range(0, count, 50):
        batch = chosen[start : start + 50]
        given = answerer.answer(batch)
        misses += [(i, g) for i, g in zip(batch, given, strict=True) if g != i.answer]
    for item, given in misses[:show]:
        print(f"    {item.question!r}: {given!r}, right {item.answer!r}")
    if show and misses:
        print("   ", Counter((item.answer, given) for item, given in misses).most_common(8))
    return 1 - len(misses) / count


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--per-task", type=int, default=400)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="misses to print per task")
    parser.add_argument("--tasks", nargs="*", default=[*TASKS, "layouts"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    answerer = Answerer(args.model)
    print("| task | questions | right |\n|---|---|---|", flush=True)
    for task in args.tasks:
        share = evaluate(answerer, task, args.per_task, args.seed, args.show)
        print(f"| {task} | {args.per_task} | {100 * share:.1f} % |", flush=True)


if __name__ == "__main__":
    main()

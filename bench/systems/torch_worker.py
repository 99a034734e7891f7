"""One measurement of transformers in a process of its own; prints one JSON object.

Needs torch and transformers, nothing of pyvlm: any interpreter that has them will do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from bench.rows import BATCHES, POSITION, PREFILLS

STEPS = 24
REPEATS = 3
TILES = 3
Values = dict[str, float]


class Worker:
    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(args.threads)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
        self.dtype = dtype
        self.model: Any = AutoModelForImageTextToText.from_pretrained(
            args.checkpoint, dtype=dtype
        ).eval()

    def prompt(self, batch: int, length: int) -> Any:
        vocab = self.model.config.text_config.vocab_size
        return torch.randint(10, vocab // 2, (batch, length))

    def forward(self, ids: Any, cache: Any = None) -> Any:
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def decode_rate(self, batch: int) -> float:
        out = self.forward(self.prompt(batch, POSITION))
        times = []
        for _ in range(STEPS):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            begin = time.perf_counter()
            out = self.forward(token, out.past_key_values)
            times.append(time.perf_counter() - begin)
        return batch / statistics.mean(times[2:])

    def decode(self) -> Values:
        return {f"decode_b{batch}": self.decode_rate(batch) for batch in BATCHES}

    def prefill(self) -> Values:
        self.forward(self.prompt(1, PREFILLS[0]))
        values = {}
        for length in PREFILLS:
            prompt = self.prompt(1, length)
            times = [seconds(partial(self.forward, prompt)) for _ in range(REPEATS)]
            values[f"prefill_{length}"] = length / statistics.median(times)
        return values

    def image(self) -> Values:
        side = self.model.config.vision_config.image_size
        pixels = torch.rand(1, 1, 3, side, side, dtype=self.dtype)
        encode = self.model.model.get_image_features
        times = [seconds(lambda: encode(pixel_values=pixels)) for _ in range(TILES + 1)]
        return {"image_tile": 1e3 * statistics.median(times[1:])}

    def memory_text(self) -> Values:
        self.decode_rate(1)
        return {}

    def memory_image(self) -> Values:
        return self.image()


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    args = parser.parse_args()
    with torch.inference_mode():
        measure: Callable[[], Values] = getattr(Worker(args), args.section)
        print(json.dumps(measure()))


if __name__ == "__main__":
    main()

"""Read bandwidth and FMA peak of this machine, and what they allow a model.

python -m bench.limits [--threads N ...] [--config DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent / "native" / "limits.c"


def measure(num_threads: int) -> dict[str, Any]:
    """{threads, fma_gflops, read_gb_s}"""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        command = [os.environ.get("CC", "cc"), "-O3", "-mavx2", "-mfma", "-pthread", str(SOURCE)]
        subprocess.run([*command, "-o", str(program)], check=True, timeout=120)
        done = subprocess.run(
            [str(program), str(num_threads)], check=True, capture_output=True, timeout=600
        )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@dataclass(frozen=True, slots=True)
class Work:
    """What one token, prompt and tile cost at least; from a checkpoint's config.json."""

    weights: int  # of a decode step, the head included
    block_weights: int  # without head and embedding
    kv_values_per_position: int
    head_dim_total: int  # query heads * head size
    layers: int
    tile_flop: float

    @classmethod
    def of(cls, config: dict[str, Any]) -> Work:
        text = config.get("text_config", config)
        hidden, layers = text["hidden_size"], text["num_hidden_layers"]
        heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
        head_dim = text.get("head_dim") or hidden // heads
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        block = layers * (attention + 3 * hidden * text["intermediate_size"])
        return cls(
            weights=block + hidden * text["vocab_size"],
            block_weights=block,
            kv_values_per_position=2 * layers * kv_heads * head_dim,
            head_dim_total=heads * head_dim,
            layers=layers,
            tile_flop=_tile_flop(config, hidden),
        )

    def decode_per_s(
        self, batch: int, position: int, limits: dict[str, float], size: float
    ) -> float:
        """Tokens/s that bandwidth and FMA peak allow; `size` bytes a weight, f16 cache."""
        num_bytes = self.weights * size + batch * position * self.kv_values_per_position * 2
        flop = batch * (2 * self.weights + 4 * position * self.head_dim_total * self.layers)
        seconds = max(num_bytes / limits["read_gb_s"], flop / limits["fma_gflops"]) / 1e9
        return batch / seconds

    def prefill_per_s(self, length: int, limits: dict[str, float]) -> float:
        attention = 2 * length * length * self.head_dim_total * self.layers  # causal: half
        head = 2 * (self.weights - self.block_weights)
        flop = 2 * length * self.block_weights + attention + head
        return length / (flop / limits["fma_gflops"] / 1e9)

    def tile_ms(self, limits: dict[str, float]) -> float:
        return float(self.tile_flop / limits["fma_gflops"] / 1e6)


def _tile_flop(config: dict[str, Any], text_hidden: int) -> float:
    vision = config.get("vision_config")
    if not vision:
        return 0.0
    hidden, layers = vision["hidden_size"], vision["num_hidden_layers"]
    inner = vision.get("intermediate_size", 4 * hidden)
    patches = (vision["image_size"] // vision["patch_size"]) ** 2
    weights = layers * (4 * hidden * hidden + 2 * hidden * inner)
    attention = 4 * patches * patches * hidden * layers
    embed = 2 * patches * hidden * 3 * vision["patch_size"] ** 2
    factor = config.get("scale_factor", 1) ** 2
    connector = 2 * (patches // factor) * hidden * factor * text_hidden
    return float(2 * patches * weights + attention + embed + connector)


def table(limits: dict[str, Any], work: Work) -> dict[str, float]:
    rows = {
        f"decode, batch {batch}, position 512 (tok/s)": work.decode_per_s(batch, 512, limits, 2)
        for batch in (1, 4, 8)
    }
    rows["prefill 512 (tok/s)"] = work.prefill_per_s(512, limits)
    if work.tile_flop:
        rows["image tile (ms)"] = work.tile_ms(limits)
    return {name: round(value, 1) for name, value in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--config", type=Path, help="checkpoint: print what the limits allow it")
    args = parser.parse_args()
    for num_threads in args.threads:
        limits = measure(num_threads)
        print(json.dumps(limits))
        if args.config is not None:
            work = Work.of(json.loads((args.config / "config.json").read_text()))
            print(json.dumps(table(limits, work), indent=1))


if __name__ == "__main__":
    main()

"""Makes a random-weight checkpoint in the Hugging Face layout. Needs numpy, no torch.

python -m tools.make_checkpoint --shape smolvlm-256m --output DIR [--seed N] [--shards N]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tools.checkpoints.files import CHAT_TEMPLATE, write_json_files
from tools.checkpoints.shapes import SHAPES, Shape
from tools.checkpoints.tensors import checkpoint_tensors
from tools.checkpoints.tokenizer import write_tokenizer
from tools.checkpoints.weights import to_stored, write_weights

__all__ = ["CHAT_TEMPLATE", "SHAPES", "make_checkpoint"]


def make_checkpoint(directory: Path, shape: Shape, seed: int = 0, shards: int = 1) -> Path:
    """Writes a whole checkpoint. The same shape and seed give the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(directory, shape.bpe_vocab, shape.text.vocab)
    write_json_files(directory, shape, ids)
    tensors = {
        name: to_stored(values, shape.stored) for name, values in checkpoint_tensors(shape, seed)
    }
    write_weights(directory, tensors, shape.stored, shards)
    return directory


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1, help="number of weight files")
    parser.add_argument("--stored", choices=("f32", "f16", "bf16"), help="type of the tensors")
    chosen = parser.parse_args(arguments)
    shape = SHAPES[chosen.shape]
    if chosen.stored is not None:
        shape = replace(shape, stored=chosen.stored)
    print(make_checkpoint(chosen.output, shape, chosen.seed, chosen.shards))


if __name__ == "__main__":
    main()

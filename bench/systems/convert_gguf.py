"""Runs llama.cpp's converter on a checkpoint whose tokenizer it does not know.

python convert_gguf.py LLAMA_CPP_SOURCE ARGUMENTS OF convert_hf_to_gguf.py...

The converter picks the pre-tokenizer by a hash of what the tokenizer makes of a text; a tokenizer
with random merges has none. The pre-tokenizer does not matter for speed: SmolLM's is taken.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def no_such_file(*_: object) -> None:
    raise FileNotFoundError


def main() -> None:
    source = Path(sys.argv[1])
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda *_: "smollm"
    # Tried first; without it the tokenizer.json is read.
    TextModel._set_vocab_sentencepiece = no_such_file
    script = source / "convert_hf_to_gguf.py"
    sys.argv = [str(script), *sys.argv[2:]]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()

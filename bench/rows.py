"""The rows of the comparison: what is measured, in which unit, and what is better."""

from __future__ import annotations

from dataclasses import dataclass

BATCHES = (1, 4, 8)
PREFILLS = (96, 512, 1024)
POSITION = 512  # of the first decoded token
DECODED = 64


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    title: str
    unit: str
    higher_is_better: bool = False


ROWS: dict[str, Row] = {
    **{
        f"decode_b{batch}": Row(
            "decode", f"decode, batch {batch}, from position {POSITION}", "tok/s", True
        )
        for batch in BATCHES
    },
    **{
        f"prefill_{length}": Row("prefill", f"prefill {length}", "tok/s", True)
        for length in PREFILLS
    },
    "image_tile": Row("image", "image encode, one tile of 512 x 512", "ms"),
    "memory_text": Row("memory", "peak memory, text, 8,192 cache positions (PSS)", "MiB"),
    "memory_image": Row("memory", "peak memory, one picture, 4,096 cache positions (PSS)", "MiB"),
    "memory_imports": Row("memory", "of which interpreter and imports", "MiB"),
    "load": Row("load", "from start to ready, without interpreter and imports", "s"),
    "compile": Row("compile", "compile, first time", "s"),
    **{
        f"http_{name}_{metric}": Row("serve", f"HTTP, {what}: {title}", unit, metric == "rate")
        for name, what in {
            "new": "8 clients, half with a new picture",
            "repeated": "8 clients, half with one of 4 pictures",
            "tiled": "8 clients, half with a new picture of 17 tiles",
        }.items()
        for metric, title, unit in (
            ("rate", "requests/s", "1/s"),
            ("ttft95", "p95 time to first token", "ms"),
        )
    },
    "serve_ready": Row("serve", "from the server's start to ready", "s"),
    "itl_ratio": Row("serve", "p99 inter-token latency of text, pictures admitted / quiet", "x"),
}

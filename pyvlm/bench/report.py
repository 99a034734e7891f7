"""A run as text, as JSON and as a picture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyvlm.bench.record import RequestRecord
from pyvlm.bench.statistics import values_ms
from pyvlm.errors import PyvlmError

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
    "client_wait": "wait in the client before sending",
}


def text_report(
    result: dict[str, Any], metrics: Sequence[str], percentiles: Sequence[float]
) -> str:
    lines = [
        _line("completed requests", result["completed"]),
        _line("failed requests", result["failed"]),
        _line("duration (s)", result["duration"]),
        _line("most requests at once", result["max_concurrent_requests"]),
        _line("input tokens, as counted by the server", result["total_input_tokens"]),
        _line("output tokens", result["total_output_tokens"]),
        _line("requests/s", result["request_throughput"]),
        _line("output tokens/s", result["output_throughput"]),
    ]
    if result["request_goodput"] is not None:
        lines.append(_line("goodput (requests/s)", result["request_goodput"]))
    groups = {
        "": result,
        **{f" [{kind}]": part for kind, part in result.get("by_kind", {}).items()},
    }
    for label, part in groups.items():
        for metric in metrics:
            lines += _metric_lines(metric, label, part, percentiles)
    lines += [_line(f"error {name}", count) for name, count in result["errors"].items()]
    lines += [f"  {name}: {text}" for name, text in result["error_examples"].items()]
    return "\n".join(lines)


def _metric_lines(
    metric: str, label: str, part: dict[str, Any], percentiles: Sequence[float]
) -> list[str]:
    if part[f"mean_{metric}_ms"] is None:
        return []
    names = ["mean", "median", *(f"p{percentile:g}" for percentile in percentiles)]
    values = "  ".join(f"{name} {part[f'{name}_{metric}_ms']:.2f}" for name in names)
    return [f"{TITLES[metric]}{label} (ms)", f"    {values}"]


def _line(name: str, value: float) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:44}{text:>12}"


def write_plot(records: Sequence[RequestRecord], path: Path, title: str) -> None:
    """Distributions of the latencies by kind of request, and requests over time."""
    figure = _figure()
    axes = figure.subplots(2, 2).ravel()
    for axis, metric in zip(axes, ("ttft", "itl", "e2el"), strict=False):
        for kind in sorted({record.kind for record in records}):
            values = np.sort(values_ms([r for r in records if r.kind == kind], metric))
            if values.size:
                axis.step(values, np.arange(1, values.size + 1) / values.size, label=kind)
                axis.legend()
        axis.set(xlabel=f"{TITLES[metric]} (ms)", ylabel="share", ylim=(0, 1), xlim=(0, None))
    for record in records:
        colour = (
            "tab:red" if not record.is_ok else "tab:orange" if record.num_images else "tab:blue"
        )
        axes[3].plot([record.sent, record.ended], [record.index] * 2, color=colour, linewidth=1)
        if record.pieces:
            axes[3].plot(record.pieces[0], record.index, ".", color="black", markersize=2)
    axes[3].set(xlabel="s since the start", ylabel="request (dot: first token)")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _figure() -> Any:
    module = require_matplotlib()
    return module.Figure(figsize=(11, 8), layout="constrained")


def require_matplotlib() -> Any:
    """matplotlib is no dependency: asked for only where a plot is."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError:
        raise PyvlmError(
            "a plot needs matplotlib: pip install aiohttp matplotlib", code="runtime_missing"
        ) from None

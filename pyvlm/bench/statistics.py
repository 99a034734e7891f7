"""From records to the numbers of a report. Key names are those of vLLM's `bench serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyvlm.bench.options import METRICS
from pyvlm.bench.record import RequestRecord


def summarize(
    records: Sequence[RequestRecord],
    duration: float,
    percentiles: Sequence[float],
    goodput_ms: Mapping[str, float],
) -> dict[str, Any]:
    """Over all requests, and by kind where there are both text and image requests."""
    summary = _summary(records, duration, percentiles, goodput_ms)
    kinds = sorted({record.kind for record in records})
    if len(kinds) > 1:
        summary["by_kind"] = {
            kind: _summary(
                [r for r in records if r.kind == kind], duration, percentiles, goodput_ms
            )
            for kind in kinds
        }
    return summary


def values_ms(records: Sequence[RequestRecord], metric: str) -> list[float]:
    """Of the requests that succeeded. tpot and ttft lack those with too little text."""
    done = [record for record in records if record.is_ok]
    if metric == "itl":
        return [1e3 * gap for record in done for gap in record.itl]
    found = (getattr(record, metric) for record in done)
    return [1e3 * value for value in found if value is not None]


def _summary(
    records: Sequence[RequestRecord],
    duration: float,
    percentiles: Sequence[float],
    goodput_ms: Mapping[str, float],
) -> dict[str, Any]:
    done = [record for record in records if record.is_ok]
    failed = [record for record in records if not record.is_ok]
    num_output = sum(record.num_tokens for record in done)
    num_input = sum(record.prompt_tokens or 0 for record in done)
    per_s = 1 / duration if duration > 0 else 0.0
    summary: dict[str, Any] = {
        "completed": len(done),
        "failed": len(failed),
        "errors": dict(Counter(str(record.error) for record in failed)),
        "error_examples": _examples(failed),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "num_without_usage": sum(record.completion_tokens is None for record in done),
        "request_throughput": len(done) * per_s,
        "output_throughput": num_output * per_s,
        "total_token_throughput": (num_input + num_output) * per_s,
        "request_goodput": None,
    }
    if goodput_ms:
        good = sum(_is_good(record, goodput_ms) for record in done)
        summary["request_goodput"] = good * per_s
        summary["goodput_fraction"] = good / len(records) if records else 0.0
    for metric in METRICS:
        summary |= _distribution(metric, values_ms(records, metric), percentiles)
    waits = [1e3 * (record.sent - record.due) for record in records]
    return summary | _distribution("client_wait", waits, percentiles)


def _distribution(
    metric: str, values: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float | None]:
    names = [*(f"{kind}_{metric}_ms" for kind in ("mean", "median", "std")),
             *(f"p{percentile:g}_{metric}_ms" for percentile in percentiles)]  # fmt: skip
    if not values:
        return dict.fromkeys(names)
    array = np.asarray(values)
    numbers = [array.mean(), np.median(array), array.std(), *np.percentile(array, percentiles)]
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


def _is_good(record: RequestRecord, goodput_ms: Mapping[str, float]) -> bool:
    """Every objective that applies is met; one without a first token meets none."""
    for metric, limit in goodput_ms.items():
        value = getattr(record, metric)
        if value is None and metric == "ttft":
            return False
        if value is not None and 1e3 * value > limit:
            return False
    return True


def _examples(failed: Sequence[RequestRecord]) -> dict[str, str]:
    """The detail of the first of each error."""
    examples: dict[str, str] = {}
    for record in failed:
        if record.error_detail:
            examples.setdefault(str(record.error), record.error_detail)
    return examples

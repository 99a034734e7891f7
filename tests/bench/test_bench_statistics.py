"""Numbers from records made by hand."""

from __future__ import annotations

import pytest

from pyvlm.bench.record import RequestRecord
from pyvlm.bench.report import text_report
from pyvlm.bench.statistics import summarize

PERCENTILES = (50.0, 99.0)


def record(index: int, ttft: float, gaps: tuple[float, ...], num_images: int = 0) -> RequestRecord:
    pieces = [1.0 + ttft]
    for gap in gaps:
        pieces.append(pieces[-1] + gap)
    return RequestRecord(
        index, num_images, due=0.5, sent=1.0, ended=pieces[-1] + 0.1, pieces=pieces,
        prompt_tokens=7, completion_tokens=1 + len(gaps), finish_reason="length",
    )  # fmt: skip


def failure(index: int) -> RequestRecord:
    return RequestRecord(index, 0, due=0.0, sent=0.0, ended=9.0, error="http_429_queue_full",
                         error_detail="full")  # fmt: skip


def test_latencies_and_rates() -> None:
    records = [record(0, 0.2, (0.1, 0.3)), record(1, 0.4, (0.2,)), failure(2)]
    summary = summarize(records, 2.0, PERCENTILES, {})
    assert (summary["completed"], summary["failed"]) == (2, 1)
    assert summary["errors"] == {"http_429_queue_full": 1}
    assert summary["error_examples"] == {"http_429_queue_full": "full"}
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (14, 5)
    assert summary["request_throughput"] == 1.0
    assert summary["output_throughput"] == 2.5
    assert summary["mean_ttft_ms"] == pytest.approx(300)
    assert summary["p50_itl_ms"] == pytest.approx(200)
    assert summary["mean_tpot_ms"] == pytest.approx(200)
    assert summary["median_e2el_ms"] == pytest.approx(700)
    assert summary["p50_client_wait_ms"] == pytest.approx(500)
    assert "by_kind" not in summary


def test_tokens_without_usage_are_pieces() -> None:
    one = record(0, 0.2, (0.1, 0.1))
    one.completion_tokens = None
    summary = summarize([one], 1.0, PERCENTILES, {})
    assert (summary["total_output_tokens"], summary["num_without_usage"]) == (3, 1)


def test_pieces_of_several_tokens() -> None:
    """The time per token counts tokens, the inter-token latency pieces."""
    one = record(0, 0.2, (0.4,))
    one.completion_tokens = 5
    summary = summarize([one], 1.0, PERCENTILES, {})
    assert summary["mean_tpot_ms"] == pytest.approx(100)
    assert summary["mean_itl_ms"] == pytest.approx(400)


def test_by_kind() -> None:
    records = [record(0, 0.2, (0.1,)), record(1, 0.8, (0.1,), num_images=1)]
    summary = summarize(records, 1.0, PERCENTILES, {})
    assert summary["by_kind"]["text"]["mean_ttft_ms"] == pytest.approx(200)
    assert summary["by_kind"]["image"]["mean_ttft_ms"] == pytest.approx(800)


def test_goodput() -> None:
    records = [record(0, 0.2, (0.1,)), record(1, 0.8, (0.1,)), record(2, 0.2, (0.9,)), failure(3)]
    summary = summarize(records, 2.0, PERCENTILES, {"ttft": 500.0, "tpot": 500.0})
    assert summary["request_goodput"] == 0.5
    assert summary["goodput_fraction"] == 0.25
    assert summarize(records, 2.0, PERCENTILES, {})["request_goodput"] is None


def test_an_answer_without_text_is_not_good() -> None:
    silent = RequestRecord(0, 0, 0.0, ended=0.1, completion_tokens=0, finish_reason="stop")
    summary = summarize([silent], 1.0, PERCENTILES, {"ttft": 500.0})
    assert summary["request_goodput"] == 0
    assert summary["mean_ttft_ms"] is None


def test_nothing_completed() -> None:
    summary = summarize([failure(0)], 0.0, PERCENTILES, {"ttft": 1.0})
    assert summary["request_throughput"] == 0
    assert summary["p99_ttft_ms"] is None


def test_text_report_shows_kinds_and_errors() -> None:
    records = [record(0, 0.2, (0.1,)), record(1, 0.8, (0.1,), num_images=1), failure(2)]
    summary = summarize(records, 1.0, PERCENTILES, {})
    result = {"duration": 1.0, "max_concurrent_requests": 2, **summary}
    text = text_report(result, ["ttft"], PERCENTILES)
    assert "time to first token [image] (ms)" in text
    assert "mean 800.00  median 800.00  p50 800.00  p99 800.00" in text
    assert "http_429_queue_full: full" in text
    assert "inter-token" not in text

"""Prometheus metrics in a registry of their own; names and meanings: docs/metrics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pyvlm.server.engine_metrics import EngineCollector
from pyvlm.server.record import STAGES, RequestRecord

if TYPE_CHECKING:
    from pyvlm.server.service import Service

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_IMAGE_CODES = (
    "image_count",
    "image_decode_failed",
    "image_fetch_failed",
    "media_policy_violation",
    "modality_unsupported",
    "model_unsupported",
)


class Metrics:
    """Counters of finished requests, and a view of the engine at each scrape."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(EngineCollector(service))
        self._requests = self._counter(
            "requests", "Requests that asked for a generation", ("outcome", "code")
        )
        self._http = self._counter("http_responses", "HTTP responses", ("method", "status"))
        self._choices = self._counter("choices", "Finished choices", ("finish_reason",))
        self._prompt = self._counter("prompt_tokens", "Logical prompt tokens: one for an image")
        self._generated = self._counter("completion_tokens", "Generated tokens that were sent")
        self._images = self._counter("images", "Pictures of finished requests")
        self._rejections = self._counter(
            "image_rejections", "Requests refused because of their media", ("reason",)
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Of a choice", _LATENCIES)
        self._gap = self._histogram("inter_token_seconds", "Between deltas of a choice", _SHORT)
        self._e2e = self._histogram("request_seconds", "Of a finished request", _LATENCIES)
        self._stages = Histogram(
            "pyvlm_stage_seconds", "Time of a choice in a stage", ("stage",),
            buckets=_LATENCIES, registry=self.registry,
        )  # fmt: skip

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def note(self, record: RequestRecord) -> None:
        """Once, at the end of every HTTP request. No label is a word of the client's: each new one
        would be kept for good."""
        method = record.method if record.method in _METHODS else "other"
        self._http.labels(method, record.status or 0).inc()
        if not record.is_generation:
            return
        self._requests.labels(record.outcome, record.code or "").inc()
        if record.code in _IMAGE_CODES:
            self._rejections.labels(record.code).inc()
        self._images.inc(record.num_images)
        self._e2e.observe(record.seconds)
        for gap in record.gaps:
            self._gap.observe(gap)
        self._note_choices(record)

    def _note_choices(self, record: RequestRecord) -> None:
        for end in record.ends:
            self._choices.labels(end.finish_reason).inc()
            self._prompt.inc(end.usage.prompt_tokens)
            self._generated.inc(end.usage.completion_tokens)
            if end.timings.ttft:
                self._ttft.observe(record.until_engine_s + end.timings.ttft)
            for stage in STAGES:
                seconds = record.fetch_s if stage == "fetch" else getattr(end.timings, stage)
                if seconds:
                    self._stages.labels(stage).observe(seconds)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"pyvlm_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"pyvlm_{name}", text, buckets=buckets, registry=self.registry)

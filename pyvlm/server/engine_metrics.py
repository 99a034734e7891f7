"""The engine's and the pool's own counts as metrics: asked for at each scrape, kept nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from pyvlm._core import EngineStats
    from pyvlm.engine_options import EngineSnapshot
    from pyvlm.media.preprocessor import PoolStats
    from pyvlm.server.service import Service


class EngineCollector(Collector):
    """Scraped on the event loop's thread, as the service is that thread's alone."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service, engine = self._service, self._service.loaded_engine
        yield _gauge("up", "1 if new requests are served", service.is_ready)
        yield _gauge("http_active", "Generations in hand", service.num_active)
        yield _gauge("ledger_bytes", "Bytes of bodies and pictures held", service.ledger.used_bytes)
        yield _gauge("ledger_limit_bytes", "Limit of ledger_bytes", service.ledger.limit_bytes)
        if engine is not None:
            snapshot = engine.stats()
            yield from _of_requests(snapshot)
            yield from _of_engine(snapshot.native)
            if snapshot.pool is not None:
                yield from _of_pool(snapshot.pool)


def _of_requests(snapshot: EngineSnapshot) -> Iterator[Metric]:
    native = snapshot.native
    yield _gauge("requests_preparing", "Not yet in the engine", snapshot.num_preparing)
    yield _gauge("requests_waiting", "In the engine, without a slot", native.num_waiting)
    yield _gauge("requests_running", "With a slot", native.num_running)
    yield _gauge("slots", "Sequences that run at once", native.num_slots)
    yield _gauge("kv_positions", "Positions of all slots", native.num_slots * native.capacity)
    yield _gauge("kv_positions_used", "Positions in use", native.num_cached)
    yield _gauge("image_bytes_in_flight", "Pictures being prepared", snapshot.queued_bytes)
    yield _gauge("image_leases", "Pictures that the engine reads", native.num_leases)


def _of_engine(native: EngineStats) -> Iterator[Metric]:
    yield _count("prompt_logical_tokens", "Prompts: one for a picture", native.num_prompt_tokens)
    yield _count("prefill_positions", "Positions filled by prefill", native.num_prefill_positions)
    yield _count("generated_tokens", "Tokens drawn", native.num_generated_tokens)
    yield _count("encode_units", "Units of picture encoding", native.num_encode_units)
    yield _count("prefill_chunks", "Chunks of prefill", native.num_prefill_chunks)
    yield _count("decode_retries", "Decode steps repeated by row", native.num_decode_retries)
    yield _seconds("step_seconds", "Steps of the engine", native)
    yield _widths(native.decode_width)
    yield _gauge("image_cache_bytes", "Rows kept of pictures", native.image_cache_bytes)
    yield _count("image_cache_hits", "Pictures found there", native.num_image_cache_hits)
    yield _count("image_cache_misses", "Pictures not found", native.num_image_cache_misses)
    yield _count("image_cache_evictions", "Pictures dropped", native.num_image_cache_evictions)


def _of_pool(pool: PoolStats) -> Iterator[Metric]:
    yield _gauge("image_queue_depth", "Pictures waiting for a worker", pool.num_queued)
    yield _gauge("image_running", "Pictures in workers", pool.num_running)
    yield _gauge("image_workers", "Workers that are alive", pool.num_workers)
    yield _gauge("slab_bytes", "Memory of prepared pictures", pool.slab_bytes)
    yield _gauge("slab_leased_bytes", "Of it in use", pool.leased_bytes)
    yield _count("image_worker_restarts", "Workers replaced", pool.num_restarts)
    failed = CounterMetricFamily(
        "pyvlm_image_jobs", "Pictures by outcome of their preprocessing", labels=("outcome",)
    )
    counts = {"done": pool.num_done, "cancelled": pool.num_cancelled, "refused": pool.num_refused}
    for outcome, count in (counts | dict(pool.num_failed)).items():
        failed.add_metric((outcome,), count)
    yield failed


def _seconds(name: str, text: str, native: EngineStats) -> Metric:
    histogram = native.step_us
    bounds = [f"{bound / 1e6:g}" for bound in histogram.bounds]
    return _histogram(name, text, [*bounds, "+Inf"], histogram.counts, histogram.sum / 1e6)


def _widths(counts: Sequence[int]) -> Metric:
    """Index: rows of a decode step."""
    rows = sum(width * count for width, count in enumerate(counts))
    bounds = [str(width) for width in range(len(counts))]
    every = [*counts, 0]
    return _histogram("decode_width", "Rows of a decode step", [*bounds, "+Inf"], every, rows)


def _histogram(
    name: str, text: str, bounds: Sequence[str], counts: Sequence[int], total: float
) -> Metric:
    so_far, buckets = 0, []
    for bound, count in zip(bounds, counts, strict=True):
        so_far += count
        buckets.append((bound, float(so_far)))
    return HistogramMetricFamily(f"pyvlm_{name}", text, buckets=buckets, sum_value=total)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pyvlm_{name}", text, value=float(value))


def _count(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pyvlm_{name}", text, value=float(value))

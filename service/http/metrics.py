"""Metrics for Prometheus at `/metrics`. Labels have fixed sets of values, so clients can't create new series."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from service.http.logs import QueuedLines
from service.inference.engine import Engine
from service.slots import Slots

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Has its own registry, so that two applications in a process don't mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._text, self._kept_until = b"", 0.0
        self._requests = Counter(
            "claimcheck_requests", "Answers", ("method", "route", "status"), registry=self.registry
        )
        self._keys = Counter(
            "claimcheck_key_requests", "Requests answered by API key", ("key", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "claimcheck_request_seconds",
            "From the request's first line to the answer's last byte",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._pass_images = Histogram(
            "claimcheck_pass_images",
            "Images in a forward pass",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self._waited_seconds = Histogram(
            "claimcheck_queue_seconds", "Longest wait before a forward pass", buckets=SECONDS, registry=self.registry
        )
        self._pass_seconds = Histogram(
            "claimcheck_pass_seconds", "A forward pass", buckets=SECONDS, registry=self.registry
        )

    def text(self) -> bytes:
        """Return all metrics, cached for nine times their writing time, so that writing takes at most a tenth."""
        if (began := time.monotonic()) >= self._kept_until:
            self._text = generate_latest(self.registry)
            self._kept_until = began + 10 * (time.monotonic() - began)
        return self._text

    def request(self, method: str, route: str, status: int, seconds: float, key: str | None = None) -> None:
        """Count an answer, with the holder of a named key; `route` is the template of the address."""
        if key:
            self._keys.labels(key, status).inc()
        self._requests.labels(method if method in METHODS else "other", route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def forward_pass(self, *, images: int, waited_seconds: float, pass_seconds: float) -> None:
        """Observe a pass of the batcher."""
        self._pass_images.observe(images)
        self._waited_seconds.observe(waited_seconds)
        self._pass_seconds.observe(pass_seconds)

    def watch(self, engine: Engine, queues: Mapping[str, Slots]) -> None:
        """Register gauges that are read on request; `queues` are those of the database."""
        gauge = Gauge(
            "claimcheck_waiting_requests", "Requests that wait for the database", ("turn",), registry=self.registry
        )
        for name, slots in queues.items():
            gauge.labels(name).set_function(partial(getattr, slots, "waiting"))
        gauges: dict[tuple[str, str], Callable[[], float]] = {
            ("waiting_images", "Images waiting for an answer"): lambda: engine.batcher.waiting,
            ("weight_bytes", "Weights in memory"): lambda: sum(worker.weight_bytes for worker in engine.workers),
            ("inference_alive", "1 where a worker runs"): lambda: engine.batcher.is_alive,
            ("workers", "Workers that run"): lambda: engine.batcher.serving,
            ("models_set_aside", "Models disabled because they crash workers"): lambda: len(
                engine.batcher.disabled_models
            ),
        }
        for (name, text), read in gauges.items():
            Gauge(f"claimcheck_{name}", text, registry=self.registry).set_function(read)
        self.registry.register(_Restarts(engine))


class _Restarts(Collector):
    """Counts kept by the processes themselves."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("claimcheck_process_restarts", "Lost processes replaced", labels=("kind",))
        for kind, processes in (("inference", self.engine.workers), ("decoding", self.engine.decoder.processes)):
            family.add_metric([kind], sum(process.restarts for process in processes))
        yield family
        yield CounterMetricFamily(
            "claimcheck_log_lines_dropped", "Log lines lost: nothing read them", QueuedLines.dropped
        )

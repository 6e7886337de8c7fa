"""Logs as JSON lines on standard error, each with the id of its request, and metrics for Prometheus at `/metrics`.

A thread writes the lines: if nothing reads the pipe behind standard error, they are dropped and counted, and requests
continue.  Labels of metrics have fixed sets of values, so clients can't create new series.
"""

from __future__ import annotations

import json
import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from logging.handlers import QueueHandler, QueueListener
from typing import Any, ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from service.inference.engine import Engine
from service.slots import Slots

MAX_LINES, FLUSH_SECONDS = 4000, 1.0
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON, with the record's `fields` next to its message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if current := request_id.get():
            line["request_id"] = current
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class QueuedLines(QueueHandler):
    """Formats a record in its request's context, and lets a thread write the line."""

    dropped: ClassVar[int] = 0

    def __init__(self) -> None:
        self.lines: queue.Queue[logging.LogRecord] = queue.Queue(MAX_LINES)
        super().__init__(self.lines)
        QueueListener(self.lines, logging.StreamHandler()).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.lines.put_nowait(record)
        except queue.Full:
            QueuedLines.dropped += 1

    def flush(self) -> None:
        """Wait until all lines are written, or for `FLUSH_SECONDS`. Called when the process ends."""
        until = time.monotonic() + FLUSH_SECONDS
        while self.lines.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.005)


def log_configuration() -> dict[str, Any]:
    """Return the configuration for `logging.config.dictConfig`: every record of ours and of the server once."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"stderr": {"()": QueuedLines, "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "claimcheck": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
            "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        },
    }


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Has its own registry, so that two applications in a process don't mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._text, self._kept_until = b"", 0.0
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._requests = counter("claimcheck_requests", "Answers", ("method", "route", "status"))
        self._keys = counter("claimcheck_key_requests", "Requests answered by API key", ("key", "status"))
        duration = "From the request's first line to the answer's last byte"
        self._seconds = histogram("claimcheck_request_seconds", duration, ("route",), buckets=SECONDS)
        sizes = (1, 2, 4, 8, 16, 32, 64)
        self._pass_images = histogram("claimcheck_pass_images", "Images in a forward pass", buckets=sizes)
        longest = "Longest wait before a forward pass"
        self._waited_seconds = histogram("claimcheck_queue_seconds", longest, buckets=SECONDS)
        self._pass_seconds = histogram("claimcheck_pass_seconds", "A forward pass", buckets=SECONDS)

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

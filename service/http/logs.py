"""Logs as JSON lines on standard error, each with the id of its request.

A thread writes them: if nothing reads the pipe behind standard error, lines are dropped and counted, and requests
continue.
"""

from __future__ import annotations

import json
import logging
import queue
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, ClassVar

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


def configuration() -> dict[str, Any]:
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

"""Counts of admitted requests: a token bucket for each holder's rate, and a number for its daily quota.

SQLite stores them in memory, or in a file that several server processes on one machine share.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

MAX_BUCKETS = 10_000
WAIT_SECONDS = 1.0  # for another process, which holds the file for less than a millisecond
DAY = 24 * 60 * 60  # seconds


class CountsError(ValueError):
    """The file doesn't contain counts or can't be written to; the message says what is wrong."""


class RequestCounter:
    """Counts requests by holder: a key's name or a client's address.  Without a `file`, counts end with this object.

    Raises:
        CountsError: the file can't be opened or doesn't contain counts.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.is_file = file is not None
        try:
            self._database = sqlite3.connect(
                file or ":memory:", isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
            )
            weakref.finalize(self, self._database.close)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = OFF")  # a power cut may lose a minute's counts
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS buckets (holder TEXT UNIQUE, remaining REAL, at REAL) STRICT"
            )
            self._database.execute("CREATE TABLE IF NOT EXISTS days (holder TEXT UNIQUE, day INTEGER, count INTEGER)")
        except sqlite3.Error as error:
            raise CountsError(f"{file}: {error}; expected a file of counts, or a new one in a folder") from None

    def admit(
        self, holder: str, *, per_minute: int | None, per_day: int | None, now: float
    ) -> tuple[Literal["minute", "day"], float] | None:
        """Count a request at `now` (seconds since 1970), or return the exceeded limit and the seconds to wait.

        A bucket holds a minute's worth of requests and fills evenly; a day ends at midnight UTC.

        Raises:
            CountsError: the file can't be read or written at the moment.
        """
        day = int(now // DAY)
        with self._alone():
            count = 0
            if per_day is not None:
                row = self._database.execute("SELECT day, count FROM days WHERE holder = ?", (holder,)).fetchone()
                count = row[1] if row is not None and row[0] == day else 0
                if count >= per_day:
                    return "day", DAY - now % DAY
            if per_minute is not None and (seconds := self._take(holder, per_minute, now)):
                return "minute", seconds
            if per_day is not None:
                self._database.execute("INSERT OR REPLACE INTO days VALUES (?, ?, ?)", (holder, day, count + 1))
        return None

    def _take(self, holder: str, per_minute: int, now: float) -> float:
        """Take a request out of the bucket; return the seconds until there is one, or 0 if there was one."""
        row = self._database.execute("SELECT remaining, at FROM buckets WHERE holder = ?", (holder,)).fetchone()
        remaining, at = row or (float(per_minute), now)
        remaining = min(float(per_minute), remaining + max(0.0, now - at) * per_minute / 60)
        kept = remaining - 1 if remaining >= 1 else remaining
        self._database.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?, ?)", (holder, kept, now))
        # Each insertion gets a new rowid, so the lowest rowids are the least recently used.
        self._database.execute(
            "DELETE FROM buckets WHERE rowid <= (SELECT max(rowid) FROM buckets) - ?", (MAX_BUCKETS,)
        )
        return 0.0 if remaining >= 1 else (1 - remaining) * 60 / per_minute

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Open a transaction that excludes other processes."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise CountsError(str(error)) from error

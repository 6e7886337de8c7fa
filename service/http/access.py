"""Access control: named API keys, each with a rate limit and a daily quota.

Keys are long random strings, so a plain sha256 of each is enough. Digests are compared in constant time.

Admitted requests are counted in SQLite: a token bucket for each holder's rate, and a number for its daily quota. The
counts are in memory, or in a file that several server processes on one machine share.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import sqlite3
import time
import tomllib
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.http.errors import Problem

MAX_BUCKETS = 10_000
WAIT_SECONDS = 1.0  # for another process, which holds the file of counts for less than a millisecond
DAY = 24 * 60 * 60  # seconds
logger = logging.getLogger("claimcheck.access")


class AccessDenied(Problem):
    """Rejected request: 401, 429 or 503, with headers that tell the client what to do."""

    key: str | None = None
    """Name of the rejected key; None if it is unknown."""


class KeysError(ValueError):
    """Invalid key file; the message gives the place."""


def new_key() -> tuple[str, str]:
    """Generate a key; return it with its digest for the key file."""
    key = secrets.token_urlsafe(32)
    return key, digest_of(key)


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class Key(BaseModel):
    """Rate limit and quota of a named key; a day ends at midnight UTC.  A key has two digests while it is rotated."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sha256: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = Field(min_length=1)
    requests_per_minute: int | None = Field(default=None, ge=1)
    requests_per_day: int | None = Field(default=None, ge=1)


Named = Mapping[str, Key]
Name = Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")]
_NAMED: TypeAdapter[dict[Name, Key]] = TypeAdapter(dict[Name, Key])


def read_keys(path: Path) -> Named:
    """Read the named keys from a TOML file with a table for each.

    Raises:
        KeysError: the file can't be read or is invalid.
    """
    try:
        found = _NAMED.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise KeysError(f"{path.name}: {'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}") from None
    except (OSError, ValueError) as error:
        raise KeysError(f"{path.name}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise KeysError(f'{path.name}: it contains no key; expected [name] followed by sha256 = ["…"]')
    return found


class KeyFile:
    """Keys of a file, reloaded when it changes; if the new file is invalid, the old keys stay valid.

    Raises:
        KeysError: the file can't be read at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._look()
        self._named = read_keys(path)

    def __call__(self) -> Named:
        if (version := self._look()) != self._version:
            self._version = version
            try:
                self._named = read_keys(self._path)
                logger.info("keys of %s", ", ".join(self._named))
            except KeysError as error:
                logger.error("%s; the previous keys stay valid", error)
        return self._named

    def _look(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


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
        day, count = int(now // DAY), 0
        try:
            with self._database:  # commits
                self._database.execute("BEGIN IMMEDIATE")  # excludes other processes
                if per_day is not None:
                    row = self._database.execute("SELECT day, count FROM days WHERE holder = ?", (holder,)).fetchone()
                    count = row[1] if row is not None and row[0] == day else 0
                    if count >= per_day:
                        return "day", DAY - now % DAY
                if per_minute is not None and (seconds := self._take(holder, per_minute, now)):
                    return "minute", seconds
                if per_day is not None:
                    self._database.execute("INSERT OR REPLACE INTO days VALUES (?, ?, ?)", (holder, day, count + 1))
        except sqlite3.Error as error:
            raise CountsError(str(error)) from error
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


class AccessPolicy:
    """Admits a request or raises `AccessDenied`.  Without `keys`, access is open; without a rate, it is unlimited.

    The rate applies per key or, without keys, per client.  Bursts of up to a minute's requests are allowed.
    """

    def __init__(
        self,
        keys: Callable[[], Named] | None,
        per_minute: int | None,
        *,
        counts: RequestCounter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.keys, self.per_minute, self._clock = keys, per_minute, clock
        self.counts = counts or RequestCounter()

    def admit(self, authorization: str, client: str) -> str | None:
        """Admit one request with this `Authorization` from this client address; return the name of its key.

        Raises:
            AccessDenied: 401 without a known key, 429 above the limit, 503 if requests can't be counted.
        """
        if self.keys is None:
            if self.per_minute is not None:
                self._count(client_of(client), self.per_minute, None)
            return None
        scheme, _, given = authorization.partition(" ")
        found, named = digest_of(given.strip()), self.keys()
        matches = [name for name, key in named.items() for digest in key.sha256 if hmac.compare_digest(found, digest)]
        if scheme.lower() != "bearer" or not matches:
            problem = "unknown API key" if authorization else "a key is missing"
            raise AccessDenied(401, f"{problem}; send Authorization: Bearer <key>", {"www-authenticate": "Bearer"})
        name, key = matches[0], named[matches[0]]
        try:
            self._count(name, key.requests_per_minute or self.per_minute, key.requests_per_day)
        except AccessDenied as refused:
            refused.key = name
            raise
        return name

    def _count(self, holder: str, per_minute: int | None, per_day: int | None) -> None:
        if per_minute is None and per_day is None:
            return
        try:
            refused = self.counts.admit(holder, per_minute=per_minute, per_day=per_day, now=self._clock())
        except CountsError as error:
            logger.error("counts of requests: %s", error)
            raise AccessDenied(503, "requests can't be counted at the moment", {"retry-after": "2"}) from None
        if refused is not None:
            of, seconds = refused
            detail = f"more than {per_minute if of == 'minute' else per_day} requests in a {of}"
            raise AccessDenied(429, detail, {"retry-after": str(math.ceil(seconds))})


def client_of(address: str) -> str:
    """Return the client of an address: a /64 of IPv6, all of which one host has, or an IPv4 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))

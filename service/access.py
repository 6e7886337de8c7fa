"""Access to the models: API keys, and a rate limit for each of them.

Keys are long random strings, so a plain sha256 of each is kept; it is compared in constant time with all of them.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

MAX_BUCKETS = 10_000


class Refused(Exception):
    """A request that is refused: `status` 401 or 429, and the headers that say what would help."""

    def __init__(self, status: int, detail: str, headers: dict[str, str]) -> None:
        super().__init__(detail)
        self.status, self.headers = status, headers


def new_key() -> tuple[str, str]:
    """Generate a key; returns it with its digest, which goes into the settings."""
    key = secrets.token_urlsafe(32)
    return key, digest_of(key)


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class Gate:
    """Admits a request or raises `Refused`.  Without digests everyone may ask; without a rate, as often as they like.

    A rate is a bucket per key or, without keys, per client address; a minute's worth of requests may come at once.
    """

    def __init__(
        self, digests: Sequence[str], per_minute: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.digests, self.per_minute, self._clock = tuple(digests), per_minute, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, authorization: str, client: str) -> None:
        """Admit one request with this `Authorization` from this client address."""
        who = self._key(authorization) if self.digests else client
        if self.per_minute is not None:
            self._take(who, self.per_minute)

    def _key(self, authorization: str) -> str:
        scheme, _, key = authorization.partition(" ")
        found = digest_of(key.strip())
        matches = [hmac.compare_digest(found, digest) for digest in self.digests]
        if scheme.lower() != "bearer" or not any(matches):
            problem = "this key is unknown" if authorization else "a key is missing"
            raise Refused(401, f"{problem}; send Authorization: Bearer <key>", {"www-authenticate": "Bearer"})
        return found

    def _take(self, who: str, per_minute: int) -> None:
        now = self._clock()
        left, then = self._buckets.pop(who, (float(per_minute), now))
        left = min(float(per_minute), left + (now - then) * per_minute / 60)
        self._buckets[who] = (left - 1 if left >= 1 else left, now)
        while len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if left < 1:
            seconds = math.ceil((1 - left) * 60 / per_minute)
            raise Refused(429, f"more than {per_minute} requests in a minute", {"retry-after": str(seconds)})

"""Access to the models: named API keys, and a rate and a quota for each of them.

Keys are long random strings, so a plain sha256 of each is kept; it is compared in constant time with all of them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.http.counts import CountsError, RequestCounter
from service.http.errors import Problem

logger = logging.getLogger("claimcheck.access")


class AccessDenied(Problem):
    """A request that is refused: 401, 429 or 503, with the headers that say what would help."""

    key: str | None = None
    """Name of the key that was refused; None without a known one."""


class KeysError(ValueError):
    """The file of keys isn't one; the message says where it fails."""


def new_key() -> tuple[str, str]:
    """Generate a key; returns it with its digest, which goes into the file of keys."""
    key = secrets.token_urlsafe(32)
    return key, digest_of(key)


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class Key(BaseModel):
    """Who holds it may ask so often; a day ends at midnight UTC.  While a key is changed it has two digests."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sha256: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = Field(min_length=1)
    requests_per_minute: int | None = Field(default=None, ge=1)
    requests_per_day: int | None = Field(default=None, ge=1)


Named = Mapping[str, Key]
Name = Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")]
_NAMED: TypeAdapter[dict[Name, Key]] = TypeAdapter(dict[Name, Key])


def read_keys(path: Path) -> Named:
    """The named keys in a TOML file: a table for each.

    Raises:
        KeysError: it can't be read, or isn't such a file.
    """
    try:
        found = _NAMED.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise KeysError(f"{path.name}: {'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}") from None
    except (OSError, ValueError) as error:
        raise KeysError(f"{path.name}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise KeysError(f'{path.name}: it names no key; expected [name] and below it sha256 = ["…"]')
    return found


class KeyFile:
    """The keys of a file, read again when it changes; if it can't be read by then, those of before stay.

    Raises:
        KeysError: it can't be read at the start.
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
                logger.error("%s; the keys of before stay", error)
        return self._named

    def _look(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


class AccessPolicy:
    """Admits a request or raises `AccessDenied`.  Without `keys` everyone may ask; without a rate, at any rate.

    A rate is one per key or, without keys, per client; a minute's worth of requests may come at once.
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
        """Admit one request with this `Authorization` from this client address; returns the name of its key.

        Raises:
            AccessDenied: 401 without a known key, 429 for one request too many, 503 where the counts can't be kept.
        """
        if self.keys is None:
            if self.per_minute is not None:
                self._count(client_of(client), self.per_minute, None)
            return None
        name, key = self._find(self.keys(), authorization)
        try:
            self._count(name, key.requests_per_minute or self.per_minute, key.requests_per_day)
        except AccessDenied as refused:
            refused.key = name
            raise
        return name

    def _find(self, named: Named, authorization: str) -> tuple[str, Key]:
        scheme, _, key = authorization.partition(" ")
        found = digest_of(key.strip())
        matches = [name for name, one in named.items() for digest in one.sha256 if hmac.compare_digest(found, digest)]
        if scheme.lower() != "bearer" or not matches:
            problem = "this key is unknown" if authorization else "a key is missing"
            raise AccessDenied(401, f"{problem}; send Authorization: Bearer <key>", {"www-authenticate": "Bearer"})
        return matches[0], named[matches[0]]

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
    """An address's holder: of IPv6 a /64, all of whose addresses one host has; an IPv4 one may be mapped into IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))

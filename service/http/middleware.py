"""ASGI middleware for every request.

From the outside in: request id, log line, metrics and response headers; message framing and hosts; the format of
errors; cached answers; API keys and rate limits; and the limit on bodies, whose bytes are counted as they arrive.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from anyio import CapacityLimiter, to_thread
from cachetools import TTLCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.access import AccessDenied, AccessPolicy, client_of
from service.http.caching import MAX_REQUEST_HEADER_BYTES, SECURITY_HEADERS, NotModified, known_tags, tag_of
from service.http.errors import (
    FOR_MACHINES,
    MEDIA_TYPE,
    Problem,
    fault_response,
    own_path,
    problem_response,
    title_of,
)
from service.http.monitoring import Metrics, request_id
from service.slots import Slots, current_client

logger = logging.getLogger("claimcheck.access")
BODY_HEADERS = (b"content-length", b"content-type", b"content-encoding", b"content-disposition")
FORMATTED_ERRORS = (MEDIA_TYPE, "text/html")
REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
COUNT_SECONDS, MAX_BEGUN = 2.0, 8
CACHED_SECONDS, CACHED_BYTES, CACHED_OVERHEAD_BYTES, MAX_HOST = 60.0, 32 << 20, 4096, 256
UNCACHED = frozenset({b"range", b"content-encoding", b"content-length", b"transfer-encoding"})
"""Request headers with which the cache doesn't answer: those of ranges, and of bodies, which a route may refuse."""
FRESH_SECONDS, READ_SECONDS = 0.25, 1.0
MAX_ACCEPT_BYTES = 1024  # browsers send about 150
NO_GZIP = re.compile(rb"gzip[ \t]*;[ \t]*q=0(\.0*)?[ \t]*(,|$)", re.IGNORECASE)
ADDRESS = re.compile(rb"https?://([^/]+)(/.*)?", re.IGNORECASE | re.DOTALL)


@dataclass
class Readiness:
    """Readiness of one application: it is ready when it is warm and not draining."""

    is_warm: bool = False
    is_draining: bool = False


class HttpMiddleware(ABC):
    """Base class that handles HTTP requests in `answer` and passes lifespan events on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.answer if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class RequestContextMiddleware(HttpMiddleware):
    """Outermost layer, which adds headers to every response, logs it and counts it.

    HEAD is answered as GET without the body, and `If-None-Match: *` with 304 if the resource exists.  While the service
    drains, responses close their connections.

    Most answers take the event loop less than a millisecond.  But one client with many connections could begin one on
    each of them in every iteration, and delay other requests, which take several iterations.  So after `MAX_BEGUN` in
    an iteration, requests begin one by one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, readiness: Readiness) -> None:
        self.app, self.metrics, self.readiness = ProblemDetailsMiddleware(app), metrics, readiness
        self._begun = self._waiting = 0  # in this iteration of the event loop; now
        self._slots = Slots("beginning requests", 1, max_waiting=math.inf, seconds=math.inf)

    async def _begin(self) -> None:
        if not self._begun:
            asyncio.get_running_loop().call_soon(setattr, self, "_begun", 0)
        self._begun += 1
        if self._begun > MAX_BEGUN or self._waiting:
            self._waiting += 1
            try:
                async with self._slots.hold():
                    await asyncio.sleep(0)
            finally:
                self._waiting -= 1

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        client = scope.get("client")
        id_token = request_id.set(identity)
        client_token = current_client.set(client_of(client[0]) if client else "")
        method = scope["method"]
        inner = {**scope, "method": "GET"} if method == "HEAD" else scope
        inner.setdefault("state", {})
        started, status, size = time.perf_counter(), 0, 0
        has_body = method != "HEAD"

        async def send_with_headers(message: Message) -> None:
            nonlocal status, size, has_body
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers["x-request-id"] = identity
                if status in (200, 206, 304) and (etag := inner["state"].get("etag")):
                    is_csv = headers.get("content-type", "").startswith("text/csv")
                    is_exact = is_csv and "content-encoding" not in headers
                    headers["etag"] = etag.removeprefix("W/") if is_exact else etag
                    headers.setdefault("cache-control", "no-cache")
                    if status == 200 and known_tags(Headers(scope=inner)) == ["*"]:
                        status, has_body = 304, False
                        kept = [pair for pair in headers.raw if pair[0] not in BODY_HEADERS]
                        message, headers = {**message, "status": 304, "headers": kept}, MutableHeaders(raw=kept)
                if self.readiness.is_draining:
                    headers["connection"] = "close"
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
                if not has_body:
                    message = {**message, "body": b""}
            await send(message)

        try:
            await self._begin()
            await self.app(inner, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - started
            known = getattr(inner.get("route"), "path_format", None) or "other"
            route = "/static" if own_path(inner).startswith("/static/") else known
            self.metrics.request(method, route, status, seconds, inner["state"].get("key"))
            fields = {"method": method[:16], "path": scope["path"][:200], "route": route, "status": status}
            fields |= {"bytes": size, "seconds": round(seconds, 6)}
            if key := inner["state"].get("key"):
                fields["key"] = key
            logger.info("request", extra={"fields": fields})
            request_id.reset(id_token)
            current_client.reset(client_token)


class ProblemDetailsMiddleware(HttpMiddleware):
    """Turns errors of the middleware, errors of the framework (Range, CORS) and unexpected errors into problem details.

    Other headers of the framework's errors are kept.  Unexpected errors are logged with the request's id and answered
    with 500, or with 503 if the machine is out of memory, disk space or file handles.  If the response has already
    begun, it is cut off, and the server closes the connection.
    """

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: Message | None = None
        has_begun, words = False, b""

        async def send_as_problem(message: Message) -> None:
            nonlocal held, has_begun, words
            is_error = message["type"] == "http.response.start" and message["status"] >= 400
            if is_error and not Headers(raw=message["headers"]).get("content-type", "").startswith(FORMATTED_ERRORS):
                held = message
            elif held is None:
                has_begun = True
                await send(message)
            else:
                words += message.get("body", b"")[:200]
                if not message.get("more_body", False):
                    start, held = held, None
                    headers = dict(Headers(raw=[pair for pair in start["headers"] if pair[0] not in BODY_HEADERS]))
                    said = words.decode("utf-8", "replace").strip().rstrip(".") or title_of(start["status"])
                    if size := headers.get("content-range", "").partition("/")[2]:
                        said = f"the range begins beyond the end of the file, which has {size} bytes"
                    said = said[0].lower() + said[1:]
                    problem = problem_response(Request(scope), start["status"], said, headers)
                    await problem(scope, receive, send_as_problem)

        try:
            await self.app(scope, receive, send_as_problem)
        except Exception as error:  # noqa: BLE001  (no other handler follows)
            request = Request(scope)
            if isinstance(error, Problem):
                response = problem_response(request, error.status_code, error.detail, dict(error.headers or {}))
            else:
                response = fault_response(request, error)
            if not has_begun:
                await response(scope, receive, send)


class RequestCheckMiddleware(HttpMiddleware):
    """Normalises a request's path and host, and rejects requests that no route should see.

    400: the body has two lengths, or one that its HTTP version doesn't support (RFC 9112, section 6).  A proxy in front
    may have read another body, so the connection is closed.
    431: the headers are larger than `MAX_REQUEST_HEADER_BYTES`; the server itself limits only an unfinished line.
    421: this service doesn't serve the host.  Otherwise another site's page could reach it by that site's name.
    Health and metrics are served for any host, because probes and Prometheus address a pod by its IP address.
    403: a page of another site sent the request.  Any page could make a browser send one to a service on this machine.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str], root_path: str) -> None:
        self.app, self.root_path = app, root_path
        self.hosts, self.origins = frozenset(host.lower() for host in hosts), frozenset(origins)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if address := ADDRESS.fullmatch(scope.get("raw_path") or b""):  # an absolute URL (RFC 9112, 3.2.2)
            others = [pair for pair in scope["headers"] if pair[0] != b"host"]
            path = address[2] or b"/"
            scope.update(headers=[(b"host", address[1]), *others], raw_path=path, path=unquote(path.decode("ascii")))
        if self.root_path:  # which a proxy may have removed
            path, root = scope["path"], self.root_path
            scope["root_path"], scope["path"] = root, path if f"{path}/".startswith(f"{root}/") else root + path
            if scope["path"] == root:
                scope["path"] += "/"
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            detail = "the request has a Transfer-Encoding with a Content-Length or in HTTP/1.0; send one length"
            raise Problem(400, detail, {"connection": "close"})
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_REQUEST_HEADER_BYTES:
            raise Problem(431, f"the request's headers are larger than {MAX_REQUEST_HEADER_BYTES:,} bytes")
        given = headers.get("host", "").lower()
        host = re.sub(r":\d*$", "", given)
        if not {"*", host} & self.hosts and not own_path(scope).startswith(FOR_MACHINES):
            detail = f"this service doesn't serve the host {host[:80]!r}; CLAIMCHECK_ALLOWED_HOSTS lists its hosts"
            raise Problem(421, detail)
        origin = headers.get("origin", "") if scope["method"] == "POST" else ""
        if origin and not {"*", origin} & self.origins and origin.lower().partition("://")[2] != given:
            detail = f"pages of {origin[:80]!r} may not send this; CLAIMCHECK_CORS_ORIGINS lists the allowed origins"
            raise Problem(403, detail)
        scope["headers"] = [pair for pair in scope["headers"] if not _is_ignored(*pair)]
        await self.app(scope, receive, send)


def _is_ignored(name: bytes, value: bytes) -> bool:
    """Return True for headers that routes must not see.

    Cookies: the service sets none, and FastAPI parses them for every route, in quadratic time.  A long Accept: it is
    parsed for every page and list.  A range of an unknown unit (RFC 9110, 14.2), and an Accept-Encoding that refuses
    gzip: the framework misreads both.
    """
    if name == b"range":
        return not value.lower().startswith(b"bytes=")
    if name == b"accept":
        return len(value) > MAX_ACCEPT_BYTES
    return name == b"cookie" or (name == b"accept-encoding" and NO_GZIP.search(value) is not None)


@dataclass(frozen=True)
class CachedAnswer:
    """A complete answer, compressed as it was sent; `route` is for logs and metrics."""

    route: Any
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def __len__(self) -> int:
        return CACHED_OVERHEAD_BYTES + sum(map(len, sum(self.headers, ()))) + len(self.body)


class AnswerCache(HttpMiddleware):
    """Answers a GET before routing if the same one was answered from the same content within `CACHED_SECONDS`.

    Only answers with the tag of `tag_of` are cached, because they depend on nothing else but the host and compression.
    The time limit is for files that arrive later, such as a data set's images.  When it ends, many clients may ask at
    once: those that waited for the database ask `is_known` again, and raise `KnownAnswer`.

    `read_content` reads the database's content.  A request that finds a cached answer waits for it if the last reading
    is `FRESH_SECONDS` old; usually an earlier request has begun another one by then.
    """

    def __init__(self, app: ASGIApp, *, edition: str, read_content: Callable[[], Awaitable[str]]) -> None:
        self.app, self._edition, self._read_content = app, edition, read_content
        self.cached: TTLCache[tuple[Any, ...], CachedAnswer] = TTLCache(CACHED_BYTES, CACHED_SECONDS, getsizeof=len)
        self._content, self._read_at = "", -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, is_zipped = headers.get("host", ""), "gzip" in headers.get("accept-encoding", "")
        if scope["method"] != "GET" or len(host) > MAX_HOST or any(name in UNCACHED for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        kind = scope["scheme"], *(scope.get("server") or ()), host, is_zipped
        known: Response | None = None
        start: list[tuple[bytes, bytes]] | None = None

        async def is_known() -> bool:
            nonlocal known
            etag = tag_of(scope, headers, self._edition, self._content)
            found = self.cached.get((*kind, etag))
            if found is not None and await self._is_current(self._content):
                scope["route"], scope["state"]["etag"] = found.route, etag
                known = Response(found.body)
                known.raw_headers = [*found.headers]  # other middleware adds to them
                if etag.removeprefix("W/") in known_tags(headers):
                    known = Response(None, 304, NotModified(etag).headers)
            return known is not None

        async def send_and_cache(message: Message) -> None:
            nonlocal start
            state = scope["state"]
            if known is not None:
                return
            if message["type"] == "http.response.start":
                is_tagged = message["status"] == 200 and "etag" in state and "content" in state
                start = [*message["headers"]] if is_tagged else None
            elif start is not None and not message.get("more_body") and len(message["body"]) <= CACHED_BYTES // 32:
                self._expect(state["content"])
                if state["etag"] == tag_of(scope, headers, self._edition, state["content"]):
                    self.cached[*kind, state["etag"]] = CachedAnswer(scope.get("route"), start, message["body"])
            else:
                start = None
            await send(message)

        if not await is_known():
            scope["state"]["is_known"] = is_known
            await self.app(scope, receive, send_and_cache)
        if known is not None:
            await known(scope, receive, send)

    def _expect(self, content: str) -> None:
        """Require another reading if an answer was made from content that the last reading didn't find."""
        if content != self._content:
            self._content, self._read_at = content, -math.inf
            if self._reading is not None:
                self._reading.cancel()

    async def _is_current(self, content: str) -> bool:
        """Return True if the database has this content, by a reading that is at most `FRESH_SECONDS` old."""
        arrived = time.monotonic()
        if arrived - self._read_at > FRESH_SECONDS / 2 and (self._reading is None or self._reading.done()):
            # In a new context, because the reading belongs to no client and to no trace.
            self._reading = asyncio.create_task(self._read(), context=Context())
        if arrived - self._read_at > FRESH_SECONDS and self._reading is not None:
            await asyncio.wait({self._reading}, timeout=READ_SECONDS)
        return self._content == content and arrived - self._read_at <= FRESH_SECONDS

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            self._content = await self._read_content()
            self._read_at = began
        except Exception:  # noqa: BLE001  (the routes report it)
            self._read_at = -math.inf


class KeysAndRates(HttpMiddleware):
    """Rejects inference requests without a valid key (401) or over their rate (429) before reading the body.

    Another process may have locked the file of counts, so requests are counted in a thread, one at a time.
    """

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self.app, self.policy, self._one = app, policy, CapacityLimiter(1)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            client = scope.get("client")
            try:
                given = Headers(scope=scope).get("authorization", ""), client[0] if client else ""
                if self.policy.counts.is_file:
                    async with asyncio.timeout(COUNT_SECONDS):
                        key = await to_thread.run_sync(self.policy.admit, *given, limiter=self._one)
                else:
                    key = self.policy.admit(*given)
                scope["state"]["key"] = key
            except TimeoutError:
                raise AccessDenied(503, "requests can't be counted at the moment", {"retry-after": "2"}) from None
            except AccessDenied as refused:
                scope["state"]["key"] = refused.key
                raise
        await self.app(scope, receive, send)


class BodyLimit(HttpMiddleware):
    """Limits request bodies, whether their declared length is right, wrong or absent.

    413: the body is larger than `limit` bytes.  408: it doesn't arrive within `seconds`.  415: it is compressed.
    503: the bodies in memory would exceed `together` bytes, or one client's bodies would exceed half of that.
    """

    def __init__(self, app: ASGIApp, limit: int, together: int, seconds: float) -> None:
        self.app, self.limit, self.together, self.seconds = app, limit, together, seconds
        self._bytes_by_client: Counter[str] = Counter()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if (encoding := headers.get("content-encoding", "").lower()) not in ("", "identity"):
            raise Problem(415, f"bodies with Content-Encoding {encoding[:40]!r} aren't supported; send it uncompressed")
        declared, too_large = headers.get("content-length", ""), f"the request body is larger than {self.limit:,} bytes"
        if declared.isdecimal() and int(declared[:20]) > self.limit:
            raise Problem(413, too_large)
        received, is_complete, client = 0, False, current_client.get()
        deadline = time.monotonic() + self.seconds

        async def receive_counted() -> Message:
            nonlocal received, is_complete
            if is_complete:
                return await receive()  # the next message reports a disconnect, which may come late
            try:
                async with asyncio.timeout(deadline - time.monotonic()):  # `wait_for` would create a task
                    message = await receive()
            except TimeoutError:
                raise Problem(408, f"the request body didn't arrive within {self.seconds:g} s") from None
            size = len(message.get("body", b""))
            received += size
            self._bytes_by_client[client] += size
            if received > self.limit:
                raise Problem(413, too_large)
            client_limit = max(self.limit, self.together // 2)
            if self._bytes_by_client[client] > client_limit or self._bytes_by_client.total() > self.together:
                raise Problem(503, "too many large requests are being received", {"retry-after": "2"})
            is_complete = not message.get("more_body", False)
            return message

        try:
            await self.app(scope, receive_counted, send)
        finally:
            self._bytes_by_client[client] -= received
            if not self._bytes_by_client[client]:
                del self._bytes_by_client[client]

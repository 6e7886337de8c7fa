"""Connection limits: close connections whose client sends no request, doesn't read, or doesn't speak HTTP.

Uvicorn itself would wait for such clients forever. Requests that it rejects before parsing also get problem details
here, and appear in the log and the metrics.

One client may hold at most half of the connections. `RESERVED` more serve only health probes and metrics; the oldest of
them is closed if another is needed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.http.access import client_of
from service.http.caching import MAX_REQUEST_HEADER_BYTES, SECURITY_HEADERS
from service.http.errors import FOR_MACHINES, MEDIA_TYPE, Problem, problem_of
from service.http.monitoring import Metrics
from service.settings import Settings
from service.slots import Busy, Slots, current_client

SEND_BUFFER_BYTES = 128 * 1024  # the kernel doubles it; its default buffer grows to 4 MiB
FREE_CHUNKS, BYTES_PER_CHUNK = 4096, 256
"""Chunks allowed in any body; one more is allowed for each `BYTES_PER_CHUNK` of it."""
CAN_ANSWER = (h11.IDLE, h11.SEND_RESPONSE)
HAS_ANSWERED = (h11.DONE, h11.MUST_CLOSE)
RESERVED = 32  # connections beyond the limit, for probes
FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS = 0.05, 1.0  # between interim responses to a half-closed client
PROBES = tuple(path.encode() for path in FOR_MACHINES)
PROBE_LINES = tuple(b"GET " + path for path in PROBES)
LIGHT_LINES, PARSE_SECONDS = 100, 0.005
"""Lines per packet, and parsing time per event-loop iteration, above which data goes to the fair queue."""

logger = logging.getLogger("claimcheck.access")


def protocol(settings: Settings, metrics: Metrics) -> type[H11Protocol]:
    """Return the protocol class for `uvicorn.Config(http=…)`."""
    parsing = Slots("reading requests", 1, max_waiting=math.inf, seconds=settings.head_seconds)
    attributes = {"limits": settings, "metrics": metrics, "by_client": Counter(), "reserved": {}, "parsing": parsing}
    return type("Connection", (_Connection,), attributes)


class _Parser(h11.Connection):
    """Parser that rejects bodies in tiny chunks and, if `refusal` is set, all requests except probes.

    A chunk takes as long to parse as a small request, and a thousand fit into one packet.
    """

    refusal = ""
    sent = _chunks = _bytes = 0  # bytes sent; chunks and bytes of the current body

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        data = super().send(event)
        self.sent += len(data or b"")
        return data

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if self.refusal and not event.target.startswith(PROBES):
                raise Problem(503, self.refusal, {"retry-after": "2"})
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._bytes // BYTES_PER_CHUNK:
                allowed = f"{FREE_CHUNKS:,} chunks and one more for each {BYTES_PER_CHUNK} bytes"
                raise Problem(400, f"the body has too many chunks; at most {allowed} are allowed")
        return event


class _Connection(H11Protocol):
    """Connection with the limits above; `protocol` sets the attributes that all connections share."""

    limits: ClassVar[Settings]
    metrics: ClassVar[Metrics]
    by_client: ClassVar[Counter[str | None]]
    reserved: ClassVar[dict[_Connection, None]]
    parsing: ClassVar[Slots]
    parsed_seconds: ClassVar[float] = 0.0  # in this iteration of the event loop
    conn: _Parser

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Parser(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_HEADER_BYTES)
        self._client: str | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._unread = 0  # packets in the parsing queue

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        with suppress(ValueError):  # no address
            address = ipaddress.ip_address(_address(self.client).partition("%")[0])
            is_proxy = any(address in network for network in self.limits.proxies)  # carries many clients' connections
            self._client = None if is_proxy else client_of(str(address))
        limit = self.limits.max_connections
        if self._client is not None and self.by_client[self._client] >= -(-limit // 2):
            self.conn.refusal = f"{self.by_client[self._client]:,} connections of one client are open already"
        elif self.by_client.total() >= limit:
            self.conn.refusal = f"{limit:,} connections are open already"
        if not self.conn.refusal:
            self.by_client[self._client] += 1
        else:
            self.reserved[self] = None
            if len(self.reserved) > RESERVED:
                idle = (connection for connection in self.reserved if connection.conn.their_state is h11.IDLE)
                oldest = next(idle, self)
                del self.reserved[oldest]
                oldest.transport.abort()
        self._expect_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.conn.refusal:
            self.reserved.pop(self, None)
        elif self.by_client[self._client] > 1:
            self.by_client[self._client] -= 1
        else:
            del self.by_client[self._client]
        for timer in (self._header_timer, self._read_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._read_timer is not None and not self.transport.get_write_buffer_size():
            self._read_timer.cancel()
            self._read_timer = None
        is_light = data.count(b"\n") <= LIGHT_LINES
        is_timely = self.parsed_seconds < PARSE_SECONDS or data.startswith(PROBE_LINES)
        if is_light and is_timely and not self._unread:
            self._parse(data)
            return
        self._unread += 1
        self.flow.pause_reading()
        task = self.loop.create_task(self._parse_when_idle(data))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _parse(self, data: bytes) -> None:
        sock: socket.socket | None = self.transport.get_extra_info("socket")
        if sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()  # the client has reset it, but the event loop delivers the data first
            return
        kind, began = type(self), time.perf_counter()
        if not kind.parsed_seconds:
            self.loop.call_soon(setattr, kind, "parsed_seconds", 0.0)
        super().data_received(data)
        kind.parsed_seconds += time.perf_counter() - began
        self._expect_client()

    async def _parse_when_idle(self, data: bytes) -> None:
        current_client.set(self._client or "")
        try:
            async with self.parsing.hold():
                await asyncio.sleep(0)  # handle other events first: they may be probes
                self._unread -= 1
                if not self.transport.is_closing():
                    self.flow.resume_reading()
                    self._parse(data)
        except Busy as busy:
            self._refuse(503, str(busy), {"retry-after": "2"})

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep answering a client that closed its sending side (`nc -N`)."""
        awaits_answer = bool(self._unread) or self.conn.their_state in HAS_ANSWERED
        if awaits_answer and self._probe_timer is None:
            self._probe_client()
        return awaits_answer

    def _probe_client(self, seconds: float = FIRST_PROBE_SECONDS) -> None:
        """Send interim responses until the answer starts, because a vanished client's kernel rejects them."""
        if (
            self._probe_timer is not None
            and self.conn.our_state is h11.SEND_RESPONSE
            and self.scope["http_version"] == "1.1"
        ):
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        self._probe_timer = self.loop.call_later(seconds, self._probe_client, min(2 * seconds, LAST_PROBE_SECONDS))

    def _expect_client(self) -> None:
        """Start or cancel the timeout for headers, or for the rest of a body whose request is already answered."""
        is_expected = self.conn.their_state is h11.IDLE or self._is_rest_expected()
        if not is_expected and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        if is_expected and self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self.limits.head_seconds, self._on_header_timeout)

    def _is_rest_expected(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state in HAS_ANSWERED

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except UnicodeDecodeError:
            self.send_400_response("the request's URL isn't ASCII; percent-encode it")
        except Problem as problem:
            self._refuse(problem.status_code, problem.detail, problem.headers)

    def _should_upgrade(self) -> bool:
        """Ignore upgrade requests; the inherited method would log which library to install for them."""
        return False

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed HTTP request" if msg.startswith("Invalid HTTP") else msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._probe_timer is not None and self.conn.our_state is h11.IDLE:
            self.transport.close()
        self._expect_client()
        self._expect_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def _read(self) -> int:
        """Return the bytes that the client or its kernel has read."""
        return self.conn.sent - self.transport.get_write_buffer_size()

    def _expect_reading(self) -> None:
        """Give the client `send_seconds` to read the buffered data, and more while it reads."""
        if self._read_timer is None and self.transport.get_write_buffer_size():
            since = self.loop.time(), self._read()
            self._read_timer = self.loop.call_later(self.limits.send_seconds, self._check_read_deadline, *since)

    def _check_read_deadline(self, started: float, read_before: int) -> None:
        """Abort the connection at the deadline; closing it would wait for the client."""
        more = (self._read() - read_before) / self.limits.slowest_bytes_per_second
        left = started + self.limits.send_seconds + more - self.loop.time()
        self._read_timer = None
        if left > 0:
            self._read_timer = self.loop.call_later(left, self._check_read_deadline, started, read_before)
        elif self.transport.get_write_buffer_size():
            logger.warning("an answer was not read in time", extra={"fields": {"client": _address(self.client)}})
            self.transport.abort()

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.transport.is_closing() or self._unread:
            return
        if self._is_rest_expected():
            self.transport.close()
            self._expect_reading()
        elif self.conn.their_state is h11.IDLE:
            if not self.conn.trailing_data[0]:
                self.transport.close()
                return
            detail = f"the request's headers didn't arrive within {self.limits.head_seconds:g} s"
            self._refuse(408, detail)

    def _refuse(self, status: int, detail: str, more: Mapping[str, str] | None = None) -> None:
        """Answer a missing or malformed request and close the connection."""
        if self.conn.our_state in CAN_ANSWER:
            identity, problem = uuid.uuid4().hex, problem_of(status, detail, "/")
            content = problem.model_dump_json()
            entity = {"content-type": MEDIA_TYPE, "content-length": len(content.encode()), "x-request-id": identity}
            headers = {**SECURITY_HEADERS, **entity, **(more or {}), "connection": "close"}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(f"HTTP/1.1 {status} {problem.title}\r\n{head}\r\n{content}".encode())
            fields = {"method": "", "path": "", "route": "none", "status": status, "client": _address(self.client)}
            logger.info("request", extra={"fields": fields | {"detail": detail, "request_id": identity}})
            self.metrics.request("none", "none", status, 0.0)
        self.transport.close()
        self._expect_reading()


def _address(client: tuple[str, int] | None) -> str:
    return client[0] if client else ""

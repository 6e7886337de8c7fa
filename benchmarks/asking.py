"""A single-threaded client that keeps a server busy over kept-alive connections with prepared requests."""

from __future__ import annotations

import io
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil
from PIL import Image

BOUNDARY = "b" * 24
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Load:
    """Answers per second and seconds per answer, measured by clients, and the server's CPU time per answer."""

    per_second: float
    seconds: Sequence[float]
    processor_seconds: float

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


def pngs(count: int, shape: tuple[int, int, int]) -> list[bytes]:
    """Make noise of shape [C, H, W]: time doesn't depend on image content."""
    channels, height, width = shape
    pixels = np.random.default_rng(0).integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    buffers = [io.BytesIO() for _ in pixels]
    for image, buffer in zip(pixels, buffers, strict=True):
        Image.fromarray(image.squeeze()).save(buffer, "PNG")
    return [buffer.getvalue() for buffer in buffers]


def form(field: str, *contents: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="a.png"\r\n\r\n'.encode()
    return b"".join(head + content + b"\r\n" for content in contents) + f"--{BOUNDARY}--\r\n".encode()


def processor_seconds(pid: int) -> float:
    """Return the CPU seconds used so far by a process and its children."""
    server = psutil.Process(pid)
    return sum(sum(member.cpu_times()[:2]) for member in (server, *server.children(recursive=True)))


class Asker:
    """A kept-alive connection that sends the next request as soon as the previous one is answered."""

    def __init__(self, port: int, requests: Sequence[bytes], first: int) -> None:
        self.requests, self.number, self.answer, self.asked = requests, first, b"", 0.0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        self.answer, self.asked = b"", time.perf_counter()
        self.socket.sendall(self.requests[self.number % len(self.requests)])
        self.number += 1

    def is_answered(self) -> bool:
        """Read the bytes that have arrived; return True if the answer is complete."""
        received = self.socket.recv(1 << 16)
        assert received, "the server closed the connection"
        self.answer += received
        head, end, body = self.answer.partition(b"\r\n\r\n")
        if not end:
            return False
        status, *fields = head.lower().split(b"\r\n")
        assert status.split()[1] == b"200", head
        length = next(field for field in fields if field.startswith(b"content-length:"))
        return len(body) >= int(length.partition(b":")[2])


def load(pid: int, port: int, path: str, bodies: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Send requests over several connections, each waiting for its answer before the next request.

    One thread with prepared requests uses little of the cores that client and server share.
    """
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: "
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    taken: list[float] = []
    with selectors.DefaultSelector() as selector:
        askers = [Asker(port, requests, place) for place in range(connections)]
        for asker in askers:
            selector.register(asker.socket, selectors.EVENT_READ, asker)
        started, worked = time.perf_counter(), processor_seconds(pid)
        for asker in askers:
            asker.ask()
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.is_answered():
                    continue
                now = time.perf_counter()
                taken.append(now - key.data.asked)
                if now < started + seconds:
                    key.data.ask()
                else:
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
    per_second = len(taken) / (time.perf_counter() - started)
    return Load(per_second, taken, (processor_seconds(pid) - worked) / len(taken))

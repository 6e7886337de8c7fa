"""Goals: at 32 connections at least 0.7 of the rate that decoding and model reach without a server, and at least 1.3
times LitServe; at one connection at most 2 ms more than decoding and model.  What these can be at best is in
docs/decisions/0055-what-a-lone-request-pays.md.

A released MNIST model answers PNG uploads over kept-alive connections.  Model alone and peers take turns with the
service, round by round, all on the same cores with the single client thread.  LitServe takes part where it is installed
(`pip install litserve`), as it is no dependency of ours, with the same model: as its documentation starts it, and with
what makes it faster: a worker a core with one thread each, and besides a process a core that speaks HTTP.
Run: python -m benchmarks serving
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.server import free_port, server
from benchmarks.timing import Line, milliseconds
from service.inference.workers import cores_here
from stages.checkpoint.predictor import Predictor, load_predictor
from stages.images import decode_image
from stages.memory import keep_freed_memory
from stages.recording import record

ARM = "ninformer"
MODEL = Path(f"data/models/ninformer-mnist.{ARM}.0.safetensors")
CONNECTIONS = (1, 32)
BOUNDARY = "b" * 24
PEERS = {
    "LitServe": ("", "", {}),
    "LitServe, a worker a core": (f", workers_per_device={cores_here()}", "", {"OMP_NUM_THREADS": "1"}),
    "LitServe, a worker and an HTTP process a core": (
        f", workers_per_device={cores_here()}",
        f", num_api_servers={cores_here()}",
        {"OMP_NUM_THREADS": "1"},
    ),
}
"""By name: options of the server and of its start, and its environment."""
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Load:
    """Measured by clients: answers per second, and seconds per answer; by the server: processor time per answer."""

    per_second: float
    seconds: Sequence[float]
    processor_seconds: float

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


def pngs(count: int) -> list[bytes]:
    """MNIST-shaped noise: time doesn't depend on the content of the images."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    buffers = [io.BytesIO() for _ in pixels]
    for image, buffer in zip(pixels, buffers, strict=True):
        Image.fromarray(image).save(buffer, "PNG")
    return [buffer.getvalue() for buffer in buffers]


def form(field: str, content: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="a.png"\r\n\r\n'
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def processor_seconds(pid: int) -> float:
    """Processor seconds so far of a process and those that it started."""
    server = psutil.Process(pid)
    return sum(sum(member.cpu_times()[:2]) for member in (server, *server.children(recursive=True)))


class Asker:
    """One kept-alive connection that sends the next request as soon as it is answered."""

    def __init__(self, port: int, requests: Sequence[bytes], first: int) -> None:
        self.requests, self.number, self.answer, self.asked = requests, first, b"", 0.0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        self.answer, self.asked = b"", time.perf_counter()
        self.socket.sendall(self.requests[self.number % len(self.requests)])
        self.number += 1

    def is_answered(self) -> bool:
        """Read the bytes that have arrived."""
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
    """Send requests over this many connections at once, each waiting for its answer before the next request.

    One thread and ready-made requests: clients share the server's cores, so they should take little of them.
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


def raw(predictor: Predictor, images: Sequence[bytes], batch: int, seconds: float, threads: int) -> float:
    """Images per second that are decoded and answered, batch after batch, without a server."""
    torch.set_num_threads(threads)
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        chosen = [images[(done + place) % len(images)] for place in range(batch)]
        predictor.probabilities(np.stack([decode_image(image, predictor.contract.shape) for image in chosen]))
        done += batch
    return done / elapsed


ALONE = """
import sys
from benchmarks.bench_serving import MODEL, pngs, raw
from stages.checkpoint.predictor import load_predictor
from stages.memory import keep_freed_memory
keep_freed_memory()
images, predictor = pngs(64), load_predictor(MODEL)
raw(predictor, images, 16, 1.0, 1)
print("ready", flush=True)
for line in sys.stdin:
    print(raw(predictor, images, 16, float(line), 1), flush=True)
"""


class AloneTogether:
    """Decoding and model in as many single-threaded processes as there are cores: the best these cores can give."""

    def __init__(self) -> None:
        cores = cores_here()
        command = [sys.executable, "-c", ALONE]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(cores)
        ]
        for process in self.processes:
            self._read(process)

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def per_second(self, seconds: float) -> float:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return sum(float(self._read(process)) for process in self.processes)

    def end(self) -> None:
        for process in self.processes:
            process.communicate()


def answer_until_closed(connection: Connection) -> None:
    """Decoding and model, an image at a time, for another process: the least that a server has around them."""
    keep_freed_memory()
    torch.set_num_threads(1)
    predictor = load_predictor(MODEL)
    with suppress(EOFError):
        while True:
            images = np.stack([decode_image(connection.recv_bytes(), predictor.contract.shape)])
            connection.send_bytes(predictor.probabilities(images).tobytes())


@contextmanager
def by_pipe() -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(target=answer_until_closed, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield connection
    finally:
        connection.close()
        process.join()


def asked(connection: Connection, images: Sequence[bytes], seconds: float) -> list[float]:
    """Seconds of each answer, one after another."""
    taken: list[float] = []
    started = time.perf_counter()
    while (before := time.perf_counter()) < started + seconds:
        connection.send_bytes(images[len(taken) % len(images)])
        connection.recv_bytes()
        taken.append(time.perf_counter() - before)
    return taken


@dataclass(frozen=True)
class Side:
    """A server under load; it is stopped while another one is measured, as an idle server may poll."""

    name: str
    pid: int
    port: int
    path: str
    bodies: Sequence[bytes]
    found: dict[int, list[Load]]

    def measure(self, seconds: float) -> None:
        os.killpg(self.pid, signal.SIGCONT)
        for connections in CONNECTIONS:
            seen = load(self.pid, self.port, self.path, self.bodies, connections, seconds)
            self.found.setdefault(connections, []).append(seen)
        os.killpg(self.pid, signal.SIGSTOP)

    def middle(self, connections: int) -> Load:
        """The median over rounds of each number; the times of all rounds."""
        loads = self.found[connections]
        return Load(
            statistics.median(seen.per_second for seen in loads),
            [second for seen in loads for second in seen.seconds],
            statistics.median(seen.processor_seconds for seen in loads),
        )


@contextmanager
def ours(images: Sequence[bytes], folder: Path) -> Iterator[Side]:
    port, database = free_port(), folder / "results.db"
    path = f"/predict?checkpoint=ninformer-mnist.{ARM}.0&top_k=1"
    record(Path(), str(database), evidence_only=True)
    command = [sys.executable, "-m", "service", "--port", str(port)]
    with server(command, port, "/health/ready", CLAIMCHECK_DATABASE=f"sqlite:///{database}") as pid:
        yield warm(Side("ours", pid, port, path, [form("file", image) for image in images], {}))


def warm(side: Side) -> Side:
    load(side.pid, side.port, side.path, side.bodies, 32, 1.0)
    os.killpg(side.pid, signal.SIGSTOP)
    return side


LITSERVE = """
import io, sys, litserve, numpy
from pathlib import Path
from stages.checkpoint.predictor import load_predictor
from stages.images import decode_image

class Api(litserve.LitAPI):
    def setup(self, device):
        self.predictor = load_predictor(Path(sys.argv[1]))
    def decode_request(self, request):
        return decode_image(request["request"].file.read(), self.predictor.contract.shape)
    def batch(self, inputs):
        return numpy.stack(inputs)
    def predict(self, images):
        return self.predictor.probabilities(images)
    def unbatch(self, output):
        return list(output)
    def encode_response(self, row):
        return {"class": int(row.argmax()), "probability": float(row.max())}

if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=32, batch_timeout=0.003), accelerator="cpu"SERVER)
    server.run(port=int(sys.argv[2]), generate_client_file=FalseSTART)
"""


@contextmanager
def litserve(images: Sequence[bytes], folder: Path, name: str) -> Iterator[Side]:
    port = free_port()
    script = folder / f"{port}.py"
    of_server, of_start, environment = PEERS[name]
    script.write_text(LITSERVE.replace("SERVER)", f"{of_server})").replace("START)", f"{of_start})"))
    command = [sys.executable, str(script), str(MODEL.resolve()), str(port)]
    with server(command, port, "/health", PYTHONPATH=str(Path().resolve()), **environment) as pid:
        yield warm(Side(name, pid, port, "/predict", [form("request", image) for image in images], {}))


def show(side: Side) -> None:
    for connections in CONNECTIONS:
        seen = side.middle(connections)
        times = ", ".join(f"p{round(100 * share)} {1000 * seen.quantile(share):.1f}" for share in (0.5, 0.95, 0.99))
        print(f"  {side.name}, {connections:2} connections: {seen.per_second:7.1f} requests/s; {times} ms")
        print(f"    processor time of a request: {milliseconds(seen.processor_seconds)}")


def faster(beside: str, peers: Mapping[str, float], ours: float, goal: float) -> Line:
    """Against the fastest of `peers` (answers per second by name), which comes first."""
    best_first = sorted(peers.items(), key=lambda peer: -peer[1])
    return Line(
        what=f"PNG uploads, 32 connections, beside {beside}, wall",
        peer="; ".join(f"{name}: {rate:.0f}/s" for name, rate in best_first),
        ours=f"{ours:.0f}/s",
        value=ours / best_first[0][1],
        goal=goal,
    )


def measure(seconds: float = 3.0, rounds: int = 5) -> list[Line]:
    images, predictor = pngs(64), load_predictor(MODEL)
    raw(predictor, images, 32, 1.0, cores_here())
    alone: dict[int, list[float]] = {connections: [] for connections in CONNECTIONS}
    together: list[float] = []
    piped: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = AloneTogether()
        stack.callback(processes.end)
        pipe = stack.enter_context(by_pipe())
        asked(pipe, images, 1.0)
        sides = [stack.enter_context(ours(images, folder))]
        if importlib.util.find_spec("litserve") is None:
            print("  LitServe is not installed: not compared")
        else:
            sides += [stack.enter_context(litserve(images, folder, name)) for name in PEERS]
        for _ in range(rounds):
            for batch, found in alone.items():
                threads = 1 if batch == 1 else cores_here()  # one image is answered sooner by one
                found.append(raw(predictor, images, batch, seconds, threads))
            together.append(processes.per_second(seconds))
            piped += asked(pipe, images, seconds)
            for side in sides:
                side.measure(seconds)
        for side in sides:
            os.killpg(side.pid, signal.SIGCONT)
            show(side)
    return lines(
        sides,
        {batch: statistics.median(found) for batch, found in alone.items()},
        statistics.median(together),
        statistics.median(piped),
    )


def lines(sides: Sequence[Side], alone: Mapping[int, float], together: float, piped: float) -> list[Line]:
    busy, one = sides[0].middle(32).per_second, statistics.median(sides[0].middle(1).seconds)
    others = {side.name: side.middle(32).per_second for side in sides[1:]}
    found = [
        faster("no server", {"decoding and model alone": alone[32], "a process a core": together}, busy, 0.7),
        Line(
            what="PNG uploads, 1 connection, wall",
            peer=f"decoding and model alone: {1000 / alone[1]:.2f} ms; asked by a pipe: {1000 * piped:.2f} ms",
            ours=f"{1000 * one:.2f} ms",
            value=1000 * (one - 1 / alone[1]),
            goal=2.0,
            at_most=True,
            unit="ms more",
        ),
    ]
    return [*found, faster("LitServe", others, busy, 1.3)] if others else found

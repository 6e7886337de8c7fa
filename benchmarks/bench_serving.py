"""Goals: at 32 connections at least 0.7 of what decoding and model reach without a server, and at least 1.3 times
LitServe; at one connection at most 2 ms more than decoding and model.

A released MNIST model answers PNG uploads over kept-alive connections, the server in a process of its own; model alone
and peer run in the same call.  LitServe takes part where it is installed (`pip install litserve`), as it is no
dependency of ours.  Run: python -m benchmarks serving
"""

from __future__ import annotations

import http.client
import importlib.util
import io
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.timing import Line, milliseconds
from stages.checkpoint import Predictor, load_predictor
from stages.images import decode_image
from stages.recording import record

ARM = "ninformer"
MODEL = Path(f"data/models/ninformer-mnist.{ARM}.0.safetensors")
CONNECTIONS = (1, 8, 32)
BOUNDARY = "b" * 24
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass(frozen=True)
class Load:
    """What clients saw: answers a second, and seconds of each answer; what the server's own process worked for one.

    LitServe's model has a process of its own, which isn't counted.
    """

    per_second: float
    seconds: Sequence[float]
    processor_seconds: float

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


def pngs(count: int) -> list[bytes]:
    """MNIST-shaped noise: time doesn't depend on what is in the images."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    buffers = [io.BytesIO() for _ in pixels]
    for image, buffer in zip(pixels, buffers, strict=True):
        Image.fromarray(image).save(buffer, "PNG")
    return [buffer.getvalue() for buffer in buffers]


def form(field: str, content: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="a.png"\r\n\r\n'
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(command: Sequence[str], port: int, ready: str, **environment: str) -> Iterator[int]:
    """Its process id, once it is ready."""
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(1200):
            assert process.poll() is None, f"{command} ended"
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", ready)
                if connection.getresponse().status == 200:
                    break
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def processor_seconds(pid: int) -> float:
    """Of a process and all its threads so far, as Linux counts it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(pid: int, port: int, path: str, bodies: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Ask over so many connections at once, each waiting for its answer before it asks again."""
    taken: list[float] = []
    until = time.perf_counter() + seconds

    def ask(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        number = first
        while time.perf_counter() < until:
            before = time.perf_counter()
            connection.request("POST", path, bodies[number % len(bodies)], HEADERS)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
            taken.append(time.perf_counter() - before)
            number += 1
        connection.close()

    started, worked = time.perf_counter(), processor_seconds(pid)
    clients = [threading.Thread(target=ask, args=(place,)) for place in range(connections)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    per_second = len(taken) / (time.perf_counter() - started)
    return Load(per_second, taken, (processor_seconds(pid) - worked) / len(taken))


@dataclass(frozen=True)
class Raw:
    """Decoding and model, one after the other in one process: images a second, processor seconds of an image."""

    per_second: float
    processor_seconds: float


def raw(predictor: Predictor, images: Sequence[bytes], batch: int, seconds: float) -> Raw:
    done, started, worked = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < seconds:
        chosen = [images[(done + place) % len(images)] for place in range(batch)]
        predictor.probabilities(np.stack([decode_image(image, predictor.contract.shape) for image in chosen]))
        done += batch
    return Raw(done / elapsed, (time.process_time() - worked) / done)


def ours(images: Sequence[bytes], seconds: float) -> tuple[dict[int, Load], float]:
    """Load by connections, and the mean number of images in a pass at most connections."""
    port = free_port()
    path = f"/predict?checkpoint=ninformer-mnist.{ARM}.0&top_k=1"
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/results.db"
        record(Path(), database, evidence_only=True)
        command = [sys.executable, "-m", "service", "--port", str(port)]
        with server(command, port, "/health/ready", CLAIMCHECK_DATABASE=f"sqlite:///{database}") as pid:
            bodies = [form("file", image) for image in images]
            load(pid, port, path, bodies, 4, 1.0)
            found = {}
            for connections in CONNECTIONS:
                before = passes(port)
                found[connections] = load(pid, port, path, bodies, connections, seconds)
            after = passes(port)
    return found, (after[0] - before[0]) / max(after[1] - before[1], 1)


def passes(port: int) -> tuple[float, float]:
    """Images and passes so far."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(values["claimcheck_pass_images_sum"]), float(values["claimcheck_pass_images_count"])


LITSERVE = """
import io, sys, litserve, numpy
from pathlib import Path
from stages.checkpoint import load_predictor
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
    server = litserve.LitServer(Api(max_batch_size=32, batch_timeout=0.003), accelerator="cpu")
    server.run(port=int(sys.argv[2]), generate_client_file=False)
"""


def litserve(images: Sequence[bytes], seconds: float) -> dict[int, Load]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "peer.py"
        script.write_text(LITSERVE)
        command = [sys.executable, str(script), str(MODEL.resolve()), str(port)]
        with server(command, port, "/health", PYTHONPATH=str(Path().resolve())) as pid:
            bodies = [form("request", image) for image in images]
            load(pid, port, "/predict", bodies, 4, 1.0)
            return {count: load(pid, port, "/predict", bodies, count, seconds) for count in CONNECTIONS}


def show(name: str, found: dict[int, Load]) -> None:
    for connections, seen in found.items():
        times = ", ".join(f"p{round(100 * share)} {1000 * seen.quantile(share):.1f}" for share in (0.5, 0.95, 0.99))
        print(f"  {name}, {connections:2} connections: {seen.per_second:7.1f} requests/s; {times} ms")
        print(f"    processor time of a request: {milliseconds(seen.processor_seconds)}")


def against_raw(found: dict[int, Load], alone: dict[int, Raw]) -> list[Line]:
    busy, one = found[32], found[1]
    return [
        Line(
            what="PNG uploads, 32 connections, wall",
            peer=f"decoding and model alone: {alone[32].per_second:.0f} images/s",
            ours=f"{busy.per_second:.0f} requests/s",
            value=busy.per_second / alone[32].per_second,
            goal=0.7,
        ),
        Line(
            what="PNG uploads, 32 connections",
            peer=f"decoding and model alone: {milliseconds(alone[32].processor_seconds)}",
            ours=milliseconds(busy.processor_seconds),
            value=alone[32].processor_seconds / busy.processor_seconds,
            goal=0.7,
        ),
        Line(
            what="PNG uploads, 1 connection, wall",
            peer=f"decoding and model alone: {1000 / alone[1].per_second:.2f} ms",
            ours=f"{1000 * statistics.median(one.seconds):.2f} ms",
            value=1000 * (statistics.median(one.seconds) - 1 / alone[1].per_second),
            goal=2.0,
            at_most=True,
            unit="ms more",
        ),
    ]


def measure(seconds: float = 5.0) -> list[Line]:
    images = pngs(64)
    predictor = load_predictor(MODEL)
    raw(predictor, images, 1, 1.0)
    alone = {batch: raw(predictor, images, batch, seconds) for batch in CONNECTIONS}
    for batch, seen in alone.items():
        worked = milliseconds(seen.processor_seconds)
        print(
            f"  decoding and model, batches of {batch:2}: {seen.per_second:7.1f} images/s; {worked} of processor time"
        )
    found, images_a_pass = ours(images, seconds)
    show("ours", found)
    print(f"  {images_a_pass:.1f} images a pass at 32 connections")
    lines = against_raw(found, alone)
    if importlib.util.find_spec("litserve") is None:
        print("  LitServe is not installed: not compared")
        return lines
    peer = litserve(images, seconds)
    show("LitServe", peer)
    against = f"LitServe: {peer[32].per_second:.0f} requests/s"
    ratio = found[32].per_second / peer[32].per_second
    busy = f"{found[32].per_second:.0f} requests/s"
    return [*lines, Line(what="PNG uploads, 32 connections, wall", peer=against, ours=busy, value=ratio, goal=1.3)]

"""Goals: at 32 connections, 0.7 of the rate without a server and 1.3 times LitServe's; at one, 2 ms overhead.

The rate and time without a server are those of decoding and model alone; docs/decisions.md#0055 explains the limits.

Each released model answers PNG uploads over kept-alive connections; the first model also over a single connection. The
service, the model alone and peers take turns on the same cores, which the client's one thread shares. LitServe, which
we don't depend on, takes part if installed (`pip install litserve`): with its documented defaults, and tuned with one
single-threaded worker and one HTTP process per core.
Run: python -m benchmarks serving
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.asking import Load, form, load, pngs
from benchmarks.server import free_port, server
from benchmarks.timing import Line, milliseconds
from service.inference.workers import cores_here
from stages.checkpoint.predictor import Predictor, load_predictor
from stages.images import decode_image
from stages.recording.builder import record

MODELS = (
    "ninformer-mnist.ninformer.0",
    "ninformer-mnist.local-vit.0",
    "dac-resnet-cifar10.resnet20-v1.0",
    "dac-resnet-cifar10.dac-resnet20-v1.0",
)
MANY = 32
"""Connections at once."""
PEERS = {
    "LitServe": ("", "", {}),
    "LitServe, worker per core": (f", workers_per_device={cores_here()}", "", {"OMP_NUM_THREADS": "1"}),
    "LitServe, worker and HTTP process per core": (
        f", workers_per_device={cores_here()}",
        f", num_api_servers={cores_here()}",
        {"OMP_NUM_THREADS": "1"},
    ),
}
"""Options of the server, options of its start, and environment, by name."""


def file_of(model: str) -> Path:
    return Path(f"data/models/{model}.safetensors")


def raw(predictor: Predictor, images: Sequence[bytes], batch: int, seconds: float, threads: int) -> float:
    """Return images per second, decoded and answered in batches without a server."""
    torch.set_num_threads(threads)
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        chosen = [images[(done + place) % len(images)] for place in range(batch)]
        predictor.probabilities(np.stack([decode_image(image, predictor.contract.shape) for image in chosen]))
        done += batch
    return done / elapsed


ALONE = """
import sys
from benchmarks.asking import pngs
from benchmarks.bench_serving import file_of, raw
from stages.checkpoint.predictor import load_predictor
from stages.device import keep_freed_memory
keep_freed_memory()
predictor = load_predictor(file_of(sys.argv[1]))
images = pngs(64, predictor.contract.shape)
raw(predictor, images, 16, 1.0, 1)
print("ready", flush=True)
for line in sys.stdin:
    print(raw(predictor, images, 16, float(line), 1), flush=True)
"""


class AloneTogether:
    """Decode and predict in one single-threaded process per core: the best rate of these cores."""

    def __init__(self, model: str) -> None:
        cores = cores_here()
        command = [sys.executable, "-c", ALONE, model]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
            for _ in range(cores)
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


@dataclass(frozen=True)
class Side:
    """A server under load, suspended while others are measured, because even idle servers may poll."""

    name: str
    pid: int
    port: int
    path: str
    bodies: Sequence[bytes]
    found: dict[int, list[Load]]

    def measure(self, seconds: float, at_once: Sequence[int]) -> None:
        os.killpg(self.pid, signal.SIGCONT)
        for connections in at_once:
            seen = load(self.pid, self.port, self.path, self.bodies, connections, seconds)
            self.found.setdefault(connections, []).append(seen)
        os.killpg(self.pid, signal.SIGSTOP)

    def middle(self, connections: int) -> Load:
        """Return the median of each number over rounds, and the times of all rounds."""
        loads = self.found[connections]
        return Load(
            statistics.median(seen.per_second for seen in loads),
            [second for seen in loads for second in seen.seconds],
            statistics.median(seen.processor_seconds for seen in loads),
        )


@contextmanager
def ours(model: str, images: Sequence[bytes], folder: Path) -> Iterator[Side]:
    port, database = free_port(), folder / "results.db"
    path = f"/predict?checkpoint={model}&top_k=1"
    record(Path(), str(database), evidence_only=True)
    command = [sys.executable, "-m", "service", "--port", str(port)]
    # otherwise its watchdog would end it while suspended
    settings = {"CLAIMCHECK_DATABASE": f"sqlite:///{database}", "CLAIMCHECK_STALL_SECONDS": "600"}
    with server(command, port, "/health/ready", **settings) as pid:
        yield warm(Side("ours", pid, port, path, [form("file", image) for image in images], {}))


def warm(side: Side) -> Side:
    load(side.pid, side.port, side.path, side.bodies, MANY, 1.0)
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
def litserve(model: str, images: Sequence[bytes], folder: Path, name: str) -> Iterator[Side]:
    port = free_port()
    script = folder / f"{port}.py"
    of_server, of_start, environment = PEERS[name]
    script.write_text(LITSERVE.replace("SERVER)", f"{of_server})").replace("START)", f"{of_start})"), encoding="utf-8")
    command = [sys.executable, str(script), str(file_of(model).resolve()), str(port)]
    with server(command, port, "/health", PYTHONPATH=str(Path().resolve()), **environment) as pid:
        yield warm(Side(name, pid, port, "/predict", [form("request", image) for image in images], {}))


def show(side: Side) -> None:
    for connections in side.found:
        seen = side.middle(connections)
        times = ", ".join(f"p{round(100 * share)} {1000 * seen.quantile(share):.1f}" for share in (0.5, 0.95, 0.99))
        print(f"  {side.name}, {connections:2} connections: {seen.per_second:7.1f} requests/s; {times} ms")
        print(f"    processor time of a request: {milliseconds(seen.processor_seconds)}")


def faster(model: str, against: str, peers: Mapping[str, float], ours: float, goal: float) -> Line:
    """Compare with the fastest of `peers` (answers per second by name)."""
    best = max(peers, key=lambda name: peers[name])
    return Line(
        what=f"PNG uploads to {model}, {MANY} connections, against {against}",
        peer=f"{best}: {peers[best]:.0f}/s",
        ours=f"{ours:.0f}/s",
        value=ours / peers[best],
        goal=goal,
    )


def measure(seconds: float = 3.0, rounds: int = 5) -> list[Line]:
    if importlib.util.find_spec("litserve") is None:
        print("  LitServe is not installed: not compared")
    found = [asked_at_once(model, seconds, rounds, (1, MANY) if model == MODELS[0] else (MANY,)) for model in MODELS]
    return [line for lines in found for line in lines]


def asked_at_once(model: str, seconds: float, rounds: int, at_once: Sequence[int]) -> list[Line]:
    """Measure one model over each of these numbers of connections."""
    predictor = load_predictor(file_of(model))
    images = pngs(64, predictor.contract.shape)
    raw(predictor, images, MANY, 1.0, cores_here())
    alone: dict[int, list[float]] = {connections: [] for connections in at_once}
    together: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = AloneTogether(model)
        stack.callback(processes.end)
        sides = [stack.enter_context(ours(model, images, folder))]
        if importlib.util.find_spec("litserve") is not None:
            sides += [stack.enter_context(litserve(model, images, folder, name)) for name in PEERS]
        for _ in range(rounds):
            for batch, rates in alone.items():
                threads = 1 if batch == 1 else cores_here()  # a single thread answers one image sooner
                rates.append(raw(predictor, images, batch, seconds, threads))
            together.append(processes.per_second(seconds))
            for side in sides:
                side.measure(seconds, at_once)
        for side in sides:
            os.killpg(side.pid, signal.SIGCONT)
            show(side)
    rates_alone = {batch: statistics.median(rates) for batch, rates in alone.items()}
    lines = at_many(model, sides, rates_alone[MANY], statistics.median(together))
    return [*lines, lone(model, sides[0], rates_alone[1])] if 1 in at_once else lines


def at_many(model: str, sides: Sequence[Side], alone: float, together: float) -> list[Line]:
    """Compare rates per second with no server, and with LitServe if it took part."""
    busy = sides[0].middle(MANY).per_second
    others = {side.name: side.middle(MANY).per_second for side in sides[1:]}
    bare = {"decoding and model alone": alone, "process per core": together}
    found = [faster(model, "no server", bare, busy, 0.7)]
    if not others:
        return found
    most = max(bare.values()) / max(others.values())
    return [*found, dataclasses.replace(faster(model, "LitServe", others, busy, 1.3), most=most)]


def lone(model: str, ours: Side, alone: float) -> Line:
    """Compare one connection with the model `alone` (images per second)."""
    one = statistics.median(ours.middle(1).seconds)
    return Line(
        what=f"PNG uploads to {model}, 1 connection",
        peer=f"decoding and model alone: {1000 / alone:.2f} ms",
        ours=f"{1000 * one:.2f} ms",
        value=1000 * (one - 1 / alone),
        goal=2.0,
        at_most=True,
        unit=" ms more",
    )

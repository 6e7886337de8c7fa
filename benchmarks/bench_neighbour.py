"""Goal: 99 % of a client's answers come within 0.25 s while another client keeps 16 connections busy.

The busy client sends forms of 32 images to four models as fast as they are answered; the client sends one image every
30 ms. This alternates with the client alone, round by round. The clients share the server's cores.
Run: python -m benchmarks neighbour
"""

from __future__ import annotations

import http.client
import os
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.asking import CONTENT_TYPE, form, pngs
from benchmarks.bench_serving import MODELS, ours
from benchmarks.timing import Line

BUSY, GREEDY, POLITE = 16, "127.0.0.2", "127.0.0.3"
PAUSE_SECONDS = 0.03


def answer(port: int, client: str, path: str, body: bytes) -> tuple[int, float]:
    """Return status and seconds."""
    begun = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(client, 0))) as connection:
        connection.request("POST", path, body, {"Content-Type": CONTENT_TYPE})
        response = connection.getresponse()
        response.read()
    return response.status, time.perf_counter() - begun


def ask_politely(port: int, body: bytes, until: float) -> list[float]:
    """Return the seconds of each answer."""
    taken = []
    while time.perf_counter() < until:
        status, seconds = answer(port, POLITE, f"/predict?checkpoint={MODELS[1]}&top_k=1", body)
        assert status == 200, status
        taken.append(seconds)
        time.sleep(PAUSE_SECONDS)
    return taken


def measure(seconds: float = 10.0, rounds: int = 5) -> list[Line]:
    images = pngs(32, (3, 32, 32))
    many, greedy = form("file", *images), "/predict?" + "&".join(f"checkpoint={model}" for model in MODELS)
    alone: list[float] = []
    disturbed: list[float] = []
    statuses = Counter[int]()
    with tempfile.TemporaryDirectory() as folder, ours(MODELS[1], images, Path(folder)) as side:
        os.killpg(side.pid, signal.SIGCONT)  # `ours` has suspended it
        for _ in range(rounds):
            alone += ask_politely(side.port, form("file", images[0]), time.perf_counter() + seconds)
            until = time.perf_counter() + seconds

            def keep_busy(until: float = until) -> None:
                while time.perf_counter() < until:
                    statuses[answer(side.port, GREEDY, greedy, many)[0]] += 1

            with ThreadPoolExecutor(BUSY) as others:
                waiting = [others.submit(keep_busy) for _ in range(BUSY)]
                disturbed += ask_politely(side.port, form("file", images[0]), until)
            for future in waiting:
                future.result()  # a failed client would leave the server idle
    print(f"  the other client's answers: {dict(statuses)}")
    slowest_alone, slowest = (float(np.quantile(taken, 0.99)) for taken in (alone, disturbed))
    return [
        Line(
            what=f"PNG uploads to {MODELS[1]}, slowest 1 % next to a client of {BUSY} connections",
            peer=f"without that client: {1000 * slowest_alone:.0f} ms",
            ours=f"{1000 * slowest:.0f} ms",
            value=slowest,
            goal=0.25,
            at_most=True,
            unit=" s",
        )
    ]

"""A repeated mix of requests of users and attackers, and its effect on the service's processes.

Every request has an expected response; unexpected responses are recorded.
"""

import http.client
import json
import random
import re
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

import numpy as np
import psutil

from tests.service.conftest import png
from tests.service.hostile_images import encode, hostile_images, picture
from tests.service.running import Running
from tests.service.test_hostile import NAMES, TENSOR, forms

BOUNDARY = "m" * 24
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
VIT, MIXER = "ninformer-cifar100.vit.0", "ninformer-cifar100.mlp-mixer.0"
INFER = "/v2/models/ninformer-cifar100.vit/infer"
LISTS = ("runs?limit=5", "claims?limit=3", "checkpoints", "experiments", "papers", "datasets", "verdicts")
IDLE_SECONDS = 2.0  # the server closes connections after 5 idle seconds
PAGES = ("/", "/docs", "/papers/ninformer", "/claims/ninformer.table2.cifar100.vit", "/compare?format=csv", "/metrics")


@dataclass(frozen=True)
class Ask:
    """A request with its expected status, counted under `kind`."""

    kind: str
    path: str
    status: int
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


def form(*contents: bytes) -> bytes:
    head = 'Content-Disposition: form-data; name="file"; filename="a.png"'
    parts = [f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for content in contents]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def upload(kind: str, query: str, status: int, *contents: bytes, accept: str = "*/*") -> Ask:
    return Ask(kind, f"/predict?{query}", status, form(*contents), {"Content-Type": MULTIPART, "Accept": accept})


def tensor(*, is_binary: bool) -> Ask:
    if not is_binary:
        return Ask("OIP", INFER, 200, json.dumps({"inputs": [TENSOR]}).encode(), {"Content-Type": "application/json"})
    raw = bytes(2 * 3072)
    parameters = {"binary_data_size": len(raw)}
    described = {"name": "image", "datatype": "UINT8", "shape": [2, 3, 32, 32], "parameters": parameters}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return Ask("OIP", INFER, 200, head + raw, headers)


def people(seed: int, run_key: str) -> Iterator[Ask]:
    """Return requests of ordinary users; the last one's model has weights that the test has removed."""
    photo = encode("JPEG", picture(size=(64, 48)).resize((2000, 1500)), quality=20)
    yield upload("image", f"checkpoint={VIT}", 200, png(seed))
    yield upload("photo", f"checkpoint={MIXER}", 200, photo)
    yield upload("side by side", "dataset=cifar100", 200, png(seed), png(seed + 1), accept="text/html")
    yield tensor(is_binary=False)
    yield tensor(is_binary=True)
    yield from (Ask("list", f"/api/v1/{path}", 200) for path in LISTS)
    yield from (Ask("page", path, 200) for path in PAGES)
    yield Ask("page", f"/runs/{run_key}", 200)
    yield Ask("list", f"/api/v1/runs/{run_key}/trail", 200)
    yield upload("weights are gone", "checkpoint=ninformer-cifar10.vit.0", 503, png(seed))


def attackers() -> list[Ask]:
    images = [upload("hostile image", f"checkpoint={VIT}", case.status, case.content) for case in hostile_images()]
    path = f"/predict?checkpoint={VIT}"
    bodies = [
        Ask("hostile form", path, case.status, case.content, {"Content-Type": case.content_type, **case.headers})
        for case in forms()
        if not re.search(r"[^ -~]", case.content_type)
    ]
    names = [Ask("hostile name", f"/api/v1/runs/{quote(name, safe='')}", 404) for name in NAMES.values()]
    lies = [Ask("hostile tensor", INFER, 400, body) for body in (b"{", b"[" * 100_000, b'{"inputs": [{}]}')]
    return [*images, *bodies, *names, *lies]


class Load:
    """Clients on kept-alive connections that together send `per_second` requests per second.

    `honest` has the start and duration of each ordinary request in seconds.
    """

    def __init__(self, service: Running, run_key: str, *, clients: int, per_second: float) -> None:
        self.service, self.run_key, self.clients, self.pause = service, run_key, clients, clients / per_second
        self.answers: Counter[tuple[str, int]] = Counter()
        self.unexpected: list[str] = []
        self.seconds: list[float] = []
        self.honest: list[tuple[float, float]] = []
        self.excused_until = 0.0
        self._attackers = attackers()

    def run(self, seconds: float, meanwhile: Callable[[], None]) -> None:
        """Send requests for so many seconds; `meanwhile` is called about once a second."""
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client, args=(seed, until)) for seed in range(self.clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            meanwhile()
            time.sleep(1)

    def excuse(self, seconds: float) -> None:
        """Accept 503 for so many seconds, because something that the service needs is broken."""
        self.excused_until = max(self.excused_until, time.monotonic() + seconds)

    def _client(self, seed: int, until: float) -> None:
        chance = random.Random(seed)
        good = list(people(seed, self.run_key))
        connection, used = self._connect(), time.monotonic()
        while time.monotonic() < until:
            begun = time.monotonic()
            if chance.random() < 0.05:
                self._go_away(chance)
            elif chance.random() < 0.4:
                self._ask(self._connect(), chance.choice(self._attackers), is_kept=False)
            else:
                if chance.random() < 0.02 or time.monotonic() - used > IDLE_SECONDS:
                    connection.close()
                self._ask(connection, chance.choice(good), is_kept=True)
                used = time.monotonic()
            time.sleep(max(0.0, self.pause - (time.monotonic() - begun)))
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.service.host, self.service.port, timeout=100)

    def _ask(self, connection: http.client.HTTPConnection, ask: Ask, *, is_kept: bool) -> None:
        begun = time.monotonic()
        try:
            connection.request(ask.method, ask.path, ask.body, ask.headers)
            response = connection.getresponse()
            response.read()
            status = response.status
        except (ConnectionError, http.client.HTTPException) as error:
            connection.close()
            if is_kept:  # the server may have just closed an idle connection, so the request is repeated on a new one
                self.answers["kept connection was closed", 0] += 1
                self._ask(self._connect(), ask, is_kept=False)
                return
            if ask.status != 413:  # the server may close before a too large body is sent completely
                self.unexpected.append(f"{ask.kind} {ask.path}: {error!r}")
                return
            status = 413
        self.seconds.append(time.monotonic() - begun)
        if is_kept:
            self.honest.append((begun, self.seconds[-1]))
        self.answers[ask.kind, status] += 1
        is_excused = status == 503 and begun < self.excused_until
        if status != ask.status and not is_excused:
            self.unexpected.append(f"{ask.kind} {ask.path}: {status}, expected {ask.status}")
        if not is_kept:
            connection.close()

    def _go_away(self, chance: random.Random) -> None:
        """Send half a request and close."""
        body = form(png())
        head = f"POST /predict?checkpoint={VIT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {MULTIPART}\r\n"
        content = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection((self.service.host, self.service.port), timeout=60) as connection:
            connection.sendall(content[: chance.randrange(len(content))])
        self.answers["went away", 0] += 1


@dataclass
class Watch:
    """Memory, open files and threads of a service and its workers at each observation."""

    pid: int
    started: float = field(default_factory=time.monotonic)
    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    service_megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Observe the processes, at a moment when none is ending."""
        try:
            self._look(self._family())
        except psutil.Error:
            return

    def _look(self, family: list[psutil.Process]) -> None:
        memory = [member.memory_info().rss for member in family]
        threads, files = ([getattr(member, name)() for member in family] for name in ("num_threads", "num_fds"))
        self.seconds.append(time.monotonic() - self.started)
        # shared memory counts in each process: its proportional share would depend on unrelated ones
        self.megabytes.append(sum(memory) / 2**20)
        self.service_megabytes.append(memory[0] / 2**20)
        self.threads.append(sum(threads))
        self.files.append(sum(files))

    def workers(self) -> list[psutil.Process]:
        """Return the inference and decoding processes, which are children of the process that forks them."""
        family = psutil.Process(self.pid).children()
        servers = [member for member in family if any("forkserver" in word for word in member.cmdline())]
        return [worker for server in servers for worker in server.children()]

    @property
    def processor_seconds(self) -> float:
        return sum(sum(member.cpu_times()[:2]) for member in self._family())

    def _family(self) -> list[psutil.Process]:
        service = psutil.Process(self.pid)
        return [service, *service.children(recursive=True)]

    def growth(self, values: list[float] | list[int]) -> float:
        """Return the growth from the second quarter's median to the last's; the service warms up in the first."""
        quarter = len(values) // 4
        return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter])

    def by_parts(self, parts: int) -> list[float]:
        """Return the median megabytes of each part of the time."""
        found = np.array_split(self.megabytes, min(parts, len(self.megabytes)))
        return [round(float(np.median(part)), 1) for part in found]

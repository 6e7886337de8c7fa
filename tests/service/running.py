"""A service in its own process, started like users start it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchmarks.server import free_port


@dataclass(frozen=True)
class Running:
    """The service's address, process and log file."""

    host: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def running(
    root: Path, folder: Path, *, code: Path | None = None, python: str = sys.executable, **environment: str
) -> Iterator[Running]:
    """Run `python -m service` on `root`, ready to answer, until the block ends.

    `environment` has settings; `code` is a copy of this repository to run instead, `python` another interpreter.
    """
    port = free_port()
    log = folder / "service.log"
    settings = {"CLAIMCHECK_ROOT": str(root), "CLAIMCHECK_DRAIN_SECONDS": "0", **environment}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [python, "-m", "service", "--port", str(port)],
            env={**os.environ, **settings},
            cwd=code,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    service = Running("127.0.0.1", port, process, log)
    try:
        wait_until_ready(service)
        yield service
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(service: Running) -> None:
    until = time.monotonic() + 400
    while time.monotonic() < until:
        assert service.process.poll() is None, (
            f"the service ended before it was ready: {service.log.read_text(encoding='utf-8')}"
        )
        try:
            with urlopen(f"{service.address}/health/ready", timeout=5):
                return
        except OSError:  # refused, or not warm yet
            time.sleep(0.1)
    raise AssertionError(f"{service.address} is not ready: {service.log.read_text(encoding='utf-8')}")

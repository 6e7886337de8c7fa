"""Run a server in its own process for the duration of a benchmark."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import IO

READY_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(command: Sequence[str], port: int, ready: str, **environment: str) -> Iterator[int]:
    """Yield the server's process id once it is ready; its process group ends with the block or this process.

    Raises:
        RuntimeError: it ended or isn't ready after `READY_SECONDS`; the message has its last lines.
    """
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=written, stderr=written, start_new_session=True
        )
        # The group has LitServe's processes, which would survive their parent, and may be suspended.
        kill_group = ["sh", "-c", 'read -r _; kill -s KILL -- "-$0"', str(process.pid)]
        guard = subprocess.Popen(kill_group, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            _wait_until_ready(process, port, ready, written)
            yield process.pid
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
            process.wait(60)
            guard.communicate()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, ready: str, written: IO[bytes]) -> None:
    answer, until = "nothing", time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}; {_last_lines(written, ready)}")
        with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", ready)
            response = connection.getresponse()
            if response.status == 200:
                return
            answer = f"{response.status}, {response.read().decode(errors='replace')}"
        time.sleep(0.1)
    raise RuntimeError(f"{process.args} isn't ready: {ready} answers {answer}; {_last_lines(written, ready)}")


def _last_lines(written: IO[bytes], ready: str) -> str:
    """Return the log without lines about our own requests."""
    written.seek(0)
    lines = [line for line in written.read().decode(errors="replace").splitlines() if ready not in line]
    return "it wrote:\n" + "\n".join(lines[-20:])

"""Run moto's S3 server on a free local port, in a process that exits when its stdin closes.

Stored objects survive `down`.
"""

import logging
import os
import signal
import subprocess
import sys
import urllib.request
from typing import Self

BUCKET = "runs"


class ObjectServer:
    """Context manager; `environment` has the variables that a client process needs."""

    def __enter__(self) -> Self:
        # moto's SQS warns at startup about a feature that we don't use
        command = [sys.executable, "-W", "ignore", "-P", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self._ask('up')}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "no_proxy": "127.0.0.1",
        }
        self._request("PUT", BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self.speak()
        self._process.communicate()

    def down(self) -> None:
        """Refuse connections."""
        self._ask("down")

    def up(self) -> None:
        """Accept connections again."""
        self._ask("up")

    def refuse_keys(self, *, after: float = 0) -> None:
        """Answer 403 to every request after the next `after` ones."""
        self._request("POST", "moto-api/reset-auth", str(after).encode())

    def fall_silent(self) -> None:
        """Accept connections and requests, but never answer."""
        self._process.send_signal(signal.SIGSTOP)

    def speak(self) -> None:
        """Answer requests again."""
        self._process.send_signal(signal.SIGCONT)

    def _request(self, method: str, path: str, content: bytes = b"") -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/{path}", content, headers, method=method)
        with opener.open(request, timeout=30) as answer:
            assert answer.status == 200

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server, port = None, 0
    for line in sys.stdin:
        if line.strip() == "up" and server is None:
            server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
            server.start()
            _, port = server.get_host_and_port()
        elif line.strip() == "down" and server is not None:
            server.stop()
            server = None
        print(port, flush=True)
    os._exit(0)


if __name__ == "__main__":
    _serve()

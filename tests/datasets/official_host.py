"""A local HTTP server that acts as the official hosts, including faults."""

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The host's response to one path; `promised_bytes` overrides the true Content-Length."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/octet-stream"
    promised_bytes: int | None = None


class OfficialHost:
    """Serves `answers` by file name and records requests; other names are 404."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rsplit("/", 1)[-1]
                host.asked.append(name)
                answer = host.answers.get(name, Answer(status=404))
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                promised = len(answer.body) if answer.promised_bytes is None else answer.promised_bytes
                self.send_header("Content-Length", str(promised))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
                """Discard log messages."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/data/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""Traces sent to a collector configured by the environment, here our own in another thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service.conftest import png
from tests.service.mixed_load import upload
from tests.service.running import running

pytestmark = pytest.mark.slow

TRACE = "0af7651916cd43dd8448eb211c80319c"


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The collector's address, and the path and body of everything received so far."""
    received: list[tuple[str, bytes]] = []

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Collect) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def test_request_is_a_span_of_its_callers_trace_but_probes_are_not(root: Path, tmp_path: Path) -> None:
    with collector() as (address, received):
        with running(root, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address) as service:
            ask = upload("image", "checkpoint=ninformer-cifar100.vit.0", 200, png())
            headers = {**ask.headers, "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            with urlopen(Request(service.address + ask.path, ask.body, headers), timeout=60) as response:
                assert response.status == 200
            for path in ("/api/v1/papers", "/metrics", "/v2/health/live"):
                urlopen(service.address + path, timeout=60).close()
        assert {path for path, _ in received} == {"/v1/traces"}, "metrics and logs have our own format"
        requests = [ExportTraceServiceRequest.FromString(body) for _, body in received]
    spans = [
        span for one in requests for group in one.resource_spans for scope in group.scope_spans for span in scope.spans
    ]
    named = {span.name: span for span in spans if not span.name.startswith("fastapi.")}
    assert set(named) == {"POST /predict", "GET /api/v1/papers"}
    assert named["POST /predict"].trace_id.hex() == TRACE
    assert {item.key: item.value.int_value for item in named["POST /predict"].attributes}[
        "http.response.status_code"
    ] == 200

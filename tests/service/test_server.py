"""The whole server in a separate process: raw sockets, signals, logs, and clients that disconnect."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stages.recording.builder import record
from tests.polling import wait_until
from tests.service.conftest import png
from tests.service.running import Running, request, running

pytestmark = pytest.mark.slow

PATH = "/predict?checkpoint=ninformer-cifar100.vit.0"
BOUNDARY = "x" * 20
FORM = (
    (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n').encode()
    + png()
    + f"\r\n--{BOUNDARY}--\r\n".encode()
)
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture(scope="module")
def own_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(root, tmp_path_factory.mktemp("server") / "root"))


@pytest.fixture(scope="module")
def service(own_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(own_root, tmp_path_factory.mktemp("log"), CLAIMCHECK_BODY_SECONDS="1.5") as service:
        yield service


def exchange(service: Running, content: bytes) -> tuple[int, bytes]:
    """Send bytes and return the response's status and body; (0, b"") if the server only closes the connection."""
    with socket.create_connection((service.host, service.port), timeout=60) as connection:
        try:
            connection.sendall(content)
            return answer_on(connection)
        except (ConnectionError, http.client.BadStatusLine):
            return 0, b""


def test_truncated_body_is_logged_as_400_without_traceback(service: Running) -> None:
    start = b"POST /v2/models/ninformer-cifar100.vit/infer HTTP/1.1\r\nHost: localhost\r\n"
    for rest in (
        b"Content-Length: 1000\r\n\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nnonsense\r\n",
    ):
        before = service.log.stat().st_size
        with socket.create_connection((service.host, service.port), timeout=60) as connection:
            connection.sendall(start + rest)
            time.sleep(0.3)
        until = time.monotonic() + 10
        while b"ninformer-cifar100.vit/infer" not in (lines := service.log.read_bytes()[before:]):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert b"Traceback" not in lines and b'"status": 500' not in lines and b'"status": 400' in lines, lines


def answer_on(connection: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read()
    finally:
        response.close()


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode("latin-1")


def test_absolute_target_is_served_if_its_host_is_allowed(service: Running) -> None:
    path = "/api/v1/papers?limit=1"
    assert exchange(service, head("GET", f"http://127.0.0.1:{service.port}{path}")) == exchange(
        service, head("GET", path)
    )
    assert exchange(service, head("GET", "HTTP://localhost"))[0] == 200
    status, content = exchange(service, head("GET", f"http://elsewhere.example{path}"))
    assert status == 421 and b"elsewhere.example" in content
    assert exchange(service, head("GET", f"ftp://127.0.0.1{path}"))[0] == 404


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Sec-WebSocket-Version: 13", "HTTP2-Settings: AAMAAABkAAQAAP__")
UNUSUAL = {
    "upgrade to h2c": (head("GET", "/health/live", "Upgrade: h2c", *UPGRADE), 200),
    "upgrade to a websocket": (head("GET", "/health/live", "Upgrade: websocket", *UPGRADE), 200),
    "HTTP/2 by prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 421),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/1.0 without a host": (b"GET /health/live HTTP/1.0\r\n\r\n", 200),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (head("GET", "/", "Host: elsewhere.example"), 400),
    "a host with a user": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1@elsewhere.example\r\n\r\n", 421),
    "CONNECT": (head("CONNECT", "127.0.0.1:80"), 404),
    "OPTIONS *": (head("OPTIONS", "*"), 404),
    "TRACE": (head("TRACE", "/"), 405),
    "a fragment": (head("GET", "/claims#x"), 404),
    "an encoded slash": (head("GET", "/static/..%2fapp.py"), 404),
    "an overlong encoding": (head("GET", "/claims/%c0%ae%c0%ae"), 404),
    "half an encoding": (head("GET", "/claims/%"), 404),
    "10,000 parameters": (head("GET", "/api/v1/runs?" + "&".join(f"p{number}" for number in range(5000))), 422),
    "10,000 separators": (head("GET", "/api/v1/papers?" + "&" * 10_000), 200),
    "3,000 headers": (head("GET", "/health/live", *["a: b"] * 3000), 200),
    "a space before the colon": (head("GET", "/", "X : a"), 400),
    "a NUL in a header": (head("GET", "/", "X: a\0b"), 400),
    "bytes in headers": (head("GET", "/", *(f"{name}: \xff" for name in ("Accept", "If-None-Match", "Origin"))), 200),
    "a PROXY line": (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + head("GET", "/health/live"), 400),
    "a folded header": (head("GET", "/health/live", "X: a\r\n b"), 200),
    "a length of 5,000 digits": (head("POST", PATH, "Content-Length: " + "9" * 5000), 400),
    "an odd length": (head("POST", PATH, "Content-Length: +5") + b"hello", 400),
    "chunked twice": (head("POST", PATH, "Transfer-Encoding: chunked, chunked"), 400),
    "chunked and gzip": (head("POST", PATH, "Transfer-Encoding: gzip, chunked"), 400),
    **{
        f"a chunk of {lie[:30]!r}": (head("POST", PATH, "Transfer-Encoding: chunked") + lie, 400)
        for lie in (
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"5\r\nhello world\r\n0\r\n\r\n",
            b"-1\r\nx\r\n",
            b"zz\r\nx\r\n",
            b"f" * 30 + b"\r\nx\r\n",
        )
    },
    "an empty line before the request": (b"\r\n" + head("GET", "/health/live"), 400),
    "800 ranges": (head("GET", "/static/style.css", "Range: bytes=" + "0-0," * 800), 200),
    "a suffix range": (head("GET", "/static/style.css", "Range: bytes=-" + "9" * 20), 206),
}


def test_unusual_request_gets_expected_status(service: Running) -> None:
    before = service.log.stat().st_size
    assert {name: exchange(service, content)[0] for name, (content, _) in UNUSUAL.items()} == {
        name: status for name, (_, status) in UNUSUAL.items()
    }
    log = service.log.read_bytes()[before:]
    assert b"Traceback" not in log and b"pip install" not in log


ENDLESS = {
    "address": (b"GET /", b"a"),
    "header": (b"GET / HTTP/1.1\r\nX: ", b"y"),
    "headers": (b"GET / HTTP/1.1\r\n", b"X: y\r\n"),
    "chunk extension": (head("POST", PATH, "Transfer-Encoding: chunked") + b"5;", b"y"),
    "trailer": (head("POST", PATH, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\nX: ", b"y"),
    "trailers": (head("POST", PATH, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n", b"X: y\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_request_is_disconnected(service: Running, kind: str) -> None:
    start, again = ENDLESS[kind]
    with socket.create_connection((service.host, service.port), timeout=60) as connection:
        connection.sendall(start)
        with pytest.raises(ConnectionError):
            connection.sendall(again * (50_000_000 // len(again)))
    assert request(service, "GET", "/health/ready")[0] == 200


def test_body_in_thousands_of_tiny_chunks_is_400(service: Running) -> None:
    """Parsing them takes long, even if they all arrive at once."""
    start = head("POST", PATH, "Transfer-Encoding: chunked", f"Content-Type: {HEADERS['Content-Type']}")
    tiny = [b"1\r\n%c\r\n" % byte for byte in 100 * FORM][:4113]  # the last chunk exceeds the limit
    status, body = exchange(service, start + b"".join(tiny))
    assert status == 400 and "4,096 chunks and one more for each 256 bytes" in json.loads(body)["detail"]
    large = FORM.replace(png(), bytes(5000 * 256))
    pieces = [large[start : start + 256] for start in range(0, len(large), 256)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    assert exchange(service, start + chunks + b"0\r\n\r\n")[0] == 422, "larger chunks are not limited"
    assert request(service, "GET", "/health/ready")[0] == 200


def test_body_of_upgrade_request_is_not_a_second_request(service: Running) -> None:
    inner = head("GET", "/health/live", "Connection: close")
    upgrade = head("GET", "/health/live", "Connection: Upgrade", "Upgrade: h2c", f"Content-Length: {len(inner)}")
    with socket.create_connection((service.host, service.port), timeout=60) as connection:
        connection.sendall(upgrade)
        time.sleep(0.2)
        connection.sendall(inner)
        connection.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answered.count(b"HTTP/1.1 ") == 1


def test_trailer_is_not_used_as_header(service: Running) -> None:
    start = head("POST", PATH, "Transfer-Encoding: chunked", f"Content-Type: {HEADERS['Content-Type']}")
    end = b"%x\r\n%s\r\n0\r\nX-Request-ID: from-a-trailer\r\nConnection: close\r\n\r\n" % (len(FORM), FORM)
    assert exchange(service, start + end)[0] == 200
    assert "from-a-trailer" not in service.log.read_text(encoding="utf-8")


def test_pipelined_requests_of_unreading_client_use_bounded_memory(service: Running) -> None:
    process = psutil.Process(service.process.pid)
    request(service, "GET", "/health/live")
    before, until = process.memory_info().rss, time.monotonic() + 4
    with socket.create_connection((service.host, service.port), timeout=2) as connection, suppress(TimeoutError):
        while time.monotonic() < until:  # never reads a response
            connection.sendall(head("GET", "/health/live") * 1000)
    assert process.memory_info().rss - before < 30_000_000


def test_slow_body_is_408(service: Running) -> None:
    content_type = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
    with socket.create_connection((service.host, service.port), timeout=30) as connection:
        connection.sendall(head("POST", PATH, "Content-Length: 100000", content_type))
        for index in range(15):
            connection.sendall(FORM[index : index + 1])
            time.sleep(0.05)
        status, body = answer_on(connection)
    assert (status, json.loads(body)["detail"]) == (408, "the request body didn't arrive within 1.5 s")


def test_half_closed_client_gets_responses_and_vanished_client_is_dropped(service: Running, own_root: Path) -> None:
    """Both stop sending, but only the kernel of the vanished client rejects a response."""
    requests = head("GET", "/api/v1/papers") + head("GET", "/health/live")
    with closing(sqlite3.connect(own_root / "data" / "results.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        with ExitStack() as stack:
            gone, waiting = (stack.enter_context(socket.create_connection((service.host, service.port))) for _ in "ab")
            ports = {connection.getsockname()[1] for connection in (gone, waiting)}
            for connection in (gone, waiting):
                connection.sendall(requests)
            gone.close()
            waiting.shutdown(socket.SHUT_WR)
            left = {waiting.getsockname()[1]}
            process = psutil.Process(service.process.pid)
            wait_until(lambda: {one.raddr.port for one in process.net_connections() if one.raddr} & ports == left, 1.5)
            lock.rollback()
            content = b"".join(iter(lambda: waiting.recv(65536), b""))
    assert content.count(b"HTTP/1.1 200 ") == 2 and b'"alive"' in content


def logged(service: Running, identity: str) -> dict[str, Any]:
    """Return the log line of a request, which is written after its response."""
    for _ in range(200):
        for line in map(json.loads, service.log.read_text(encoding="utf-8").splitlines()):
            if line["message"] == "request" and line["request_id"] == identity:
                return line
        time.sleep(0.05)
    raise AssertionError(f"no line of {identity} in the log")


def test_each_request_is_logged_with_its_id(service: Running) -> None:
    answered = request(service, "GET", "/compare?dataset=mnist", headers={"X-Request-ID": "my-own.1"})
    assert answered[2]["x-request-id"] == "my-own.1"
    mine = logged(service, "my-own.1")
    assert (mine["method"], mine["path"], mine["route"], mine["status"]) == ("GET", "/compare", "/compare", 200)
    assert mine["seconds"] > 0 and mine["bytes"] > 1000
    generated = request(service, "GET", "/nothing/at/all", headers={"X-Request-ID": "no spaces please"})[2]
    assert len(generated["x-request-id"]) == 32
    other = logged(service, generated["x-request-id"])
    assert (other["path"], other["route"], other["status"]) == ("/nothing/at/all", "other", 404)


def test_metrics_count_requests_with_bounded_labels(service: Running) -> None:
    for number in range(3):
        request(service, "GET", f"/api/v1/runs/{number}")
        request(service, f"VERB{number}", f"/path/{number}")
    request(service, "POST", PATH, FORM, HEADERS)

    def metrics() -> str:
        return request(service, "GET", "/metrics")[1].decode()

    line = 'claimcheck_requests_total{method="GET",route="/api/v1/runs/{run_key}",status="404"} 3.0'
    wait_until(lambda: line in metrics())  # cached briefly
    text = metrics()
    (others,) = re.findall(r'requests_total\{method="other",route="other",status="404"\} (\d+)', text)
    assert int(others) >= 3, "earlier tests may have sent some, too"
    assert "VERB" not in text and "/path/" not in text
    assert "claimcheck_inference_alive 1.0" in text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["claimcheck_pass_images_count"]) >= 1
    assert float(values["claimcheck_weight_bytes"]) > 1000


def test_replaced_database_is_served_without_failing_a_request(service: Running, own_root: Path) -> None:
    stop = threading.Event()
    seen: list[tuple[int, bytes]] = []

    def read() -> None:
        while not stop.is_set():
            for path in ("/compare?dataset=cifar10", "/api/v1/runs?limit=5", "/", "/health/ready"):
                status, body, _ = request(service, "GET", path)
                seen.append((status, body if path == "/health/ready" else b""))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    lines = own_root / "data" / "results" / "ninformer-cifar10.jsonl"
    content = lines.read_bytes()
    for number in range(4):
        if number % 2:
            lines.write_bytes(content)
        else:
            lines.unlink()
        record(own_root, "data/results.db")
        time.sleep(0.5)
    stop.set()
    for reader in readers:
        reader.join()
    assert {status for status, _ in seen} == {200}
    assert len({body for _, body in seen if body}) == 2, "readers saw both contents"


def test_sigterm_to_process_group_under_load_fails_no_request(own_root: Path, tmp_path: Path) -> None:
    with running(own_root, tmp_path, CLAIMCHECK_DRAIN_SECONDS="3") as service, ExitStack() as ending:
        outcomes: list[str] = []
        is_stopping = threading.Event()

        def ask(connection: http.client.HTTPConnection) -> None:
            """Send predictions over one connection that is kept alive as long as the server allows."""
            while True:
                is_new = connection.sock is None
                if is_new:
                    try:
                        connection.connect()
                    except ConnectionError:
                        outcomes.append("refused" if is_stopping.is_set() else "refused before the end")
                        return
                try:
                    connection.request("POST", PATH, FORM, HEADERS)
                    response = connection.getresponse()
                    response.read()
                    outcomes.append(str(response.status))
                except (ConnectionResetError, BrokenPipeError):  # which of them depends on how much was sent
                    # The kernel accepted the connection, but the service closed its listening socket first.
                    outcomes.append("refused" if is_new and is_stopping.is_set() else "reset in mid-connection")
                    return
                except (ConnectionError, http.client.HTTPException) as error:
                    outcomes.append(f"failed: {error!r}")
                    connection.close()

        connections = [http.client.HTTPConnection(service.host, service.port, timeout=60) for _ in range(6)]
        for connection in connections:
            ending.callback(connection.close)
        clients = [threading.Thread(target=ask, args=(connection,)) for connection in connections]
        for client in clients:
            client.start()
        time.sleep(1)
        is_stopping.set()
        os.killpg(service.process.pid, signal.SIGTERM)
        status = 200
        while status == 200:  # until the signal has arrived
            status, body, headers = request(service, "GET", "/health/ready")
        assert (status, json.loads(body)["detail"]) == (503, "the service is ending")
        assert headers["connection"] == "close"
        assert request(service, "GET", "/health/live")[0] == 200
        for client in clients:
            client.join(60)
        assert service.process.wait(60) in (0, -signal.SIGTERM)
    assert set(outcomes) == {"200", "refused"}, sorted(set(outcomes))
    assert outcomes.count("refused") == 6 and len(outcomes) > 12

"""Errors of the framework, server or machine become problem details and are logged."""

import itertools
import json
import logging
import os
import re
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from fastapi.testclient import TestClient

from service.http import monitoring
from service.http.monitoring import JsonLines
from service.settings import Settings
from stages.recording.builder import record
from tests.polling import wait_until
from tests.service.conftest import png, reading, serving
from tests.service.running import Running, request, running
from tests.service.test_errors import VIT, assert_problem
from tests.service.test_hostile import NAME_FILTERS, NAMES, RESOURCES
from tests.service.test_server import FORM, HEADERS, exchange, head

pytestmark = pytest.mark.slow

LIST = "/api/v1/papers"


def change(root: Path, *statements: str) -> None:
    with sqlite3.connect(root / "data" / "results.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_internal_error_is_logged_and_counted_as_500_with_its_id(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "claimcheck")
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(caplog.handler, "emit", lambda entry: lines.append(json.loads(JsonLines().format(entry))))
    with serving(settings.model_copy(update={"cors_origins": ("https://friend.example",)})) as client:
        parts = client.app.state.claimcheck  # type: ignore[attr-defined]
        client.app.state.claimcheck = replace(parts, templates=None)  # type: ignore[attr-defined]
        response = client.get("/", headers={"x-request-id": "mine.1", "origin": "https://friend.example"})
        assert_problem(response, 500, "the service failed; its log says why")
        assert response.headers["x-request-id"] == "mine.1"
        assert response.headers["access-control-allow-origin"] == "https://friend.example", "its page can read it"
        text = client.get("/metrics").text
    assert 'claimcheck_requests_total{method="GET",route="/",status="500"} 1.0' in text
    assert 'status="0"' not in text
    trace, line = (item for item in lines if item.get("request_id") == "mine.1")
    assert "AttributeError" in trace["exception"] and trace["level"] == "error"
    assert (line["message"], line["status"], line["route"]) == ("request", 500, "/")


def test_log_lines_for_a_full_pipe_are_dropped_and_counted(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MAX_LINES", 20)
    reader, writer = os.pipe()
    with open(reader, encoding="ascii") as read, open(writer, "w", encoding="ascii") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        handler = monitoring.QueuedLines()
        handler.setFormatter(JsonLines())
        before = monitoring.QueuedLines.dropped
        for number in range(200):  # a pipe holds 64 KiB
            handler.handle(logging.LogRecord("claimcheck", 20, "", 0, "%d %s", (number, "x" * 4000), None))
        dropped = monitoring.QueuedLines.dropped - before
        assert 100 <= dropped < 200
        line = f"claimcheck_log_lines_dropped_total {before + dropped:.1f}"
        wait_until(lambda: line in client.get("/metrics").text)  # cached briefly
        numbers = [int(json.loads(read.readline())["message"].partition(" ")[0]) for _ in range(200 - dropped)]
        assert numbers == sorted(set(numbers)) and numbers[:10] == list(range(10))
        handler.flush()


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [("bytes=abc", 400, "range"), ("bytes=9-2", 400, "range"), ("bytes=99999999-", 416, "the range begins beyond the")],
)
def test_invalid_range_is_a_problem(client: TestClient, sent: str, status: int, words: str) -> None:
    response = client.get("/static/style.css", headers={"range": sent})
    assert_problem(response, status, words)
    if status == 416:
        size = len(client.get("/static/style.css").content)
        assert response.headers["content-range"] == f"bytes */{size}"
    for unknown in ("lines=1-2", "x", ""):
        assert client.get("/static/style.css", headers={"range": unknown}).status_code == 200
    part = client.get("/static/style.css", headers={"range": "bytes=0-9"})
    assert (part.status_code, len(part.content)) == (206, 10)


def test_cors_rejection_is_a_problem(settings: Settings) -> None:
    friend = "https://friend.example"
    with reading(settings.model_copy(update={"cors_origins": (friend,)})) as client:
        for origin, method, words in (("https://stranger.example", "GET", "origin"), (friend, "DELETE", "method")):
            asked = {"origin": origin, "access-control-request-method": method}
            response = client.options("/compare", headers=asked)
            assert_problem(response, 400, words)
            assert "origin" in response.headers["vary"].lower()
        asked = {"origin": friend, "access-control-request-method": "GET"}
        assert client.options("/compare", headers=asked).status_code == 200


def test_unacceptable_type_is_never_304(client: TestClient) -> None:
    asked = {"if-none-match": "*", "accept": "image/png"}
    assert_problem(client.get("/compare", headers=asked), 406)
    for path in ("/compare", "/", "/api/v1/runs", "/api/v1/export.zip"):
        answer = client.get(path, headers={"if-none-match": "*"})
        assert (answer.status_code, answer.content) == (304, b"") and answer.headers["etag"]
        assert "content-length" not in answer.headers or answer.headers["content-length"] == "0"
    assert client.get("/health/ready", headers={"if-none-match": "*"}).status_code == 200, "it has no tag"


def problem_in(service: Running, content: bytes) -> tuple[int, dict[str, Any]]:
    status, body = exchange(service, content)
    problem = json.loads(body)
    assert set(problem) == {"type", "title", "status", "detail", "instance"} and problem["status"] == status
    return status, problem


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
        b"GET / HTTP/one\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /é HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(),
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        head("POST", VIT, "Content-Length: 5", "Content-Length: 6"),
    ],
    ids=range(7),
)
def test_invalid_request_is_a_logged_and_counted_problem(service: Running, content: bytes) -> None:
    def count() -> float:
        text = request(service, "GET", "/metrics")[1].decode()
        found = re.search(r'requests_total{method="other",route="none",status="400"} (\S+)', text)
        return float(found[1]) if found else 0

    def logged() -> list[dict[str, Any]]:
        lines = map(json.loads, service.log.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if (line.get("route"), line.get("status")) == ("none", 400)]

    before = len(logged())
    assert problem_in(service, content)[0] == 400
    wait_until(lambda: before < len(logged()) == count())  # a thread writes the log, and metrics are cached briefly
    line = logged()[-1]
    assert (line["status"], line["client"]) == (400, "127.0.0.1") and len(line["request_id"]) == 32
    assert "Traceback" not in service.log.read_text(encoding="utf-8")


def test_body_with_two_lengths_is_refused_and_the_rest_ignored(service: Running) -> None:
    inner = head("GET", "/health/live")
    for version, length in (("1.1", f"Content-Length: {len(inner)}"), ("1.0", "X: y")):
        start = head("POST", VIT, length, "Transfer-Encoding: chunked").replace(b"HTTP/1.1", f"HTTP/{version}".encode())
        with_more = start + b"0\r\n\r\n" + inner
        status, problem = problem_in(service, with_more)
        assert (status, "send one length" in problem["detail"]) == (400, True)
        with socket.create_connection((service.host, service.port), timeout=10) as connection:
            connection.sendall(with_more)
            answered = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answered.count(b"HTTP/1.1 ") == 1 and b"connection: close" in answered.lower()


@pytest.fixture(scope="module")
def on_postgresql(root: Path, postgresql: Callable[[], str]) -> Iterator[TestClient]:
    url = postgresql()
    record(root, url)
    with serving(Settings(root=root, database=url)) as client:
        yield client


@pytest.mark.parametrize("kind", NAMES)
def test_hostile_name_is_unknown_on_postgresql(on_postgresql: TestClient, kind: str) -> None:
    name = quote(NAMES[kind], safe="%") if "%" in NAMES[kind] and len(NAMES[kind]) > 1 else quote(NAMES[kind], safe="")
    paths = [f"/api/v1/{resource}/{name}" for resource in RESOURCES]
    paths += [f"{path}?{one}={name}" for path, names in NAME_FILTERS.items() for one in names]
    paths += [f"/v2/models/{name}", f"/v2/models/ninformer-mnist.vit/versions/{name}", f"/runs/{name}"]
    paths += [f"/{page}/{name}" for page in ("papers", "claims", "experiments")]
    for path in paths:
        assert_problem(on_postgresql.get(path), 404)
    assert on_postgresql.post(f"/predict?checkpoint={name}", files={"file": png()}).status_code == 404


DAMAGES = {
    "no content": "DELETE FROM meta WHERE name = 'content'",
    "no JSON": "UPDATE experiments SET protocol = '{'",
    "empty JSON": "UPDATE experiments SET protocol = ''",
    "a number": "UPDATE experiments SET protocol = '5'",
    "a list": "UPDATE experiments SET protocol = '[]'",
    "null": "UPDATE experiments SET protocol = 'null'",
    "an object for a list": "UPDATE experiments SET seeds = '{}'",
    "bytes": "UPDATE experiments SET title = CAST(x'ff' AS TEXT)",
}


def test_damaged_database_is_503(own_root: Path) -> None:
    database = own_root / "data" / "results.db"
    whole = database.read_bytes()
    with reading(Settings(root=own_root)) as client:
        for kind, damage in DAMAGES.items():
            database.write_bytes(whole)
            assert (
                client.get("/api/v1/experiments?dataset=mnist").status_code == 200
            )  # another answer, since they are kept
            change(own_root, damage)
            response = client.get("/api/v1/experiments")
            assert response.status_code == 503, f"{kind}: {response.text}"
            assert "the results database is damaged" in response.json()["detail"]


def test_full_disk_and_exhausted_files_are_server_errors(root: Path, tmp_path: Path) -> None:
    """First the service's files can't grow, then it can't open any more."""
    with running(root, tmp_path) as service:
        process = psutil.Process(service.process.pid)
        limit = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (100_000, limit[1]))
        large = FORM.replace(b"\r\n\r\n", b"\r\n\r\n" + bytes(3_000_000), 1)
        for method, path, body, headers in (("POST", VIT, large, HEADERS), ("GET", "/api/v1/export.zip", None, {})):
            status, answer, head_of = request(service, method, path, body, {**headers, "X-Request-ID": "full.1"})
            assert (status, head_of["retry-after"]) == (503, "10"), answer
            assert "run out of disk space, memory or file handles" in json.loads(answer)["detail"]
        assert request(service, "GET", LIST)[0] == 200
        wait_until(lambda: "File too large" in service.log.read_text(encoding="utf-8"))  # a thread writes the log
        process.rlimit(psutil.RLIMIT_FSIZE, limit)
        limit = process.rlimit(psutil.RLIMIT_NOFILE)
        time.sleep(0.5)
        taken = {int(path.name) for path in Path(f"/proc/{service.process.pid}/fd").iterdir()}
        free = itertools.filterfalse(taken.__contains__, itertools.count())
        next(free)  # needed for this request's connection
        process.rlimit(psutil.RLIMIT_NOFILE, (next(free), limit[1]))
        status, answer, _ = request(service, "GET", LIST)
        detail = "the results database can't be opened: Too many open files"
        assert (status, json.loads(answer)["detail"]) == (503, detail)
        process.rlimit(psutil.RLIMIT_NOFILE, limit)
        time.sleep(0.1)
        assert request(service, "GET", LIST)[0] == 200
        assert "Too many open files" in service.log.read_text(encoding="utf-8")


def test_every_listed_model_is_served_by_name_and_version(client: TestClient) -> None:
    listed = client.get("/api/v1/checkpoints").json()
    for row in listed:
        known = client.get(f"/v2/models/{row['model_name']}/versions/{row['model_version']}")
        assert known.status_code == 200 and row["model_version"] in known.json()["versions"]
    response = client.get("/v2/models/ninformer-mnist.vit/versions/9")
    assert "unknown version '9'; known: 0, 1, 2" in response.json()["error"]
    response = client.post("/predict?checkpoint=ninformer-mnist.vit", files={"file": png()})
    known = "known: ninformer-mnist.vit.0, ninformer-mnist.vit.1, ninformer-mnist.vit.2"
    assert_problem(response, 404, f"unknown checkpoint 'ninformer-mnist.vit'; {known}; /api/v1/checkpoints lists")

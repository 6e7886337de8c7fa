"""A locked, silent or rebuilding database: answers within seconds, 503 if necessary, and liveness at once."""

import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from stages.recording.builder import record
from tests.service.conftest import serving
from tests.service.test_errors import assert_problem

pytestmark = pytest.mark.slow

Create = Callable[[], str]


def assert_refused(client: TestClient, seconds: float) -> None:
    for path in ("/health/ready", "/compare?dataset=cifar100"):
        began = time.monotonic()
        assert_problem(client.get(path), 503)
        assert time.monotonic() - began < seconds, path
        assert client.get("/health/live").status_code == 200


def test_locked_file_is_503(own_root: Path) -> None:
    with serving(Settings(root=own_root)) as client, sqlite3.connect(own_root / "data/results.db") as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert_refused(client, 4)
        writer.rollback()
        assert client.get("/health/ready").status_code == 200


def test_silent_server_is_503(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.results.database.CONNECT_SECONDS", 2)  # the least that libpq takes
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://claimcheck@127.0.0.1:{silent.getsockname()[1]}/results"
        with serving(Settings(root=root, database=url)) as client:
            assert_refused(client, 7)


def test_suspended_server_is_503(root: Path, postgresql: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.results.database.SILENT_SECONDS", 3)
    record(root, url := postgresql())
    with serving(Settings(root=root, database=url)) as client, psycopg.connect(url, autocommit=True) as own:
        assert client.get("/health/ready").status_code == 200
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        stopped = [pid for (pid,) in own.execute(query)]
        assert stopped
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            assert client.get("/compare?dataset=cifar100").status_code in (200, 503)
            assert client.get("/health/ready").status_code in (200, 503)
            assert time.monotonic() - began < 12
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert client.get("/compare?dataset=cifar100").status_code == 200


def test_long_reader_delays_the_rebuild_but_not_other_readers(root: Path, postgresql: Create) -> None:
    record(root, url := postgresql())
    writer = threading.Thread(target=record, args=(root, url))
    with psycopg.connect(url) as long, psycopg.connect(url, autocommit=True) as quick:
        assert long.execute("SELECT count(*) FROM results").fetchone() == (24,)
        writer.start()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            started = time.monotonic()
            assert quick.execute("SELECT count(*) FROM results").fetchone() == (24,)
            assert time.monotonic() - started < 1
            time.sleep(0.02)
        assert writer.is_alive()
        assert long.execute("SELECT count(*) FROM metrics").fetchone() != (0,)
        long.rollback()
        writer.join(30)
        assert not writer.is_alive()
        schemas = quick.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'claimcheck_new'").fetchone()
    assert schemas == (0,)

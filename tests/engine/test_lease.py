"""Leases: one owner at a time, taken over only from the dead, and a late riser can't publish."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from stages.engine import lease as lease_module
from stages.engine.lease import LeaseLost, LeaseTable, process_identity


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def test_several_runs_are_leased_together_or_not_at_all(path: Path) -> None:
    mine, other = LeaseTable(path), LeaseTable(path)
    lease = mine.claim("a", "b")
    assert lease is not None
    assert other.claim("c", "b") is None, "b is taken"
    free = other.claim("c")
    assert free is not None, "and c wasn't taken with it"
    with mine.held(lease):
        pass
    mine.release(lease)
    later = other.claim("b")
    assert later is not None
    with pytest.raises(LeaseLost, match="run b was taken over"), mine.held(lease):
        pass


def test_one_owner_at_a_time(path: Path) -> None:
    mine = LeaseTable(path)
    lease = mine.claim("g")
    assert lease is not None
    assert LeaseTable(path).claim("g") is None
    assert LeaseTable(path).claim("other") is not None
    mine.release(lease)
    again = LeaseTable(path).claim("g")
    assert again is not None and again.tokens == (("g", lease.tokens[0][1] + 1),)


def test_a_dead_owner_is_followed_at_once(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert LeaseTable(path, owner=process_identity(process.pid)).claim("g") is not None
    assert LeaseTable(path).claim("g") is None, "it lives"
    process.communicate(b"\n")
    assert LeaseTable(path).claim("g") is not None


def test_another_machine_is_followed_when_its_heartbeat_is_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = LeaseTable(path, owner="another-host:1:2")
    assert elsewhere.claim("g") is not None
    assert LeaseTable(path).claim("g") is None
    later = time.time() + lease_module.EXPIRY_SECONDS + 1
    monkeypatch.setattr(lease_module.time, "time", lambda: later)
    assert LeaseTable(path).claim("g") is not None


def test_a_late_riser_cannot_publish(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fencing: the owner slept past its expiry, another took over, the first wakes up."""
    sleeper = LeaseTable(path, owner="another-host:1:2")
    old = sleeper.claim("g")
    assert old is not None
    later = time.time() + lease_module.EXPIRY_SECONDS + 1
    monkeypatch.setattr(lease_module.time, "time", lambda: later)
    successor = LeaseTable(path)
    new = successor.claim("g")
    assert new is not None
    with pytest.raises(LeaseLost, match="taken over"), sleeper.held(old):
        pytest.fail("the sleeper must not get here")
    sleeper.release(old)
    assert LeaseTable(path).claim("g") is None, "releasing an old lease frees nothing"
    with successor.held(new):
        pass


def heartbeat(path: Path) -> float:
    with closing(sqlite3.connect(path)) as connection:
        return float(connection.execute("SELECT heartbeat FROM run_leases").fetchone()[0])


def test_heartbeat_keeps_a_lease_beyond_its_expiry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the test's own: a machine on which a heartbeat comes late must not decide."""
    clock = [time.time()]
    monkeypatch.setattr(lease_module.time, "time", lambda: clock[0])
    monkeypatch.setattr(lease_module, "_HEARTBEAT_SECONDS", 0.01)
    table = LeaseTable(path, owner="another-host:1:2")
    lease = table.claim("g")
    assert lease is not None
    with table.kept_alive(lease):
        for _ in range(2):
            clock[0] += 0.75 * lease_module.EXPIRY_SECONDS
            until = time.monotonic() + 60
            while heartbeat(path) < clock[0]:
                assert time.monotonic() < until, "no heartbeat"
                time.sleep(0.01)
        assert LeaseTable(path).claim("g") is None
    assert LeaseTable(path).claim("g") is not None

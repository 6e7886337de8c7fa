"""What leases of either store have in common: their heartbeat, and which attempts they note."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from stages.runs.object_store import ObjectStore, StoreFault
from stages.scheduling.engine import lease as folder_leases
from stages.scheduling.engine import object_leases
from stages.scheduling.engine.lease import LeaseTable
from stages.scheduling.engine.leases import EXPIRY_SECONDS, Lease, LeaseLost, Leases, heartbeat, process_identity
from stages.scheduling.engine.object_leases import ObjectLeases
from tests.polling import wait_until
from tests.scheduling.racer import keys_of, outcome

KEY, SPEC = next(iter(keys_of(1).items()))
ELSEWHERE, THIRD = "another-host:boot:1:2:3", "a-third-host:boot:1:2:3"


class Store:
    """Leases of a store whose owners are on machines of their own; `now` is everybody's clock."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self._objects = ObjectStore(str(request.getfixturevalue("object_url")), folder) if request.param else None
        self._path = folder / "leases.db"
        monkeypatch.setattr(folder_leases.time, "time", lambda: self.now)
        for module in (folder_leases, object_leases):
            monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.02)

    def leases(self, owner: str) -> Leases:
        if self._objects is None:
            return LeaseTable(self._path, owner)
        return ObjectLeases(self._objects, owner, monotonic=lambda: self.now)

    def beat(self, run_key: str) -> float:
        """A number that each heartbeat of the owner changes."""
        if self._objects is not None:
            return self._objects.read(run_key)[0].beat
        with closing(sqlite3.connect(self._path)) as connection:
            return float(connection.execute("SELECT heartbeat FROM run_leases").fetchone()[0])


@pytest.fixture(params=[False, True], ids=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(request, tmp_path, monkeypatch)


def taken_over(store: Store, other: Leases, run_key: str) -> bool:
    """Whether `other` gets a run whose owner isn't heard of from now on."""
    if other.claim(run_key) is not None:
        return True
    store.now += EXPIRY_SECONDS
    return other.claim(run_key) is not None


def test_several_runs_are_leased_together_or_not_at_all(store: Store) -> None:
    mine, other = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = mine.claim("b", "a")
    assert lease is not None and lease.run_keys == ("b", "a")
    assert other.claim("0", "b") is None, "b is taken"
    assert other.claim("0") is not None, "and 0 was given back"
    mine.release(lease)
    later = other.claim("b")
    assert later is not None and later.tokens[0][1] > lease.tokens[0][1]


def test_a_dead_owner_of_this_machine_is_followed_at_once(store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = store.leases(process_identity(os.getpid()))
    assert store.leases(process_identity(process.pid)).claim("g") is not None
    assert here.claim("g") is None, "it lives"
    process.communicate(b"\n")
    assert here.claim("g") is not None
    assert [one.end for one in here.attempts("g")] == ["lost", None]


def test_a_late_riser_cannot_publish(store: Store) -> None:
    """Fencing: the owner slept past its expiry, another took over, the first wakes up."""
    sleeper, successor = store.leases(ELSEWHERE), store.leases(THIRD)
    old = sleeper.claim(KEY)
    assert old is not None and taken_over(store, successor, KEY)
    with pytest.raises(LeaseLost, match=f"run {KEY[:12]} was taken over while it trained; its outcome is dropped"):
        sleeper.publish(old, KEY, outcome(KEY, SPEC, old.tokens[0][1]))
    sleeper.release(old)
    assert store.leases("a-fourth-host:boot:1:2:3").claim(KEY) is None, "releasing an old lease frees nothing"
    assert [one.end for one in successor.attempts(KEY)] == ["lost", None]


def test_heartbeats_keep_a_lease_beyond_its_expiry(store: Store) -> None:
    mine, other = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = mine.claim("g")
    assert lease is not None
    with mine.kept_alive(lease) as lost:
        for _ in range(3):
            assert other.claim("g") is None
            before = store.beat("g")
            store.now += 0.6 * EXPIRY_SECONDS
            wait_until(lambda: store.beat("g") != before)  # noqa: B023
        assert not lost.is_set()
    assert other.claim("g") is not None


def test_what_is_left_of_a_lost_lease_is_free_after_its_expiry(store: Store) -> None:
    """A group's second run is taken over; whoever took it wants the first one, too, and needn't wait for the loser."""
    mine, other = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = mine.claim("first", "second")
    assert lease is not None
    assert taken_over(store, other, "second")
    with mine.kept_alive(lease) as lost:
        assert lost.wait(30)
        assert other.claim("first") is None
        store.now += EXPIRY_SECONDS
        time.sleep(0.2)  # ten beats, if there were any
        assert other.claim("first") is not None
    assert [one.end for one in other.attempts("first")] == ["lost", None], "its end releases nothing"


def test_a_beat_that_fails_is_told_and_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([StoreFault("s3://runs", "no answer for 120 s"), sqlite3.OperationalError("disk is full"), None])
    done: list[str] = []

    def renew() -> bool:
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        done.append("renewed")
        return True

    faults = (StoreFault, sqlite3.Error)
    beating = heartbeat(
        Lease((("g", 1),)), renew=renew, release=lambda: done.append("released"), faults=faults, seconds=0.01
    )
    with beating as lost:
        wait_until(lambda: done)
        assert not lost.is_set()
    assert done[-1] == "released" and done.count("released") == 1
    assert capsys.readouterr().err.splitlines() == [
        "lease of g: can't be renewed now (s3://runs: no answer for 120 s)",
        "lease of g: can't be renewed now (disk is full)",
    ]


def test_whoever_claims_a_published_run_tries_nothing_whatever_becomes_of_it(store: Store) -> None:
    """The first is killed after the publication, before it noted it; the second before it looked at the store."""
    killed, also_killed, here = (store.leases(f"machine-{number}:boot:1:2:3") for number in range(3))
    lease = killed.claim(KEY)
    assert lease is not None
    killed.publish(lease, KEY, outcome(KEY, SPEC, lease.tokens[0][1]))
    assert taken_over(store, also_killed, KEY) and taken_over(store, here, KEY)
    assert [(one.token, one.end) for one in here.attempts(KEY)] == [(lease.tokens[0][1], "published")]

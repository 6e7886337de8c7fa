"""Leases in a folder and in an object store: one owner at a time, heartbeats, takeovers and recorded attempts."""

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stages.runs.object_store import ObjectStore, StoreFault
from stages.runs.store import RunStore, Store
from stages.scheduling import leases as leases_module
from stages.scheduling.leases import EXPIRY_SECONDS, LeaseLost, Leases, process_identity
from tests.polling import wait_until
from tests.scheduling.racer import claim, keys_of, outcome

KEY, SPEC = next(iter(keys_of(1).items()))
ELSEWHERE, THIRD = "another-host:boot:1:2:3", "a-third-host:boot:1:2:3"


class Shared:
    """Leases of one store whose owners are on different machines; `now` is the common clock."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.now = store, time.time()
        monkeypatch.setattr(leases_module, "HEARTBEAT_SECONDS", 0.02)

    def leases(self, owner: str) -> Leases:
        return Leases(self.store, owner, clock=lambda: self.now, monotonic=lambda: self.now)

    def beat(self, run_key: str) -> int:
        """Return a value that changes with each heartbeat of the owner."""
        return self.store.read(run_key)[0].beat


@pytest.fixture(params=[False, True], ids=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    objects = ObjectStore(str(request.getfixturevalue("object_url")), tmp_path) if request.param else None
    return Shared(objects or RunStore(tmp_path), monkeypatch)


def taken_over(store: Shared, other: Leases, run_key: str) -> bool:
    """Return True if `other` gets a run whose owner sends no more heartbeats."""
    if other.claim(run_key) is not None:
        return True
    store.now += EXPIRY_SECONDS
    return other.claim(run_key) is not None


def test_several_runs_are_leased_together_or_not_at_all(store: Shared) -> None:
    mine, other = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = mine.claim("b", "a")
    assert lease is not None and lease.run_keys == ("b", "a")
    assert other.claim("0", "b") is None, "b is taken"
    assert other.claim("0") is not None, "0 was given back"
    mine.release(lease)
    later = other.claim("b")
    assert later is not None and later.tokens[0][1] > lease.tokens[0][1]


def test_dead_local_owner_is_replaced_at_once(store: Shared) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = store.leases(process_identity(os.getpid()))
    assert store.leases(process_identity(process.pid)).claim("g") is not None
    assert here.claim("g") is None, "it is alive"
    process.communicate(b"\n")
    assert here.claim("g") is not None
    assert [one.end for one in here.attempts("g")] == ["lost", None]


def test_owner_that_wakes_up_after_a_takeover_cannot_publish(store: Shared) -> None:
    """Fencing: the owner slept past its expiry, and another process took over."""
    sleeper, successor = store.leases(ELSEWHERE), store.leases(THIRD)
    old = sleeper.claim(KEY)
    assert old is not None and taken_over(store, successor, KEY)
    with pytest.raises(LeaseLost, match=f"run {KEY[:12]} was taken over while it trained; its outcome is dropped"):
        sleeper.publish(old, KEY, outcome(KEY, SPEC, old.tokens[0][1]))
    sleeper.release(old)
    assert store.leases("a-fourth-host:boot:1:2:3").claim(KEY) is None, "releasing an old lease has no effect"
    assert [one.end for one in successor.attempts(KEY)] == ["lost", None]


def test_heartbeats_keep_a_lease_beyond_its_expiry(store: Shared) -> None:
    mine, other = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = claim(mine, "g")
    with mine.kept_alive(lease) as lost:
        for _ in range(3):
            assert other.claim("g") is None
            before = store.beat("g")
            store.now += 0.6 * EXPIRY_SECONDS
            wait_until(lambda: store.beat("g") != before)  # noqa: B023
        assert not lost.is_set()
    assert other.claim("g") is not None


def test_rest_of_a_lost_lease_is_free_after_its_expiry(store: Shared) -> None:
    """A group's second run is taken over; the new owner may also claim the first, without waiting for the loser."""
    mine, other = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = claim(mine, "first", "second")
    assert taken_over(store, other, "second")
    with mine.kept_alive(lease) as lost:
        assert lost.wait(30)
        assert other.claim("first") is None
        store.now += EXPIRY_SECONDS
        time.sleep(0.2)  # time for ten heartbeats, if there were any
        assert other.claim("first") is not None
    assert [one.end for one in other.attempts("first")] == ["lost", None], "its end releases nothing"


def test_failed_renewal_is_reported_and_retried(
    store: Shared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [StoreFault("s3://runs", "no answer for 120 s"), OSError(errno.ENOSPC, "disk is full")]
    write = type(store.store).write

    def fail_twice(*arguments: Any, **options: Any) -> str | None:
        if faults:
            raise faults.pop(0)
        return write(*arguments, **options)

    mine = store.leases(ELSEWHERE)
    lease = claim(mine, "g")
    monkeypatch.setattr(type(store.store), "write", fail_twice)
    with mine.kept_alive(lease) as lost:
        before = store.beat("g")
        wait_until(lambda: store.beat("g") != before)
        assert not lost.is_set()
    assert mine.holder("g") is None
    assert capsys.readouterr().err.splitlines() == [
        "lease of g: can't be renewed now (s3://runs: no answer for 120 s)",
        "lease of g: can't be renewed now ([Errno 28] disk is full)",
    ]


def test_claiming_a_published_run_never_starts_an_attempt(store: Shared) -> None:
    """The first process is killed after publishing, before recording it; the second before reading the store."""
    killed, also_killed, here = (store.leases(f"machine-{number}:boot:1:2:3") for number in range(3))
    lease = claim(killed, KEY)
    killed.publish(lease, KEY, outcome(KEY, SPEC, lease.tokens[0][1]))
    assert taken_over(store, also_killed, KEY) and taken_over(store, here, KEY)
    assert [(one.token, one.end) for one in here.attempts(KEY)] == [(lease.tokens[0][1], "published")]


def test_process_of_another_container_is_judged_by_its_heartbeat(store: Shared) -> None:
    """It may have our host name, and a process id that doesn't exist here."""
    host, boot, namespace, *_ = process_identity(os.getpid()).split(":")
    assert host == socket.gethostname() and boot and namespace in os.readlink("/proc/self/ns/pid")
    neighbour = store.leases(f"{host}:{boot}:1{namespace}:4194304:1")
    assert neighbour.claim("g") is not None
    assert store.leases(process_identity(os.getpid())).claim("g") is None
    dead = store.leases(f"{host}:{boot}:{namespace}:4194304:1")
    assert dead.claim("h") is not None
    assert store.leases(process_identity(os.getpid())).claim("h") is not None, "our process table decides"


def test_owner_of_a_run_is_described_with_its_start(store: Shared) -> None:
    leases = store.leases(process_identity(os.getpid()))
    assert leases.holder("g") is None
    lease = claim(leases, "g")
    holder = str(leases.holder("f", "g"))
    assert holder.startswith(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-')}")
    leases.release(lease)
    assert leases.holder("g") is None


@pytest.mark.parametrize("damage", [b"no record at all", b"{}", b""])
def test_damaged_lease_record_is_replaced_and_tokens_still_increase(
    damage: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Leases(RunStore(tmp_path))
    lease = claim(old, "g")
    (tmp_path / "leases" / "g.json").write_bytes(damage)
    healed = Leases(RunStore(tmp_path)).claim("g")
    assert healed is not None and healed.tokens[0][1] > lease.tokens[0][1]
    assert "is damaged" in capsys.readouterr().err
    assert len(list(tmp_path.glob("leases/g.json.damaged-*"))) == 1, "the damaged file is kept"
    with pytest.raises(LeaseLost):
        old.publish(lease, "g", {"result.json": b"{}"})


def test_attempts_and_their_ends_are_recorded(store: Shared) -> None:
    first, second = store.leases(ELSEWHERE), store.leases(THIRD)
    lease = claim(first, KEY, "h")
    first.close(lease, "failed", "ValueError: no such thing", ["h"])
    assert second.claim(KEY) is None
    store.now += EXPIRY_SECONDS + 1
    lease = claim(second, KEY)
    second.release(lease)
    lease = claim(second, KEY)
    second.publish(lease, KEY, outcome(KEY, SPEC, lease.tokens[0][1]))
    second.release(lease)
    lease = claim(second, KEY)
    second.close(lease, None)
    assert [(one.owner, one.end, one.reason) for one in second.attempts(KEY)] == [
        (ELSEWHERE, "lost", "sent no heartbeat for 61 s"),
        (second.owner, "stopped", ""),
        (second.owner, "published", ""),
    ]
    (failed,) = second.attempts("h")
    assert (failed.end, failed.reason, failed.ended is not None) == ("failed", "ValueError: no such thing", True)

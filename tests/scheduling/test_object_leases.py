"""Leases of an object store give the same guarantees as a folder's, without comparing clocks of two machines."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stages.runs import object_store
from stages.runs.object_store import ObjectStore
from stages.runs.store import Record
from stages.scheduling import leases as leases_module
from stages.scheduling.leases import EXPIRY_SECONDS, LeaseLost, Leases
from tests.object_server import ObjectServer
from tests.scheduling.racer import claim, keys_of, outcome

KEY, SPEC = next(iter(keys_of(1).items()))
ELSEWHERE = "another-host:boot:1:2:3"


class Machine(Leases):
    """A machine whose clocks only the test advances; `skew` is in seconds."""

    def __init__(self, store: ObjectStore, owner: str | None = None, skew: float = 0.0) -> None:
        self.now = 1000.0
        super().__init__(store, owner, clock=lambda: 1.8e9 + skew + self.now, monotonic=lambda: self.now)


@pytest.fixture
def store(object_url: str, tmp_path: Path) -> ObjectStore:
    return ObjectStore(object_url, tmp_path / "here")


@pytest.mark.parametrize("skew", [-600.0, 0.0, 600.0])
def test_remote_owner_is_replaced_when_its_record_stops_changing(store: ObjectStore, skew: float) -> None:
    """Independent of clocks."""
    elsewhere, here = Machine(store, ELSEWHERE, skew), Machine(store)
    assert elsewhere.claim("g") is not None
    for _ in range(3):
        assert here.claim("g") is None
        here.now += EXPIRY_SECONDS / 2 - 1
        elsewhere._change("g", elsewhere._held["g"][0].token, lambda mine: mine)  # a heartbeat
    here.now += 10 * EXPIRY_SECONDS
    assert here.claim("g") is None, "first seen since its last change"
    here.now += EXPIRY_SECONDS - 1
    assert here.claim("g") is None
    here.now += 1
    assert here.claim("g") is not None
    assert here.attempts("g")[0].reason == f"sent no heartbeat for {EXPIRY_SECONDS:.0f} s"


def test_owner_replaced_while_uploading_cannot_publish(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper, successor = Machine(store, ELSEWHERE), Machine(ObjectStore(store.address, tmp_path / "there"))
    old = claim(sleeper, KEY)
    taken, upload = [], ObjectStore.upload

    def take_over(self: ObjectStore, files: Mapping[str, bytes]) -> object:
        uploaded = upload(self, files)
        assert successor.claim(KEY) is None
        successor.now += EXPIRY_SECONDS
        taken.append(successor.claim(KEY))
        return uploaded

    monkeypatch.setattr(ObjectStore, "upload", take_over)
    with pytest.raises(LeaseLost, match="was taken over while it trained"):
        sleeper.publish(old, KEY, outcome(KEY, SPEC, old.tokens[0][1]))
    monkeypatch.setattr(ObjectStore, "upload", upload)
    assert not store.has(KEY) and not store.bucket.has(f"runs/{KEY}.json")
    (new,) = taken
    assert new is not None
    folder = successor.publish(new, KEY, outcome(KEY, SPEC, new.tokens[0][1]))
    assert f'"token":{new.tokens[0][1]}'.encode() in (folder / "result.json").read_bytes()
    assert [one.end for one in successor.attempts(KEY)] == ["lost", "published"]


def test_owner_killed_between_record_and_manifest_has_published(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, here = Machine(store, ELSEWHERE), Machine(ObjectStore(store.address, tmp_path / "there"))
    lease = claim(killed, KEY)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "finish", kill)
        with pytest.raises(KeyboardInterrupt):
            killed.publish(lease, KEY, outcome(KEY, SPEC, lease.tokens[0][1]))
    assert not here.store.has(KEY) and here.claim(KEY) is None
    here.now += EXPIRY_SECONDS
    again = here.claim(KEY)
    assert again is not None and here.store.has(KEY), "the claim writes the manifest"
    here.close(again, None)
    here.release(again)
    assert [one.end for one in here.attempts(KEY)] == ["published"]
    assert here.store.whole(KEY) is not None


def test_renewal_with_a_lost_response_is_ours(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store accepted it before the connection broke."""
    mine = Machine(store, ELSEWHERE)
    lease = claim(mine, "g")
    write, sent = ObjectStore.write, []

    def lose(self: ObjectStore, run_key: str, record: Record, tag: str | None, files: None) -> str | None:
        sent.append(write(self, run_key, record, tag, files))
        return sent[-1] if len(sent) > 1 else None

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "write", lose)
        mine.close(lease, "failed", "x")
    assert len(sent) == 2 and None not in sent
    assert [one.end for one in mine.attempts("g")] == ["failed"]


def test_damaged_record_is_reported(store: ObjectStore) -> None:
    store.bucket.put("leases/g.json", b"{}")
    with pytest.raises(OSError, match=r"leases/g.json can't be read \(KeyError\): delete it"):
        Machine(store).claim("g")
    store.bucket.delete(["leases/g.json"])
    assert Machine(store).claim("g") is not None


def test_temporarily_unavailable_store_loses_no_lease(
    store: ObjectStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "HEARTBEAT_SECONDS", 0.05)
    mine = Machine(store, ELSEWHERE)
    lease = claim(mine, KEY)
    with mine.kept_alive(lease) as lost:
        object_server.down()
        assert not lost.wait(0.5)
        object_server.up()
        mine.publish(lease, KEY, outcome(KEY, SPEC, 0))
        assert not lost.is_set()
    assert [one.end for one in mine.attempts(KEY)] == ["published"]


@pytest.mark.parametrize("waits", ["to claim it", "to write its journal"])
def test_lease_survives_a_store_outage_longer_than_its_expiry(
    store: ObjectStore, object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """The store returns for a competing process before it returns for the owner."""
    monkeypatch.setattr(leases_module, "EXPIRY_SECONDS", 1.0)
    monkeypatch.setattr(object_store, "LATE_SECONDS", 0.5)
    there = ObjectStore(store.address, tmp_path / "there")
    mine, other = Leases(store, ELSEWHERE), Leases(there)
    assert mine.claim("g") is not None and other.claim("g") is None
    object_server.down()
    back = threading.Timer(1.5, object_server.up)
    back.start()
    if waits == "to write its journal":
        there.scratch.save("journal-x/journal.json", b"")
    assert other.claim("g") is None, "the owner couldn't renew its lease"
    back.join()
    time.sleep(1.1)
    assert other.claim("g") is not None, "now it could"
    assert other.attempts("g")[0].reason == "sent no heartbeat for 1 s"

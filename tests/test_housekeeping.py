import dataclasses
import os
import time
from pathlib import Path

import pytest

from stages.commands import evidence as housekeeping
from stages.commands.evidence import ABANDONED_SECONDS, disk_usage, remove_leftovers, remove_objects
from stages.runs.object_store import ObjectStore, StoreFault, open_store
from stages.runs.store import RunStore, remember, stack_id
from stages.scheduling.leases import Leases
from tests.project import make_spec
from tests.scheduling.racer import claim

OUTCOME = {"result.json": b"{}", "weights.safetensors": b"w" * 1000}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a published run that an experiment links to, and an unfinished training."""
    store = RunStore(tmp_path / "data" / "store")
    published = store.publish("done", OUTCOME)
    linked = tmp_path / "data" / "runs" / "e" / "done"
    linked.mkdir(parents=True)
    for name in OUTCOME:
        os.link(published / name, linked / name)
    store.scratch.save("open/resume.pt", b"s" * 500)
    return tmp_path


def test_hard_linked_file_counts_once(root: Path) -> None:
    assert disk_usage(root) == {
        "downloads": 0,
        "packed data": 0,
        "run store": 1002,
        "trainings under way": 500,
        "read of object stores": 0,
        "measurements": 0,
        "outcomes of experiments": 0,
        "DVC's cache": 0,
    }


def test_only_leftovers_are_removed(root: Path) -> None:
    store = root / "data" / "store"
    files = {path for path in root.rglob("*") if path.is_file()}
    (store / "staged" / "open.123").mkdir(parents=True)
    (store / "work" / "done").mkdir()
    (store / "work" / "open" / ".resume.pt.123.partial").write_bytes(b"half")
    (root / "data" / ".results.db.99.partial").write_bytes(b"half")
    old = time.time() - ABANDONED_SECONDS - 1
    left = [store / "staged" / "open.123", store / "work" / "open" / ".resume.pt.123.partial"]
    left.append(root / "data" / ".results.db.98.partial-journal")
    left[-1].write_bytes(b"half")
    for path in left:
        os.utime(path, (old, old))
    assert remove_leftovers(root) == sorted([*left, store / "work" / "done"])
    assert {path for path in root.rglob("*") if path.is_file()} == files | {root / "data" / ".results.db.99.partial"}
    assert remove_leftovers(root) == [], "files being written stay"


def test_store_in_another_folder_is_cleaned(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("CLAIMCHECK_HOME", str(elsewhere))
    half = elsewhere / "store" / "work" / "open" / ".resume.pt.5.partial"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    os.utime(half, (0, 0))
    assert remove_leftovers(root) == [half]


def test_scratch_folder_of_a_stack_is_removed_once_all_runs_are_published(root: Path) -> None:
    store = RunStore(root / "data" / "store")
    specs = (make_spec(seed=0), make_spec(seed=1))
    remember(specs, store.scratch)
    folder = store.scratch.root / stack_id(specs)
    store.publish(specs[0].run_key, OUTCOME)
    assert remove_leftovers(root) == []
    store.publish(specs[1].run_key, OUTCOME)
    assert remove_leftovers(root) == [folder]


@pytest.fixture
def away(root: Path, object_url: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An object store with a published run, an unfinished training, and a file that no record refers to."""
    monkeypatch.setenv("CLAIMCHECK_STORE", object_url)
    store = open_store(root)
    assert isinstance(store, ObjectStore)
    store.publish("done", OUTCOME)
    store.scratch.save("open/resume.pt", b"s" * 500)
    store.bucket.put("blobs/orphan", b"o" * 100)
    return store


def test_object_store_usage_is_counted(root: Path, away: ObjectStore) -> None:
    sizes = disk_usage(root)
    assert sizes[f"{away.address}, outcomes"] == 1002 + 100
    assert sizes[f"{away.address}, trainings under way"] == 500
    assert sizes["read of object stores"] == 1002


def test_leftovers_of_an_object_store_are_removed_unless_a_record_refers_to_them(
    root: Path, away: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away.scratch.save("done/resume.pt", b"its holder was killed after the publication")
    claim(Leases(away), "next")
    record, tag = away.read("next")
    away.bucket.put("blobs/next", b"written, and not published yet")
    assert away.write("next", dataclasses.replace(record, files={"result.json": "next"}), tag)
    before = {item.name for item in away.bucket.list("")}
    assert remove_objects(root) == [f"{away.address}/" + "work/done"], "recent files may be in use"
    monkeypatch.setattr(housekeeping, "ABANDONED_SECONDS", -1.0)
    assert remove_objects(root) == [f"{away.address}/blobs/orphan"]
    left = {item.name for item in away.bucket.list("")}
    assert before - left == {"work/done/resume.pt", "blobs/orphan"} and left - before == {"clock"}
    assert remove_objects(root) == []


def test_outcome_with_a_deleted_record_keeps_its_files(
    root: Path, away: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users delete unreadable records when told to."""
    monkeypatch.setattr(housekeeping, "ABANDONED_SECONDS", -1.0)
    away.bucket.delete(["leases/done.json"])
    assert remove_objects(root) == [f"{away.address}/blobs/orphan"]
    assert {item.size_bytes for item in away.bucket.list("blobs")} == {len(content) for content in OUTCOME.values()}


@pytest.mark.parametrize("name", ["leases/done.json", "runs/done.json"])
def test_unreadable_record_prevents_removal(
    root: Path, away: ObjectStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "ABANDONED_SECONDS", -1.0)
    if name.startswith("runs"):
        away.bucket.delete(["leases/done.json"])
    away.bucket.put(name, b"[]")
    before = {item.name for item in away.bucket.list("blobs")}
    with pytest.raises(StoreFault, match=f"{name} can't be read"):
        remove_objects(root)
    assert {item.name for item in away.bucket.list("blobs")} == before


def test_folder_store_has_no_objects_to_remove(root: Path) -> None:
    assert remove_objects(root) == []

"""Run stores in folders and object stores: outcomes are atomic, published once, and checked for damage."""

import hashlib
import math
import multiprocessing
import pickle
import re
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stages.faults import describe_fault
from stages.runs import object_store as bucket_module
from stages.runs.object_store import Bucket, ObjectStore, StoreFault, open_store
from stages.runs.store import RunStore, Store, write_atomically
from tests.object_server import ObjectServer
from tests.scheduling.racer import contents, keys_of, outcome

KEY, SPEC = next(iter(keys_of(1).items()))
FILES = outcome(KEY, SPEC, 1)


@pytest.fixture
def store(object_url: str, tmp_path: Path) -> ObjectStore:
    return ObjectStore(object_url, tmp_path / "here")


@pytest.fixture
def elsewhere(object_url: str, tmp_path: Path) -> ObjectStore:
    """The same store opened on another machine."""
    return ObjectStore(object_url, tmp_path / "there")


@pytest.fixture(params=["folder", "objects"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return RunStore(tmp_path / "folder")
    return ObjectStore(request.getfixturevalue("object_url"), tmp_path / "here")


def test_publication_is_atomic_and_removes_the_scratch(either: Store) -> None:
    assert (either.has(KEY), either.published(KEY), list(either.run_keys())) == (False, None, [])
    either.scratch.save(f"{KEY}/resume.pt", b"state")
    assert either.scratch.holds(f"{KEY}/resume.pt") and list(either.scratch.list_works()) == [KEY]
    assert contents(either.publish(KEY, FILES)) == FILES
    assert either.has(KEY) and contents(either.published(KEY)) == contents(either.whole(KEY)) == FILES
    assert list(either.run_keys()) == [KEY] and list(either.scratch.list_works()) == []


def test_second_publication_is_ignored(either: Store) -> None:
    either.publish(KEY, FILES)
    assert contents(either.publish(KEY, FILES | {"history.jsonl": b"other"})) == FILES


def test_states_are_stored_by_name_and_deleted_by_run(either: Store) -> None:
    scratch = either.scratch
    assert scratch.load("a/x") is None
    for name in ("a/x", "a/y", "ab/x", "stack-b/x"):
        scratch.save(name, name.encode())
    scratch.save("a/x", b"newer")
    assert scratch.load("a/x") == b"newer" and list(scratch.list_works("stack-")) == ["stack-b"]
    scratch.drop("a")
    assert list(scratch.list_works()) == ["ab", "stack-b"] and scratch.load("a/y") is None


def test_large_state_is_uploaded_in_parts_and_appears_whole(store: ObjectStore) -> None:
    content = bytes(range(256)) * 50_000  # 12.8 MB
    store.scratch.save("k/resume.pt", content)
    found = store.bucket.get("work/k/resume.pt")
    assert found is not None and found[0] == content
    if store.address.startswith("s3://"):
        assert re.search(r"-3\W?$", found[1]), "S3's tag counts the parts"


def test_store_can_be_pickled(either: Store) -> None:
    either.publish(KEY, FILES)
    copy = pickle.loads(pickle.dumps(either))  # noqa: S301  (our own)
    assert copy.has(KEY) and copy.address == either.address


def test_another_machine_reads_and_caches_published_outcomes(
    store: ObjectStore, elsewhere: ObjectStore, object_server: ObjectServer
) -> None:
    store.publish(KEY, FILES)
    assert contents(elsewhere.published(KEY)) == FILES
    object_server.down()
    try:
        assert elsewhere.has(KEY) and contents(elsewhere.whole(KEY)) == FILES, "from this machine's folder"
    finally:
        object_server.up()


@pytest.mark.parametrize("name", ["spec.json", "history.jsonl", "result.json", "weights.safetensors"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_damaged_file_is_detected_and_the_run_can_be_retrained(
    store: ObjectStore, elsewhere: ObjectStore, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.publish(KEY, FILES)
    blob = f"blobs/{hashlib.sha256(FILES[name]).hexdigest()}"
    if damage == "missing":
        store.bucket.delete([blob])
    else:
        store.bucket.put(blob, FILES[name][:-1] if damage == "truncated" else FILES[name][:-1] + b"\xff")
    assert elsewhere.published(KEY) is None and not elsewhere.has(KEY)
    said = capsys.readouterr().err
    assert f"{KEY[:12]}: the outcome in {store.address} is damaged: {name} is " in said and "trained again" in said
    assert contents(elsewhere.publish(KEY, FILES)) == FILES, "which repairs the file"
    assert contents(ObjectStore(store.address, elsewhere.cache.root / "third").whole(KEY)) == FILES


def test_damaged_local_copy_is_fetched_again(store: ObjectStore, elsewhere: ObjectStore) -> None:
    store.publish(KEY, FILES)
    copy = elsewhere.published(KEY)
    assert copy is not None
    (copy / "history.jsonl").chmod(0o644)
    (copy / "history.jsonl").write_bytes(b"?")
    assert contents(elsewhere.whole(KEY)) == FILES
    shutil.rmtree(elsewhere.cache.root)
    assert contents(elsewhere.whole(KEY)) == FILES


def test_missing_manifest_is_written_by_the_next_claim(store: ObjectStore, elsewhere: ObjectStore) -> None:
    store.publish(KEY, FILES)
    store.bucket.delete([f"runs/{KEY}.json"])
    assert not elsewhere.has(KEY), "as if killed before writing it"
    assert contents(elsewhere.publish(KEY, FILES)) == FILES and elsewhere.has(KEY)


def test_one_of_sixteen_creators_wins(store: ObjectStore) -> None:
    start = threading.Barrier(16)

    def create(number: int) -> bool:
        start.wait()
        return store.bucket.create("one", f"{number}".encode()) is not None

    with ThreadPoolExecutor(16) as pool:
        assert Counter(pool.map(create, range(16))) == {True: 1, False: 15}


def test_one_of_sixteen_state_changes_wins_and_a_stale_one_is_rejected(store: ObjectStore) -> None:
    tag = store.bucket.create("one", b"first")
    assert tag is not None
    start = threading.Barrier(16)

    def replace(number: int) -> bool:
        start.wait()
        return store.bucket.replace("one", f"{number}".encode(), tag) is not None

    with ThreadPoolExecutor(16) as pool:
        assert Counter(pool.map(replace, range(16))) == {True: 1, False: 15}
    assert store.bucket.replace("one", b"late", tag) is None
    assert store.bucket.replace("none", b"late", tag) is None and not store.bucket.has("none")


def test_listing_follows_pages(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_PAGE", 3)
    names = [f"runs/{number}.json" for number in range(7)]
    for name in names:
        store.bucket.put(name, b"{}")
    assert list(store.run_keys()) == [str(number) for number in range(7)]
    store.bucket.delete(names)
    assert list(store.run_keys()) == []


def test_unavailable_store_is_retried(store: ObjectStore, object_server: ObjectServer) -> None:
    object_server.down()
    back = threading.Timer(1.5, object_server.up)
    back.start()
    began = time.monotonic()
    store.publish(KEY, FILES)
    back.join()
    assert time.monotonic() - began > 1.0 and store.bucket.has(f"runs/{KEY}.json")


def test_store_that_stays_unavailable_is_named(object_url: str, object_server: ObjectServer) -> None:
    object_server.down()
    try:
        with pytest.raises(StoreFault, match="no answer for 0 s") as fault:
            Bucket(object_url, retry_seconds=0.3).has("x")
    finally:
        object_server.up()
    assert describe_fault(pickle.loads(pickle.dumps(fault.value))).startswith(  # noqa: S301  (our own)
        f"{object_url}: no answer for 0 s: Generic S3 error"
    )


def test_missing_bucket_is_named_at_once(object_url: str, tmp_path: Path) -> None:
    url = re.sub(r"//[^/]+", "//no-such-bucket", object_url)
    with pytest.raises(StoreFault, match=f"{url}: there is no such bucket"):
        ObjectStore(url, tmp_path).publish(KEY, FILES)


def test_rejected_and_missing_keys_are_named_at_once(
    store: ObjectStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not store.address.startswith("s3://"):
        pytest.skip("S3's names of keys")
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    store.bucket.check()
    began = time.monotonic()
    object_server.refuse_keys()
    try:
        for ask in (store.bucket.check, lambda: store.has(KEY), lambda: list(store.run_keys())):
            with pytest.raises(
                StoreFault, match=rf"access is refused \(its keys are {' and '.join(keys)} of the env.*403"
            ):
                ask()
    finally:
        object_server.refuse_keys(after=math.inf)
    for name in keys:
        monkeypatch.delenv(name)
    with pytest.raises(StoreFault, match=f"the environment has no {' and '.join(keys)}, and this machine has no role"):
        Bucket(store.address, retry_seconds=0.1).has("x")
    assert time.monotonic() - began < 20


def test_environment_names_the_store(object_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMCHECK_STORE", object_url)
    assert open_store(tmp_path).address == object_url
    monkeypatch.setenv("CLAIMCHECK_STORE", "elsewhere/store")
    assert open_store(tmp_path).address == str(tmp_path / "elsewhere" / "store")
    monkeypatch.setenv("CLAIMCHECK_STORE", "ftp://host/x")
    with pytest.raises(StoreFault, match="no object store; known: s3://, gs://, az://"):
        open_store(tmp_path)


def test_missing_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreFault, match="needs the package obstore, which isn't installed: `make cluster` adds it"):
        Bucket("s3://runs/x")


def test_folder_without_result_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "runs" / "k").mkdir(parents=True)
    assert RunStore(tmp_path).published("k") is None


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, None)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"


def _write_many(path: str, letter: bytes) -> None:
    for _ in range(50):
        write_atomically(Path(path), letter * 200_000)


def test_reader_sees_whole_files_while_two_processes_write(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"a" * 200_000)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(target), letter)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = target.read_bytes()
        assert len(content) == 200_000
        assert len(set(content)) == 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0

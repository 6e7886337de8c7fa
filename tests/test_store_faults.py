"""Store faults at every step of publishing are reported, leave nothing half-published, and allow a retry.

Related tests: damaged outcomes in tests/test_runner.py and tests/test_object_store.py, states in
tests/training/test_worker.py, unavailable stores in tests/test_object_store.py and
tests/scheduling/test_object_leases.py, messages in tests/test_faults.py.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.faults import describe_fault
from stages.runs.object_store import Bucket, ObjectStore, StoreFault
from stages.runs.store import RunStore, Store
from stages.scheduling.leases import Leases, process_identity
from tests.preloaded import python
from tests.project import environment
from tests.resource_limits import drop_root_privileges, limit_file_size
from tests.scheduling.racer import claim, contents, keys_of, outcome

KEY, SPEC = next(iter(keys_of(1).items()))
FILES = outcome(KEY, SPEC, 1)
PUBLISH = """
import sys
from pathlib import Path
from stages.runs.store import RunStore
from tests.test_store_faults import FILES, KEY
store = RunStore(Path("store"))
try:
    store.publish(KEY, FILES)
except OSError as error:
    print(type(error).__name__, error.strerror, error.filename)
print(store.has(KEY), *store.run_keys())
"""


class FailsOnce:
    """Wraps a function and fails at call number `at`."""

    def __init__(self, function: Callable[..., Any], at: int, error: OSError) -> None:
        self.function, self.at, self.error, self.calls = function, at, error, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*arguments, **options)


def publish(store: Store, owner: str | None = None) -> None:
    """Publish under a lease, like an engine."""
    leases = Leases(store, owner)
    lease = claim(leases, KEY)
    leases.publish(lease, KEY, FILES)
    leases.release(lease)


def fault_of(call: Callable[[], None]) -> OSError | None:
    try:
        call()
    except OSError as fault:
        return fault
    return None


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_failed_write_never_publishes_half_an_outcome(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A call of fsync or to the server fails at each step in turn, which ends the process."""
    gone = f"{process_identity(os.getpid()).rsplit(':', 2)[0]}:4194304:1"
    url = request.getfixturevalue("object_url") if kind == "objects" else ""
    for at in range(1, 100):
        store, other = (
            (ObjectStore(f"{url}/{at}", tmp_path / "here"), ObjectStore(f"{url}/{at}", tmp_path / "there"))
            if url
            else (RunStore(tmp_path / str(at)),) * 2
        )
        error = StoreFault(store.address, "no answer") if url else OSError(errno.EIO, os.strerror(errno.EIO))
        asked = FailsOnce(Bucket._call if url else os.fsync, at, error)
        with monkeypatch.context() as patch:
            # a function, so that it becomes a method of a bucket
            patch.setattr(*((Bucket, "_call") if url else (os, "fsync")), lambda *given, asked=asked: asked(*given))
            fault = fault_of(lambda store=store: publish(store, gone))
        if fault is None:
            break
        assert store.address in describe_fault(fault), "the error mentions the store"
        found = other.whole(KEY)
        assert found is None or contents(found) == FILES, "all or nothing"
        if found is None:
            publish(other)
        assert contents(other.whole(KEY)) == FILES and list(other.run_keys()) == [KEY]
    assert len(FILES) < at == asked.calls + 1, "every write has failed once"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (drop_root_privileges, "PermissionError Permission denied store/"),
        (limit_file_size, "OSError File too large store/staged/"),
    ],
    ids=["read-only", "full"],
)
def test_publishing_to_an_unwritable_store_fails_and_succeeds_later(
    tmp_path: Path, before: Callable[[], None], words: str
) -> None:
    (tmp_path / "store" / "runs").mkdir(parents=True)
    (tmp_path / "store").chmod(0o555 if before is drop_root_privileges else 0o755)
    failed = python("-c", PUBLISH, cwd=tmp_path, env=environment(), before=before)
    (tmp_path / "store").chmod(0o755)
    assert failed.stdout.startswith(words) and failed.stdout.splitlines()[-1] == "False", failed.stderr
    done = python("-c", PUBLISH, cwd=tmp_path, env=environment())
    assert done.stdout == f"True {KEY}\n", done.stderr


READ = """
from pathlib import Path
from stages.runs.object_store import ObjectStore
from tests.test_store_faults import KEY
store = ObjectStore(URL, Path("here"))
try:
    print(store.published(KEY) is not None)
except OSError as error:
    print(type(error).__name__, error.strerror, str(error.filename).partition("/staged/")[1], store.cache.has(KEY))
"""


@pytest.mark.parametrize("before", [drop_root_privileges, limit_file_size], ids=["read-only", "full"])
def test_unwritable_cache_of_an_object_store_is_reported(
    tmp_path: Path, object_url: str, before: Callable[[], None]
) -> None:
    ObjectStore(object_url, tmp_path / "elsewhere").publish(KEY, FILES)
    (tmp_path / "here").mkdir(mode=0o555 if before is drop_root_privileges else 0o755)
    code = READ.replace("URL", repr(object_url))
    failed = python("-c", code, cwd=tmp_path, env=environment(), before=before)
    (tmp_path / "here").chmod(0o755)
    said = (
        "PermissionError Permission denied  False"
        if before is drop_root_privileges
        else "OSError File too large /staged/ False"
    )
    assert failed.stdout.strip() == said, failed.stderr
    assert python("-c", code, cwd=tmp_path, env=environment()).stdout == "True\n"

"""Storage of outcomes by `run_key`: the store in a folder, and atomic writes.

Standard library only.  `stages.runs.object_store` opens the store that the environment names.  `result.json` has a
digest over the whole outcome: every other file, and everything else in the result itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stages.faults import named
from stages.run import RunSpec, canonical_json

if TYPE_CHECKING:
    from stages.runs.object_store import ObjectScratch, ObjectStore

_TEMPORARY = re.compile(r"(.*)/\.dvc/tmp/exps/(?:standalone/)?[^/]+(/.*)?")
"""Path in the copy of a project in which `dvc exp run --temp` works: the project's folder, and the part below it."""


def home() -> Path:
    """Return the folder of the downloads and the run store: `CLAIMCHECK_HOME`, or `data` in the project's folder."""
    copy = _TEMPORARY.fullmatch(os.getcwd())
    return Path(os.environ.get("CLAIMCHECK_HOME") or (Path(f"{copy[1]}{copy[2] or ''}", "data") if copy else "data"))


def write_atomically(path: Path, content: bytes) -> None:
    """Write, fsync and rename, so that a reader sees the old file or the new one, never part of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with named(path):
            partial.write_bytes(content)
        put_in_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Run the block in one process of this machine at a time, by a lock on the file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def put_in_place(partial: Path, target: Path) -> None:
    """Fsync a completely written file and rename it to its final name; a reader sees the old file or the new one."""
    with named(target), partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    _fsync_folder(target.parent)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


End = Literal["published", "stopped", "failed", "memory", "lost"]
"""How an attempt ended: `stopped` on request, `memory` if that ran out, `lost` if its owner died."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt to train a run: its owner, start and end by the owner's clock (seconds since 1970), and how it ended.

    `end` is None while the run trains, or until its owner is found to be gone.  Claiming a run that already has an
    outcome, which happens in an unfinished group, isn't an attempt.
    """

    run_key: str
    token: int
    owner: str
    began: float
    ended: float | None = None
    end: End | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The owner of a run, and its attempts and outcome.  `beat` counts renewals, so that no two contents are equal.

    `files` has the digests of what the holder is about to publish, or has published if `is_published`.
    """

    token: int = 0
    owner: str | None = None
    beat: int = 0
    since: float | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    is_published: bool = False
    attempts: tuple[Attempt, ...] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Record:
        """Read the bytes that `to_bytes` wrote.

        Raises:
            KeyError, TypeError, ValueError: they are damaged.
        """
        fields = json.loads(content)
        return cls(**fields | {"attempts": tuple(Attempt(**one) for one in fields["attempts"])})


class FolderScratch:
    """States of trainings in progress, by names `<run key or stack>/<file>`, in the folder `root`; survive a crash."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, name: str) -> bytes | None:
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def holds(self, name: str) -> bool:
        return (self.root / name).is_file()

    def save(self, name: str, content: bytes) -> None:
        write_atomically(self.root / name, content)

    def drop(self, work: str) -> None:
        shutil.rmtree(self.root / work, ignore_errors=True)

    def list_works(self, prefix: str = "") -> Iterator[str]:
        yield from sorted(path.name for path in self.root.glob(f"{prefix}*"))


class RunStore:
    """The store in a folder: `runs/<key>/` is complete and never changes, `work/<key>/` is a training in progress.

    A published folder holds `FILES`, read-only; it has weights only if the run didn't diverge.  `poll_seconds` is the
    pause before a run that another owner holds is claimed again.  Like every store, it can be pickled.
    """

    poll_seconds = 0.25
    late_answers = 0

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def address(self) -> str:
        return str(self.root)

    @property
    def scratch(self) -> FolderScratch:
        return FolderScratch(self.root / "work")

    def has(self, run_key: str) -> bool:
        return self.published(run_key) is not None

    def run_keys(self) -> Iterator[str]:
        """Yield the keys of all complete outcomes, in order."""
        yield from sorted(path.parent.name for path in (self.root / "runs").glob("*/result.json"))

    def published(self, run_key: str) -> Path | None:
        """Return the folder of a complete outcome, or None."""
        folder = self.root / "runs" / run_key
        return folder if (folder / "result.json").is_file() else None

    def whole(self, run_key: str) -> Path | None:
        """Return the folder of a complete outcome whose digests match, or None; move a damaged one to `damaged/`.

        This reads every file once, at the speed of sha256.
        """
        folder = self.published(run_key)
        fault = find_fault(folder, run_key) if folder is not None else None
        if folder is None or fault is None:
            return folder
        aside = self.root / "damaged" / f"{run_key}.{time.time_ns()}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, aside)
        print(f"  {run_key[:12]}: the outcome in the store is damaged: {fault}; it is now {aside}", file=sys.stderr)
        return None

    def publish(self, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Make all of `files` appear at once under `run_key`, by one rename, and remove the scratch folder.

        A second publication of a key is dropped: the first one stays.
        """
        target = self.root / "runs" / run_key
        staged = self.root / "staged" / f"{run_key}.{os.getpid()}"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        for name, content in files.items():
            write_atomically(staged / name, content)
            (staged / name).chmod(0o444)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(staged, target)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            if self.published(run_key) is None:
                raise
        _fsync_folder(target.parent)
        self.scratch.drop(run_key)
        return target

    def read(self, run_key: str) -> tuple[Record, str | None]:
        """Return the run's record, and its content as the tag; a damaged record is moved aside.

        The outcome shows whether the run is published: its process may have been killed before it recorded that.
        """
        path = self.root / "leases" / f"{run_key}.json"
        record, tag = Record(), None
        try:
            content = path.read_bytes()
            record, tag = Record.from_bytes(content), content.decode()
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError) as error:
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            os.replace(path, aside)
            print(f"{path} is damaged ({type(error).__name__}); it is now {aside.name}", file=sys.stderr)
        is_published, attempts = self.has(run_key), record.attempts
        if is_published:
            attempts = tuple(replace(one, end=one.end or "published") for one in attempts)
        return replace(record, is_published=is_published, attempts=attempts), tag

    def write(
        self, run_key: str, record: Record, tag: str | None, files: Mapping[str, bytes] | None = None
    ) -> str | None:
        """Change the record whose tag is `tag` (None: make it), and publish `files` in the same step.

        Returns the new tag, or None if another process changed the record.
        """
        path, content = self.root / "leases" / f"{run_key}.json", record.to_bytes()
        with named(path), locked(path.with_name(".lock")):
            if tag != (path.read_text(encoding="utf-8") if path.is_file() else None):
                return None
            if files is not None:
                self.publish(run_key, files)
            write_atomically(path, content)
        return content.decode()

    def mend(self, run_key: str, record: Record) -> None:
        """Do nothing, because the outcome is there before its record says so."""

    def finish(self, run_key: str, record: Record, files: Mapping[str, bytes]) -> Path:
        """Return the folder of an outcome whose record is written."""
        return self.root / "runs" / run_key


def next_token(record: Record) -> int:
    """Return a larger token than all of the run so far; it is a time, so that this holds after a record was deleted."""
    return max(record.token + 1, time.time_ns())


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


Specs = tuple[RunSpec, ...]
STACK_PREFIX, STATE, _MANIFEST = "stack-", "resume.pt", "group.json"


def stack_id(specs: Sequence[RunSpec]) -> str:
    """Return the name of an ordered list of runs that train as one."""
    return STACK_PREFIX + hashlib.sha256("+".join(spec.run_key for spec in specs).encode()).hexdigest()


def remember(specs: Sequence[RunSpec], scratch: Scratch) -> None:
    """Save the list of a stack's runs next to its state, so that the stack can be resumed as it was."""
    scratch.save(f"{stack_id(specs)}/{_MANIFEST}", canonical_json([spec.to_dict() for spec in specs]).encode())


def members_of(stack: str, scratch: Scratch) -> Specs:
    """Return the runs of the stack; none if its list can't be read."""
    try:
        specs = tuple(RunSpec.from_dict(spec) for spec in json.loads(scratch.load(f"{stack}/{_MANIFEST}") or b""))
    except (OSError, TypeError, ValueError, KeyError):
        return ()
    return specs if stack_id(specs) == stack else ()


def begun_stacks(scratch: Scratch) -> list[Specs]:
    """List the stacks whose training was interrupted after an epoch."""
    return [members_of(name, scratch) for name in scratch.list_works(STACK_PREFIX) if scratch.holds(f"{name}/{STATE}")]


class DamagedRunList(ValueError):
    """A `runs.json` that can't be read; `train` rewrites it."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """One row of `runs.json`: a run with its arm and replicate.

    `digest` covers the outcome's files, so that a stage that depends on the list depends on all of them.
    """

    arm: str
    role: str
    replicate: int
    run_key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class RunList:
    """Content of `data/runs/<experiment>/runs.json`; `missing` has the labels of runs without an outcome."""

    experiment: str
    dataset: str
    profile: str
    cut: str
    runs: tuple[ListedRun, ...]
    missing: tuple[str, ...] = ()


def read_run_list(folder: Path) -> RunList | None:
    """Read the run list of an experiment's folder; None if there is none.

    Raises:
        DamagedRunList: it can't be read.
    """
    path = folder / "runs.json"
    if not path.is_file():
        return None
    try:
        fields = json.loads(path.read_bytes())
        runs, missing = tuple(ListedRun(**run) for run in fields["runs"]), tuple(fields.get("missing", ()))
        return RunList(**fields | {"runs": runs, "missing": missing})
    except (ValueError, KeyError, TypeError):
        raise DamagedRunList(f"{path}: damaged; `claimcheck stage train {folder.name}` rewrites it") from None


def write_run_list(folder: Path, run_list: RunList) -> None:
    fields = asdict(run_list)
    if not run_list.missing:
        del fields["missing"]
    write_atomically(folder / "runs.json", (json.dumps(fields, indent=1) + "\n").encode())


RESULT = "result.json"
FILES = ("spec.json", "history.jsonl", RESULT, "weights.safetensors")
_DIGEST = "outcome_sha256"
_DIGESTS: dict[tuple[int, ...], str] = {}
"""Digests of files that this process has read, by device, inode, size and times."""


def seal(files: Mapping[str, bytes], known: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Return the `files` of an outcome with their joint digest in `result.json`.

    `known` has the sha256 of large files that the caller has already computed.
    """
    result = json.loads(files[RESULT])
    result.pop(_DIGEST, None)
    others = {name: content for name, content in files.items() if name not in {RESULT, *(known or {})}}
    digests = digests_of(others) | dict(known or {})
    return {**files, RESULT: canonical_json(result | {_DIGEST: _combine(digests, result)}).encode()}


def find_fault(outcome: Path | Mapping[str, bytes], run_key: str) -> str | None:
    """Describe the fault of an outcome, a folder or bytes by file; None if it is complete and belongs to `run_key`.

    Outcomes of older versions have no joint digest, so that only their spec and weights are checked.
    """
    try:
        if isinstance(outcome, Path):
            digests, content = file_digests(outcome), (outcome / RESULT).read_bytes()
        else:
            if unknown := sorted(outcome.keys() - FILES):
                return f"{unknown[0]} isn't a file of an outcome; those are {', '.join(FILES)}"
            digests, content = digests_of(outcome), outcome.get(RESULT, b"")
        result = json.loads(content)
        if missing := [name for name in ("spec.json", "history.jsonl") if name not in digests]:
            return f"{missing[0]} is missing"
        if digests["spec.json"] != run_key:
            return f"spec.json is of run {digests['spec.json'][:12]}, not {run_key[:12]}, or was changed"
        if result["run_key"] != run_key:
            return f"result.json is of run {str(result['run_key'])[:12]}, not {run_key[:12]}"
        if digests.get("weights.safetensors") != result["weights_sha256"]:
            return "weights.safetensors is not the file that result.json names"
        sealed = result.pop(_DIGEST, None)
    except OSError as error:
        return f"{error.filename or outcome}: {error.strerror}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"result.json can't be read ({type(error).__name__})"
    others = {name: digest for name, digest in digests.items() if name != RESULT}
    if sealed is not None and sealed != _combine(others, result):
        return "history.jsonl or result.json is not as published: the joint digest differs"
    return None


def outcome_digest(folder: Path, *, is_whole: bool = False) -> str:
    """Return the sha256 over the names and contents of an outcome's files.

    `is_whole` means that the outcome was just checked or published.  Its weights aren't read then, because
    `result.json` has their digest, which `evaluate` compares.
    """
    digests = file_digests(folder, FILES[:-1] if is_whole else FILES)
    if is_whole and (weights := json.loads((folder / RESULT).read_bytes())["weights_sha256"]):
        digests[FILES[-1]] = weights
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def file_digests(folder: Path, names: Iterable[str] = FILES) -> dict[str, str]:
    """Return the sha256 of each file of the outcome in `folder`; a process reads a file once, whatever its names."""
    found = {}
    for name in names:
        path = folder / name
        if path.is_file():
            status = path.stat()
            identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if identity not in _DIGESTS:
                with path.open("rb") as file:
                    _DIGESTS[identity] = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = _DIGESTS[identity]
    return found


def _combine(digests: Mapping[str, str], result: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json([sorted(digests.items()), result]).encode()).hexdigest()


Scratch: TypeAlias = "FolderScratch | ObjectScratch"
Store: TypeAlias = "RunStore | ObjectStore"

"""The store in an object store, by URL: several machines without a common file system train into it.

    leases/<run key>.json     the run's record: who trains it, under which token, its attempts, and its outcome's files
    runs/<run key>.json       the manifest of a published outcome: sha256 by file name
    blobs/<sha256>            files of outcomes
    work/<run or stack>/…     states of trainings in progress

A record changes only by compare-and-swap on its e-tag.  Publishing is one such change, by the holder of the newest
token: from a record without an outcome to one that names the digests of files that were all written before.  Check and
change are one, so nobody can take the run over in between: an outcome is published once, whole, and never by a process
that was taken over.  The manifest follows with the same content, for readers and listings; whoever claims a run whose
record has an outcome and no manifest, because its writer was killed in between, writes it.

A file's digest is checked when it is read; what was read is kept in a folder of this machine, a `RunStore` of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.runs.bucket import Bucket, StoreFault
from stages.runs.outcome import find_fault
from stages.runs.store import RunStore

LEASES, RUNS, BLOBS, WORK = "leases", "runs", "blobs", "work"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Who trains a run, and what became of it.  `beat` counts renewals, so that no two contents are equal.

    `files`: digests of what the holder is about to publish, or has published if `is_published`.
    """

    token: int = 0
    owner: str | None = None
    beat: int = 0
    since: float | None = None
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_published: bool = False
    attempts: tuple[Mapping[str, Any], ...] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()


class ObjectScratch:
    """States of trainings in progress, below `work/`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def load(self, name: str) -> bytes | None:
        found = self.bucket.get(f"{WORK}/{name}")
        return None if found is None else found[0]

    def holds(self, name: str) -> bool:
        return self.bucket.has(f"{WORK}/{name}")

    def save(self, name: str, content: bytes) -> None:
        self.bucket.put(f"{WORK}/{name}", content)

    def drop(self, work: str) -> None:
        self.bucket.delete([item.name for item in self.bucket.list(f"{WORK}/{work}")])

    def list_works(self, prefix: str = "") -> Iterator[str]:
        last = ""
        for item in self.bucket.list(WORK):
            work = item.name.split("/")[1]
            if work != last and work.startswith(prefix):
                yield work
            last = work


class ObjectStore:
    """Outcomes in the object store at `url`; what was read is kept below the folder `kept` of this machine."""

    def __init__(self, url: str, kept: Path) -> None:
        self.bucket = Bucket(url)
        self.cache = RunStore(kept / hashlib.sha256(self.bucket.url.encode()).hexdigest()[:16])

    @property
    def address(self) -> str:
        return self.bucket.url

    @property
    def scratch(self) -> ObjectScratch:
        return ObjectScratch(self.bucket)

    def has(self, run_key: str) -> bool:
        return self.cache.has(run_key) or self.bucket.has(_manifest(run_key))

    def run_keys(self) -> Iterator[str]:
        for item in self.bucket.list(RUNS):
            yield item.name.removeprefix(f"{RUNS}/").removesuffix(".json")

    def published(self, run_key: str) -> Path | None:
        """Folder of a complete outcome, or None; it is fetched if it wasn't yet, and set aside if that is damaged."""
        return self.cache.published(run_key) or self._fetch(run_key)

    def whole(self, run_key: str) -> Path | None:
        """Folder of a complete outcome whose digests match, or None; a damaged copy here is fetched anew."""
        return self.cache.whole(run_key) or self._fetch(run_key)

    def _fetch(self, run_key: str) -> Path | None:
        manifest = self.bucket.get(_manifest(run_key))
        if manifest is None:
            return None
        files, fault = dict[str, bytes](), None
        try:
            for name, digest in json.loads(manifest[0]).items():
                blob = self.bucket.get(_blob(digest))
                if blob is None or hashlib.sha256(blob[0]).hexdigest() != digest:
                    fault = f"{name} is {'missing' if blob is None else 'not the file that was published'}"
                    break
                files[name] = blob[0]
        except (ValueError, AttributeError):
            fault = "its manifest can't be read"
        fault = fault or find_fault(files, run_key)
        if fault is None:
            return self.cache.publish(run_key, files)
        print(
            f"  {run_key[:12]}: the outcome in {self.address} is damaged: {fault}; it will be trained anew",
            file=sys.stderr,
        )
        self._withdraw(run_key)
        return None

    def _withdraw(self, run_key: str) -> None:
        """Take back the publication of a damaged outcome; one of meanwhile gets its manifest from the next claim."""
        record, tag = self.read(run_key)
        self.bucket.delete([_manifest(run_key)])
        if tag is not None and record.is_published:
            self.write(run_key, dataclasses.replace(record, is_published=False, files={}), tag)

    def publish(self, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome without a lease, as `dvc pull` brings it; whoever trains the run loses it."""
        digests = self.upload(files)
        while True:
            record, tag = self.read(run_key)
            if not record.is_published:
                made = dataclasses.replace(
                    record, token=next_token(record), owner=None, files=digests, is_published=True
                )
                if self.write(run_key, made, tag) is None:
                    continue
                record = made
            return self.finish(run_key, record, files)

    def upload(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write the files under their digests, which are returned by name."""
        digests = digests_of(files)
        for name, content in files.items():
            self.bucket.put(_blob(digests[name]), content)
        return digests

    def finish(self, run_key: str, record: Record, files: Mapping[str, bytes] | None = None) -> Path:
        """After the record: the manifest, the copy here, and no scratch any more."""
        self.mend(run_key, record)
        self.scratch.drop(run_key)
        if files is not None and digests_of(files) == dict(record.files):
            return self.cache.publish(run_key, files)
        folder = self.published(run_key)
        if folder is None:
            raise StoreFault(self.address, f"the outcome of run {run_key[:12]} was damaged as soon as it was published")
        return folder

    def mend(self, run_key: str, record: Record) -> None:
        """Write the manifest of a published record, if whoever published it was killed before."""
        self.bucket.create(_manifest(run_key), json.dumps(record.files, sort_keys=True).encode())

    def named_blobs(self) -> set[str]:
        """Names of all files that an outcome has, or will have once its holder publishes it.

        A published outcome keeps its files also where its record was deleted: then the manifest names them.
        """
        keys = {item.name.removeprefix(f"{LEASES}/").removesuffix(".json") for item in self.bucket.list(LEASES)}
        with ThreadPoolExecutor() as pool:
            named = [record.files for record, _ in pool.map(self.read, keys)]
            named += pool.map(self._manifest_of, {*self.run_keys()} - keys)
        return {_blob(digest) for files in named for digest in files.values()}

    def _manifest_of(self, run_key: str) -> dict[str, str]:
        """Digests of the outcome's files, none if it isn't there any more.

        Raises:
            StoreFault: it can't be read.
        """
        found = self.bucket.get(_manifest(run_key))
        try:
            return {} if found is None else dict(json.loads(found[0]).items())
        except (ValueError, AttributeError):
            raise StoreFault(self.address, f"{_manifest(run_key)} can't be read: delete it") from None

    def read(self, run_key: str) -> tuple[Record, str | None]:
        """The run's record and its e-tag; an empty one and None if it has none.

        Raises:
            StoreFault: the record can't be read.
        """
        found = self.bucket.get(_record(run_key))
        if found is None:
            return Record(), None
        try:
            fields = json.loads(found[0])
            return Record(**fields | {"attempts": tuple(fields["attempts"])}), found[1]
        except (ValueError, TypeError, KeyError) as error:
            name = _record(run_key)
            raise StoreFault(self.address, f"{name} can't be read ({type(error).__name__}): delete it") from None

    def write(self, run_key: str, record: Record, tag: str | None) -> str | None:
        """Change the record whose e-tag is `tag` (None: make it); its new e-tag, or None if it was another's turn."""
        content = record.to_bytes()
        if tag is None:
            return self.bucket.create(_record(run_key), content)
        return self.bucket.replace(_record(run_key), content, tag)


def next_token(record: Record) -> int:
    """Larger than every token of the run so far; a time, so that this holds even after a record was deleted."""
    return max(record.token + 1, time.time_ns())


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _record(run_key: str) -> str:
    return f"{LEASES}/{run_key}.json"


def _manifest(run_key: str) -> str:
    return f"{RUNS}/{run_key}.json"


def _blob(digest: str) -> str:
    return f"{BLOBS}/{digest}"

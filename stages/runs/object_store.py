"""The run store in an object store, which several machines without a common file system share by its URL."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

from stages.runs.store import Record, RunStore, Store, digests_of, find_fault, home, next_token

LEASES, RUNS, BLOBS, WORK = "leases", "runs", "blobs", "work"


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
    """Outcomes in the object store at `url`, for machines without a common file system.

        leases/<run key>.json     the run's record: who trains it, under which token, its attempts, its outcome's files
        runs/<run key>.json       the manifest of a published outcome: sha256 by file name
        blobs/<sha256>            files of outcomes
        work/<run or stack>/…     states of trainings in progress

    A record changes only by compare-and-swap on its e-tag.  To publish an outcome, the holder of the newest token
    writes all files first, and then changes the record, which names their digests.  An outcome is therefore published
    once, whole, and never by a process that has lost its lease.  The manifest follows, for readers and listings; if it
    is missing, the next process that claims the run writes it.  A file's digest is checked when the file is read, and
    the file is kept below this machine's folder `kept`.

    The URL is `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.  Keys and endpoints come from the
    environment variables of the providers' own tools (AWS_ENDPOINT_URL for another store with S3's interface).
    """

    poll_seconds = 2.0

    def __init__(self, url: str, kept: Path) -> None:
        self.bucket = Bucket(url)
        self.cache = RunStore(kept / hashlib.sha256(self.bucket.url.encode()).hexdigest()[:16])

    @property
    def address(self) -> str:
        return self.bucket.url

    @property
    def late_answers(self) -> int:
        return self.bucket.late_answers

    @property
    def scratch(self) -> ObjectScratch:
        return ObjectScratch(self.bucket)

    def has(self, run_key: str) -> bool:
        return self.cache.has(run_key) or self.bucket.has(_manifest(run_key))

    def run_keys(self) -> Iterator[str]:
        for item in self.bucket.list(RUNS):
            yield item.name.removeprefix(f"{RUNS}/").removesuffix(".json")

    def published(self, run_key: str) -> Path | None:
        """Return the folder of a complete outcome, or None; fetch it first if necessary."""
        return self.cache.published(run_key) or self._fetch(run_key)

    def whole(self, run_key: str) -> Path | None:
        """Return the folder of a complete outcome whose digests match, or None; fetch a damaged copy again."""
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
            f"  {run_key[:12]}: the outcome in {self.address} is damaged: {fault}; it will be trained again",
            file=sys.stderr,
        )
        record, tag = self.read(run_key)
        self.bucket.delete([_manifest(run_key)])
        if tag is not None and record.is_published:
            self.write(run_key, replace(record, is_published=False, files={}), tag)
        return None

    def publish(self, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome that `dvc pull` fetched; a process that trains the run loses its lease."""
        digests = self.upload(files)
        while True:
            record, tag = self.read(run_key)
            if not record.is_published:
                made = replace(record, token=next_token(record), owner=None, files=digests, is_published=True)
                if self.write(run_key, made, tag) is None:
                    continue
                record = made
            return self.finish(run_key, record, files)

    def upload(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write the files under their digests; return the digests by name."""
        digests = digests_of(files)
        for name, content in files.items():
            self.bucket.put(_blob(digests[name]), content)
        return digests

    def finish(self, run_key: str, record: Record, files: Mapping[str, bytes]) -> Path:
        """Complete a publication whose record is written: write the manifest and the local copy, drop the scratch."""
        self.mend(run_key, record)
        self.scratch.drop(run_key)
        if digests_of(files) == dict(record.files):
            return self.cache.publish(run_key, files)
        folder = self.published(run_key)
        if folder is None:
            raise StoreFault(self.address, f"the outcome of run {run_key[:12]} was damaged as soon as it was published")
        return folder

    def mend(self, run_key: str, record: Record) -> None:
        """Write the manifest of a published record, if its publisher was killed before that."""
        self.bucket.create(_manifest(run_key), json.dumps(record.files, sort_keys=True).encode())

    def named_blobs(self) -> set[str]:
        """Return the names of all files of outcomes that are published or about to be.

        If a published outcome's record was deleted, its manifest names the files.
        """
        keys = {item.name.removeprefix(f"{LEASES}/").removesuffix(".json") for item in self.bucket.list(LEASES)}
        with ThreadPoolExecutor() as pool:
            named = [record.files for record, _ in pool.map(self.read, keys)]
            named += pool.map(self._manifest_of, {*self.run_keys()} - keys)
        return {_blob(digest) for files in named for digest in files.values()}

    def _manifest_of(self, run_key: str) -> dict[str, str]:
        """Return the digests of the outcome's files; none if it is gone."""
        found = self.bucket.get(_manifest(run_key))
        try:
            return {} if found is None else dict(json.loads(found[0]).items())
        except (ValueError, AttributeError):
            raise StoreFault(self.address, f"{_manifest(run_key)} can't be read: delete it") from None

    def read(self, run_key: str) -> tuple[Record, str | None]:
        """Return the run's record and its e-tag; an empty record and None if there is none."""
        found = self.bucket.get(_record(run_key))
        if found is None:
            return Record(), None
        try:
            return Record.from_bytes(found[0]), found[1]
        except (ValueError, TypeError, KeyError) as error:
            name = _record(run_key)
            raise StoreFault(self.address, f"{name} can't be read ({type(error).__name__}): delete it") from None

    def write(
        self, run_key: str, record: Record, tag: str | None, files: Mapping[str, bytes] | None = None
    ) -> str | None:
        """Change the record whose e-tag is `tag` (None: create it); return the new e-tag, or None if `tag` is old."""
        content = record.to_bytes()
        if tag is None:
            return self.bucket.create(_record(run_key), content)
        return self.bucket.replace(_record(run_key), content, tag)


def _record(run_key: str) -> str:
    return f"{LEASES}/{run_key}.json"


def _manifest(run_key: str) -> str:
    return f"{RUNS}/{run_key}.json"


def _blob(digest: str) -> str:
    return f"{BLOBS}/{digest}"


KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Environment variables that hold the keys, by scheme."""
RETRY_SECONDS = 120.0
LATE_SECONDS = 10.0
"""An answer that takes longer is late: the store was unreachable, for other processes, too."""
_REQUEST_SECONDS = 60
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_PAGE = 1000
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""The providers' error codes for a missing bucket."""
_METADATA = "169.254.169.254"
"""Address at which a cloud's machine gets its role; any machine without keys in its environment tries it."""
_REFUSED = re.compile(r"status code: (?!408|409|412|425|429)4\d\d(?!.*RequestTimeout)|configured region", re.DOTALL)
"""Errors that don't go away if the request is sent again."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT")
T = TypeVar("T")


class StoreFault(OSError):
    """An object store that can't be used, or that hasn't answered for long; `filename` is its URL."""

    def __init__(self, url: str, words: str) -> None:
        super().__init__(None, words, url)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    def __reduce__(self) -> tuple[type[StoreFault], tuple[str, str]]:
        return StoreFault, (self.filename, str(self.strerror))


@dataclass(frozen=True)
class Item:
    """An object in a listing; `changed` is its last change by the store's clock (seconds since 1970)."""

    name: str
    size_bytes: int
    changed: float


class Bucket:
    """Objects below `url`.  If the store doesn't answer, requests are retried for `retry_seconds`.

    `late_answers` counts late answers to all callers in this process.
    """

    def __init__(self, url: str, retry_seconds: float = RETRY_SECONDS) -> None:
        scheme = url.partition("://")[0]
        if scheme not in KEYS:
            raise StoreFault(url, f"no object store; known: {', '.join(f'{one}://' for one in KEYS)}")
        if importlib.util.find_spec("obstore") is None:
            raise StoreFault(url, "needs the package obstore, which isn't installed: `make cluster` adds it")
        self.url, self.retry_seconds = url.rstrip("/"), retry_seconds
        self.late_answers = 0
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return content and e-tag; None if there is no such object."""
        try:
            return self._call(lambda client: (bytes((found := client.get(name)).bytes()), found.meta["e_tag"]))
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        try:
            return self._call(lambda client: client.head(name) is not None)
        except FileNotFoundError:
            return False

    def put(self, name: str, content: bytes) -> None:
        """Write the object, replacing any other; a large one is uploaded in parts and appears at once."""
        self._call(lambda client: client.put(name, content))

    def create(self, name: str, content: bytes) -> str | None:
        """Create the object and return its e-tag; None if there is one already."""
        return self._put_if(name, content, "create")

    def replace(self, name: str, content: bytes, tag: str) -> str | None:
        """Replace the object and return its new e-tag; None if its e-tag was no longer `tag`.

        No two contents may be equal, because e-tags are digests of them.
        """
        return self._put_if(name, content, {"e_tag": tag})

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones aren't an error."""
        for start in range(0, len(names), _PAGE):
            with suppress(FileNotFoundError):
                self._call(methodcaller("delete", list(names[start : start + _PAGE])))

    def list(self, folder: str) -> Iterator[Item]:
        """Yield all objects below `folder`, page by page, in order of their names."""
        page = self._page(folder, None)
        while page:
            yield from page
            page = self._page(folder, page[-1].name) if len(page) == _PAGE else []

    def _page(self, folder: str, after: str | None) -> Sequence[Item]:
        found: Any = self._call(lambda client: next(client.list(folder, offset=after, chunk_size=_PAGE), []))
        return [Item(one["path"], one["size"], one["last_modified"].timestamp()) for one in found]

    def check(self) -> None:
        """Write, read and delete an object, as every training does."""
        name = f"checks/{random.getrandbits(64):016x}"
        self.put(name, b"")
        self.get(name)
        self.delete([name])

    def now(self) -> float:
        """Return the store's time in seconds since 1970, which is that of an object written now."""
        self.put("clock", str(random.getrandbits(64)).encode())
        return float(self._call(lambda client: client.head("clock")["last_modified"].timestamp()))

    def _put_if(self, name: str, content: bytes, mode: Any) -> str | None:
        exceptions = importlib.import_module("obstore.exceptions")
        try:
            return str(self._call(lambda client: client.put(name, content, mode=mode)["e_tag"]))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            found = self.get(name)  # ours, if an answer was lost and the request was retried
            return found[1] if found is not None and found[0] == content else None

    def _call(self, ask: Callable[[Any], T]) -> T:
        """Return the answer, after retries if necessary.

        Raises:
            FileNotFoundError: there is no such object.
            StoreFault: the store can't be used, or didn't answer for too long.
        """
        exceptions = importlib.import_module("obstore.exceptions")
        wait, began = _FIRST_WAIT, time.monotonic()
        faults = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, exceptions.GenericError)
        try:
            while True:
                try:
                    return ask(self._open())
                except (FileNotFoundError, *faults, exceptions.JoinError) as error:
                    if any(code in str(error) for code in _NO_BUCKET):
                        raise StoreFault(self.url, "there is no such bucket") from None
                    if isinstance(error, FileNotFoundError):
                        raise
                    self._refuse(error, time.monotonic() - began)
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, _LONGEST_WAIT)
        finally:
            self.late_answers += time.monotonic() - began >= LATE_SECONDS

    def _refuse(self, error: Exception, waited: float) -> None:
        """Raise a StoreFault if a retry would be useless, or the request was retried for long enough."""
        keys, is_refused = KEYS[self.url.partition("://")[0]], _REFUSED.search(str(error)) is not None
        fault, retry_seconds = f"access is refused (its keys are {keys} of the environment)", self.retry_seconds
        if _METADATA in str(error):
            fault = f"the environment has no {keys}, and this machine has no role"
            retry_seconds = min(retry_seconds, LATE_SECONDS)
        elif not is_refused:
            fault = f"no answer for {retry_seconds:.0f} s"
        if is_refused or waited >= retry_seconds:
            raise StoreFault(self.url, f"{fault}: {_in_one_line(error)}") from None

    def _open(self) -> Any:
        if self._client is None:
            seconds = timedelta(seconds=_REQUEST_SECONDS)
            options: Any = {"timeout": seconds, "connect_timeout": timedelta(seconds=5)}
            retries: Any = {"max_retries": 0, "retry_timeout": seconds}  # the waiting is ours
            if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
                options["allow_http"] = True
            try:
                from_url = importlib.import_module("obstore.store").from_url
                self._client = from_url(self.url, client_options=options, retry_config=retries)
            except importlib.import_module("obstore.exceptions").BaseError as error:
                raise StoreFault(self.url, _in_one_line(error)) from None
        return self._client


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).partition("Debug source")[0].split())[:400]


STORE = "CLAIMCHECK_STORE"
"""Environment variable with the store: a folder, or the URL of an object store."""


def open_store(root: Path = Path()) -> Store:
    """Open the store of the clone in `root`."""
    address = os.environ.get(STORE)
    if address and "://" in address:
        return ObjectStore(address, store_folder(root) / "objects")
    return RunStore(root / address) if address else RunStore(store_folder(root))


def store_folder(root: Path = Path()) -> Path:
    """Return this machine's folder of the store itself, or of what was read from an object store."""
    return root / home() / "store"

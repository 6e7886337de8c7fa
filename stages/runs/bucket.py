"""Objects below one URL of an object store: whole writes, conditional ones, and patience with a store that is away.

`s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`; keys and endpoints come from the environment, by
the names that the providers' own tools use (AWS_ENDPOINT_URL for another store that speaks S3).
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Environment variables that hold the keys, by scheme."""
PATIENCE_SECONDS = 120.0
LATE_SECONDS = 10.0
"""An answer that takes as long is late: the store was away, and from others, too."""
_REQUEST_SECONDS = 60
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_PAGE = 1000
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""What the providers call it."""
_METADATA = "169.254.169.254"
"""A cloud's machine asks its role there; any machine whose environment has no keys tries to."""
_REFUSED = re.compile(r"status code: (?!408|409|412|425|429)4\d\d(?!.*RequestTimeout)|configured region", re.DOTALL)
"""Answers that stay the same however often the request is sent again."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT")
T = TypeVar("T")


class StoreFault(OSError):
    """An object store that can't be used, or hasn't answered for long; `filename` is its URL."""

    def __init__(self, url: str, words: str) -> None:
        super().__init__(None, words, url)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    def __reduce__(self) -> tuple[type[StoreFault], tuple[str, str]]:
        return StoreFault, (self.filename, str(self.strerror))


@dataclass(frozen=True)
class Item:
    """An object in a listing: its name, size in bytes, and last change by the store's clock (seconds since 1970)."""

    name: str
    size_bytes: int
    changed: float


class Bucket:
    """Objects below `url`.  A store that doesn't answer is asked again for `patience` seconds.

    `late_answers` counts what came late, whoever in this process asked.

    Raises:
        StoreFault: not such a URL, no package for it, access refused, or no answer for that long.
    """

    def __init__(self, url: str, patience: float = PATIENCE_SECONDS) -> None:
        scheme = url.partition("://")[0]
        if scheme not in KEYS:
            raise StoreFault(url, f"no object store; known: {', '.join(f'{one}://' for one in KEYS)}")
        if importlib.util.find_spec("obstore") is None:
            raise StoreFault(url, "needs the package obstore, which isn't installed: `make cluster` adds it")
        self.url, self.patience = url.rstrip("/"), patience
        self.late_answers = 0
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Content and e-tag; None if there is no such object."""
        try:
            return self._call(lambda client: _read(client.get(name)))
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        try:
            return self._call(lambda client: client.head(name) is not None)
        except FileNotFoundError:
            return False

    def put(self, name: str, content: bytes) -> None:
        """Write the object, whatever was there; large ones go in parts and appear at once."""
        self._call(lambda client: client.put(name, content))

    def create(self, name: str, content: bytes) -> str | None:
        """The e-tag of the new object; None if there is one already."""
        return self._put_if(name, content, "create")

    def replace(self, name: str, content: bytes, tag: str) -> str | None:
        """The new e-tag; None if the object's is no longer `tag`.  No two contents may be equal: e-tags follow them."""
        return self._put_if(name, content, {"e_tag": tag})

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that aren't there are no error."""
        for start in range(0, len(names), _PAGE):
            self._delete(list(names[start : start + _PAGE]))

    def _delete(self, names: list[str]) -> None:
        with suppress(FileNotFoundError):
            self._call(lambda client: client.delete(names))

    def list(self, folder: str) -> Iterator[Item]:
        """All objects below `folder`, page by page, in order of their names."""
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
        """The store's own time, in seconds since 1970: that of an object written now."""
        self.put("clock", str(random.getrandbits(64)).encode())
        return float(self._call(lambda client: client.head("clock")["last_modified"].timestamp()))

    def _put_if(self, name: str, content: bytes, mode: Any) -> str | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            return str(self._call(lambda client: client.put(name, content, mode=mode)["e_tag"]))
        except (AlreadyExistsError, PreconditionError):
            found = self.get(name)  # ours, if an answer was lost and the request sent again
            return found[1] if found is not None and found[0] == content else None

    def _call(self, ask: Callable[[Any], T]) -> T:
        """The answer, after waiting if need be; FileNotFoundError for an object that isn't there."""
        began = time.monotonic()
        try:
            return self._wait_for(ask, began)
        finally:
            self.late_answers += time.monotonic() - began >= LATE_SECONDS

    def _wait_for(self, ask: Callable[[Any], T], began: float) -> T:
        from obstore import exceptions

        wait = _FIRST_WAIT
        while True:
            try:
                return ask(self._open())
            except (
                FileNotFoundError,
                exceptions.PermissionDeniedError,
                exceptions.UnauthenticatedError,
                exceptions.GenericError,
                exceptions.JoinError,
            ) as error:
                words = str(error)
                if any(code in words for code in _NO_BUCKET):
                    raise StoreFault(self.url, "there is no such bucket") from None
                if isinstance(error, FileNotFoundError):
                    raise
                keys, is_refused = KEYS[self.url.partition("://")[0]], _REFUSED.search(words) is not None
                fault = f"access is refused (its keys are {keys} of the environment)"
                patience = self.patience
                if _METADATA in words:
                    fault = f"the environment has no {keys}, and this machine has no role"
                    patience = min(patience, LATE_SECONDS)
                elif not is_refused:
                    fault = f"no answer for {patience:.0f} s"
                if is_refused or time.monotonic() - began >= patience:
                    raise StoreFault(self.url, f"{fault}: {_in_one_line(error)}") from None
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)

    def _open(self) -> Any:
        if self._client is None:
            from obstore.exceptions import BaseError
            from obstore.store import from_url

            seconds = timedelta(seconds=_REQUEST_SECONDS)
            options: Any = {"timeout": seconds, "connect_timeout": timedelta(seconds=5)}
            retries: Any = {"max_retries": 0, "retry_timeout": seconds}  # the waiting is ours
            if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
                options["allow_http"] = True
            try:
                self._client = from_url(self.url, client_options=options, retry_config=retries)
            except BaseError as error:
                raise StoreFault(self.url, _in_one_line(error)) from None
        return self._client


def _read(found: Any) -> tuple[bytes, str]:
    return bytes(found.bytes()), found.meta["e_tag"]


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).partition("Debug source")[0].split())[:400]

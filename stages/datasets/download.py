"""Files from the official hosts over HTTP, complete and verified or not at all."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from stages.datasets.archive import BadArchive, walk
from stages.datasets.verified import CHUNK_BYTES, DatasetError, Digests, Pin, store_verified

TIMEOUT_SECONDS = 30.0
HTML_STARTS = (b"<!doctype html", b"<html")


class Unavailable(DatasetError):
    """A host didn't deliver the file; another one may."""


class Unreachable(Unavailable):
    """No connection, or one that broke off before the first byte."""


class Refused(Unavailable):
    """The host answered with an HTTP error."""


class NotTheFile(Unavailable):
    """The host answered with a web page, as login pages and moved sites do."""


class Truncated(Unavailable):
    """The connection ended before the whole file was there."""


def download(url: str, target: Path, pin: Pin) -> Digests:
    """Put the file at `url` into `target`, with every byte checked on the way.

    Raises:
        Unavailable: the host doesn't deliver it, or not completely.
        ChecksumMismatch: it delivers other bytes.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "claimcheck"})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(f"{url}: HTTP {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        where = f"{url}{_by_proxy(url)}"
        raise Unreachable(f"{where}: {getattr(error, 'reason', error) or type(error).__name__}") from None
    with response:
        return store_verified(_body(response, url), target, pin, url)


def _by_proxy(url: str) -> str:
    """The proxy that the environment names for `url`, in words, without its password."""
    scheme, host = urllib.parse.urlsplit(url)[:2]
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return ""
    return f", through the proxy {proxy.rpartition('@')[2].removeprefix(f'{scheme}://')} ({scheme}_proxy)"


def _body(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """The chunks of a response that is a file and as long as its header says."""
    length = response.headers.get("Content-Length")
    expected = int(length) if length is not None and length.isdigit() else None
    received = 0
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as error:
            raise Truncated(f"{url}: broke off after {_of(received, expected)} bytes ({error})") from None
        if not chunk:
            break
        is_html = response.headers.get_content_type() == "text/html"
        if received == 0 and (is_html or chunk.lstrip().lower().startswith(HTML_STARTS)):
            raise NotTheFile(f"{url}: a web page came instead of the file")
        received += len(chunk)
        yield chunk
    if expected is not None and received != expected:
        raise Truncated(f"{url}: ended after {_of(received, expected)} bytes")


def _of(received: int, expected: int | None) -> str:
    return f"{received:,}" if expected is None else f"{received:,} of {expected:,}"


def extract(archive: Path, folder: Path, pins: Mapping[str, Pin]) -> dict[str, Digests]:
    """Take the files named in `pins` out of an archive, each verified, into `folder`; nothing else is written.

    Raises:
        BadArchive: it can't be read, is a trap, or lacks a file.
        ChecksumMismatch: a file in it is another one.
    """
    missing, digests = dict(pins), {}
    for member in walk(archive):
        pin = missing.pop(member.name, None)
        if pin is not None:
            digests[member.name] = store_verified(member.chunks(), folder / member.name, pin, member.where)
    if missing:
        raise BadArchive(f"{archive}: has no {', '.join(missing)}")
    return digests

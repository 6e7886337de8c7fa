"""Sources of a data set's files: the downloads, a mirror, the official host, in this order.

A file from any source is accepted only if its bytes are the published ones, or those that a mirror declares.  If no
digest is published, the first copy is trusted, and every later one must be the same until a user accepts another.
Files found stay in the downloads, so that later runs need neither mirror nor network.  Wrong bytes in the downloads are
reported and replaced; wrong bytes in a mirror or from an official host stop the fetch, because going on would hide
them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from stages.datasets import shards
from stages.datasets.archive import walk
from stages.datasets.manifest import (
    CHUNK_BYTES,
    ChecksumMismatch,
    DatasetError,
    Digests,
    Manifest,
    ManifestFile,
    Pin,
    chunks_of,
    digest_file,
    read_chunks,
    store_verified,
)
from stages.datasets.mirror import (
    MirrorFile,
    MirrorInfo,
    describe_file,
    official_pin,
    pack_loose,
    pin_in,
    read_mirror,
    write_mirror,
)
from stages.params.experiment import DatasetSource, SourceFile
from stages.params.schema import nearest

TIMEOUT_SECONDS = 30.0
HTML_STARTS = (b"<!doctype html", b"<html")


class Unavailable(DatasetError):
    """A host didn't deliver the file; another one may."""


def download(url: str, target: Path, pin: Pin) -> Digests:
    """Download the file at `url` to `target`, checking every byte on the way.

    Raises:
        Unavailable: the host doesn't deliver it, or not completely.
        ChecksumMismatch: it delivers other bytes.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        return store_verified(_by_fsspec(url), target, pin, url)
    request = urllib.request.Request(url, headers={"User-Agent": "claimcheck"})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            raise Unavailable(f"{url}: HTTP {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        where = f"{url}{_by_proxy(url)}"
        raise Unavailable(f"{where}: {getattr(error, 'reason', error) or type(error).__name__}") from None
    with response:
        return store_verified(_body(response, url), target, pin, url)


def _by_fsspec(url: str) -> Iterator[bytes]:
    """The chunks of a file at an address of another kind, such as `s3://` or `file://`."""
    import fsspec  # takes a third of a second

    try:
        with fsspec.open(url, "rb") as file:
            yield from chunks_of(file)
    except Exception as error:  # noqa: BLE001  (each kind of address has a package with errors of its own)
        raise Unavailable(f"{url}: {str(error) or type(error).__name__}") from None


def _list_folder(url: str) -> list[str]:
    """Names of the files below an address, relative to it; none if it can't be listed, as over HTTP."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
        return [str(PurePosixPath(name).relative_to(path)) for name in system.find(path)]
    except Exception:  # noqa: BLE001  (as above; whoever downloads from it says why)
        return []


def list_files(source: DatasetSource, folder: Path, mirror: Path | None, *, accept: bool) -> DatasetSource:
    """The source with the files of each folder, wherever they are, and of each range that it names.

    A file that was fetched before belongs to them as long as nobody accepts that it is gone.

    Raises:
        DatasetError: a link in a folder leads to a folder, which would be left out, or to nothing.
    """
    info, files = read_mirror(folder), list[SourceFile]()
    for file in source.files:
        if not file.name.endswith("/"):
            files += [SourceFile(name=name) for name in sorted(file.names)] if file.is_group else [file]
            continue
        names = {name for name in info.files if file.covers(name)} if info and not accept else set()
        are_known = bool(names)
        for root in (folder, *([mirror] if mirror else [])):
            for path in (root / file.name).rglob("*"):
                if path.is_symlink() and not path.is_file() and not path.name.startswith("."):
                    what = "a folder" if path.exists() else "nothing"
                    raise DatasetError(f"{path}: a link to {what}; put the files there, or link all of {file.name}")
                names |= {path.relative_to(root).as_posix()} if path.is_file() else set()
        for base in source.urls if not are_known else ():
            names |= {file.name + name for name in _list_folder(base + file.name)}
        shown = {name for name in names if not any(part.startswith(".") for part in PurePosixPath(name).parts)}
        files += [SourceFile(name=name) for name in sorted(shown)]
    return dataclasses.replace(source, files=tuple(files))


def check_own(source: DatasetSource, info: MirrorInfo, say: Say) -> MirrorInfo:
    """The files of a folder or a range count as official if they have, together, its declared digest.

    Prints the digests to declare, without which a user's own files decide no claim.

    Raises:
        ChecksumMismatch: they have another one.
    """
    files = dict(info.files)
    for file in source.files:
        own = {name: found for name, found in sorted(files.items()) if file.covers(name)}
        listing = "".join(f"{found.sha256}  {name}\n" for name, found in own.items())
        digest = hashlib.sha256(listing.encode()).hexdigest() if file.is_group else "".join(listing.split()[:1])
        if _is_unpublished(file) and not source.complete_by_content and own:
            say(f"fetch: declare `sha256: {digest}` of {file.name}, or it decides no claim")
        elif file.is_group and digest != file.sha256:
            where, size = f"{file.name}, {len(own):,} files", sum(found.bytes for found in own.values())
            raise ChecksumMismatch(where, kind="sha256", expected=file.sha256 or "", got=digest, size_bytes=size)
        elif file.is_group:
            files |= {name: dataclasses.replace(found, matches_official=True) for name, found in own.items()}
    is_complete = any(file.is_group for file in source.files) and all(
        found.matches_official for found in files.values()
    )
    return dataclasses.replace(info, files=files, complete=info.complete or is_complete)


def _by_proxy(url: str) -> str:
    """Describe the proxy that the environment names for `url`, without its password."""
    scheme, host = urllib.parse.urlsplit(url)[:2]
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return ""
    return f", through the proxy {proxy.rpartition('@')[2].removeprefix(f'{scheme}://')} ({scheme}_proxy)"


def _body(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """Yield the chunks of a response that must be a file, as long as its header says."""
    length = response.headers.get("Content-Length")
    expected = int(length) if length is not None and length.isdecimal() else None
    received = 0
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as error:
            raise Unavailable(f"{url}: ended after {_of(received, expected)} bytes ({error})") from None
        if not chunk:
            break
        is_html = response.headers.get_content_type() == "text/html"
        if received == 0 and (is_html or chunk.lstrip().lower().startswith(HTML_STARTS)):
            raise Unavailable(f"{url}: got a web page instead of the file")
        received += len(chunk)
        yield chunk
    if expected is not None and received != expected:
        raise Unavailable(f"{url}: ended after {_of(received, expected)} bytes")


def _of(received: int, expected: int | None) -> str:
    return f"{received:,}" if expected is None else f"{received:,} of {expected:,}"


def extract(archive: Path, folder: Path, pins: Mapping[str, Pin]) -> dict[str, Digests]:
    """Extract the files named in `pins` from an archive into `folder`, each verified; nothing else is written.

    Raises:
        DatasetError: it can't be read, is malicious, or lacks a file.
        ChecksumMismatch: a file in it has other bytes.
    """
    missing, digests = dict(pins), {}
    for member in walk(archive):
        pin = missing.pop(member.name, None)
        if pin is not None:
            digests[member.name] = store_verified(member.chunks(), folder / member.name, pin, member.where)
    if missing:
        raise DatasetError(f"{archive}: has no {', '.join(missing)}")
    return digests


Say = Callable[[str], None]


def find_source(datasets: Mapping[str, DatasetSource], dataset: str) -> DatasetSource:
    """Return the declaration of a data set."""
    if dataset not in datasets:
        raise DatasetError(f"params.yaml: no data set {dataset!r}{nearest(dataset, sorted(datasets))}")
    return datasets[dataset]


def mirror_folder() -> Path | None:
    """Return the folder that CLAIMCHECK_MIRROR names, or None if it is unset.

    Raises:
        DatasetError: there is no such folder.
    """
    name = os.environ.get("CLAIMCHECK_MIRROR")
    if name and not Path(name).is_dir():
        raise DatasetError(f"CLAIMCHECK_MIRROR is {name}, which isn't a folder here; correct or unset it")
    return Path(name) if name else None


def fetch_dataset(
    dataset: str, source: DatasetSource, home: Path, mirror: Path | None, say: Say = print, *, accept: bool = False
) -> Manifest:
    """Put every file of `source`, verified, into its folder below `home/downloads`, and return the manifest.

    `mirror` is the folder of all mirrored data sets.  `say` receives messages on where files come from and which ones
    were not used.  `accept`: a file without a published digest may differ from the one fetched before.

    Raises:
        ChecksumMismatch: the mirror or the official host has other bytes.
        DatasetError: no source has the files.
        DatasetError: a file without a published digest differs from the one fetched before, and is not accepted.
        DatasetError: a `mirror.json` can't be read or contradicts the data set.
        DatasetError: an archive can't be read, is malicious, or lacks a file.
    """
    folder, declared = source.folder or dataset, source
    if any(file.is_group for file in source.files):
        aside = mirror / folder if mirror is not None else None
        source = list_files(source, home / "downloads" / folder, aside, accept=accept)
        if not source.files:
            raise DatasetError(
                f"{dataset}: no file in {home / 'downloads' / folder}; put the folder there, or in a mirror, or name "
                "an address that can be listed (file://, s3://) under `urls`; a web address serves archives only"
            )
    search = _Search(dataset, source, home / "downloads" / folder, say, accept)
    search.listed = frozenset(file.name for file in source.files)
    if source.reader not in shards.READERS:
        search.listed -= {file.name for file in declared.files}
    search.look_through_downloads()
    if mirror is not None and not search.has_accepted:
        search.compare_with_mirror(mirror / folder)
    if search.missing and mirror is not None:
        search.take_from_mirror(mirror / folder)
    elif search.missing:
        search.tried.append("CLAIMCHECK_MIRROR: not set")
    for base in source.urls:
        if search.missing:
            search.download_from(base)
    if search.missing:
        raise DatasetError(
            f"{dataset}: {len(search.missing)} of {len(source.files)} files were not found. "
            f"Tried: {'; '.join(search.tried)}. Set CLAIMCHECK_MIRROR to a folder of mirrored data sets "
            "(docs/data.md), or connect to the internet, or set `profile: smoke` in params.yaml"
            + search.advice_on_digests()
            + (f". {search.how_to_accept}" if any(file.is_group for file in declared.files) else "")
        )
    info = check_own(declared, search.describe(), say)
    write_mirror(search.folder, info)
    return compose_manifest(dataset, folder, info)


@dataclass
class _Search:
    """One fetch in progress: the files in the downloads so far, and a line on each source that didn't help."""

    dataset: str
    source: DatasetSource
    folder: Path
    say: Say
    accept: bool
    listed: frozenset[str] = frozenset()
    found: dict[str, MirrorFile] = field(default_factory=dict)
    archive: MirrorFile | None = None
    has_accepted: bool = False
    inexact_test_rows: set[int] = field(default_factory=set)
    tried: list[str] = field(default_factory=list)

    @property
    def wanted(self) -> list[SourceFile]:
        return [file for file in self.source.files if file.name not in self.found]

    @property
    def missing(self) -> list[SourceFile]:
        """The wanted files that are still missing and required."""
        return [file for file in self.wanted if not file.optional]

    def look_through_downloads(self) -> None:
        info = read_mirror(self.folder)
        for file in self.source.files:
            path = self.folder / file.name
            if not path.is_file():
                continue
            digests = digest_file(path)
            try:
                pin_in(info, file).check(digests, path)
            except ChecksumMismatch as error:
                known = info.files.get(file.name) if info is not None else None
                if known is None or not _is_unpublished(file):
                    self._report_unusable(error)
                    continue
                # Not replaced from elsewhere, either: it may be a user's only copy.
                change = _describe_change(path, known, digests)
                if not self.accept:
                    raise DatasetError(f"{change}. {self.how_to_accept} Else put the old one back") from None
                self.has_accepted = True
                self.say(f"fetch: accepted: {change}")
            self.found[file.name] = describe_file(digests, file)
        self._note_inexact_rows(info, self.folder)
        self.archive = info.archive if info is not None else None
        self._compare_archive(self.folder)
        try:
            self._take_from_archive(self.folder)
        except ChecksumMismatch as error:
            self._report_unusable(error)
        self._note_missing(str(self.folder))

    def compare_with_mirror(self, folder: Path) -> None:
        """Report, or take if accepted, a mirror's copy of an unpublished file that differs from the downloads'."""
        info = read_mirror(folder)
        for file in self.source.files:
            known, path = self.found.get(file.name), folder / file.name
            if known is None or not _is_unpublished(file) or not path.is_file():
                continue
            digests = digest_file(path)
            if digests.sha256 == known.sha256:
                continue
            change = _describe_change(path, known, digests)
            if not self.accept:
                self.say(f"fetch: not used: {change}. {self.how_to_accept}")
                continue
            digests = store_verified(read_chunks(path), self.folder / file.name, pin_in(info, file), path)
            self.found[file.name] = describe_file(digests, file)
            self.say(f"fetch: accepted: {change}")
        if self._compare_archive(folder):
            self._take_from_archive(folder)

    def _compare_archive(self, folder: Path) -> bool:
        """Do the same for an archive without published digests; return whether to take its files."""
        archive, unpublished = self.source.archive, [file for file in self.source.files if _is_unpublished(file)]
        if archive is None or not _is_unpublished(archive) or not unpublished or not (folder / archive.name).is_file():
            return False
        digests = digest_file(folder / archive.name)
        known, self.archive = self.archive, describe_file(digests, archive)
        if known is None or known.sha256 == digests.sha256:
            return False
        change = _describe_change(folder / archive.name, known, digests)
        if self.accept:
            self.has_accepted = True
            self.say(f"fetch: accepted: {change}")
            for file in unpublished:
                self.found.pop(file.name, None)
            return True
        if folder == self.folder:
            raise DatasetError(f"{change}. {self.how_to_accept} Else put the old one back")
        self.archive = known
        self.say(f"fetch: not used: {change}. {self.how_to_accept}")
        return False

    @property
    def how_to_accept(self) -> str:
        # Forced, because DVC would restore the manifest from before this stage.
        again = f"`dvc repro -f -s fetch@{self.dataset}` and `dvc repro`"
        return f"If the change is intended: `claimcheck stage fetch {self.dataset} --accept`, then {again}."

    def take_from_mirror(self, folder: Path) -> None:
        info = read_mirror(folder)
        wanted = self.wanted
        for file in wanted:
            path = folder / file.name
            if path.is_file():
                digests = store_verified(read_chunks(path), self.folder / file.name, pin_in(info, file), path)
                self.found[file.name] = describe_file(digests, file)
        self._note_inexact_rows(info, folder)
        self._take_from_archive(folder)
        self._take_loose(info, folder)
        if len(self.wanted) < len(wanted):
            self.say(f"fetch: {len(wanted) - len(self.wanted)} files from the mirror {folder}")
            # At once, because an inexact file is worthless without its mirror's declaration.
            write_mirror(self.folder, self.describe())
        self._note_missing(f"CLAIMCHECK_MIRROR ({folder})")

    def download_from(self, base: str) -> None:
        """Download the missing files from below one official address."""
        archive = self.source.archive
        try:
            if archive is not None:
                self.say(f"fetch: {base}{archive.name}")
                path = self.folder / archive.name
                download(base + archive.name, path, official_pin(archive))
                try:
                    self._extract(path)
                finally:
                    path.unlink()
                return
            for file in self.wanted:
                url = base + (file.name if file.name in self.listed else PurePosixPath(file.name).name)
                self.say(f"fetch: {url}")
                digests = download(url, self.folder / file.name, official_pin(file))
                self.found[file.name] = describe_file(digests, file)
        except Unavailable as error:
            self.tried.append(f"{type(error).__name__}: {error}")

    def describe(self) -> MirrorInfo:
        """Return the `mirror.json` of the downloads; inexact rows count only while some file isn't the official one."""
        files = {file.name: self.found[file.name] for file in self.source.files if file.name in self.found}
        is_official = all(file.matches_official for file in files.values())
        rows = () if is_official else tuple(sorted(self.inexact_test_rows))
        return MirrorInfo(
            complete=is_official and not self.wanted, files=files, inexact_test_rows=rows, archive=self.archive
        )

    def _take_from_archive(self, folder: Path) -> None:
        """Use an official archive in `folder`, and leave it there."""
        archive = self.source.archive
        if archive is None or not self.missing or not (folder / archive.name).is_file():
            return
        path = folder / archive.name
        official_pin(archive).check(digest_file(path), path)
        self._extract(path)

    def _take_loose(self, info: MirrorInfo | None, folder: Path) -> None:
        """Pack a mirror's loose files of an archive into that archive, which is then never the official one."""
        archives = [file for file in self.missing if file.name.endswith((".zip", ".tgz"))]
        declared = {file.name for file in self.source.files}
        loose = {name: entry for name, entry in info.files.items() if name not in declared} if info else {}
        if len(archives) == 1 and loose:
            path = self.folder / archives[0].name
            pack_loose(folder, loose, path)
            self.found[archives[0].name] = describe_file(digest_file(path), archives[0])

    def _extract(self, path: Path) -> None:
        files = {file.name: file for file in self.missing}
        pins = {name: official_pin(file) for name, file in files.items()}
        for name, digests in extract(path, self.folder, pins).items():
            self.found[name] = describe_file(digests, files[name])

    def _note_inexact_rows(self, info: MirrorInfo | None, folder: Path) -> None:
        rows = info.inexact_test_rows if info is not None else ()
        outside = [row for row in rows if not 0 <= row < self.source.test]
        if outside:
            raise DatasetError(
                f"{folder / 'mirror.json'}: inexact_test_rows has {outside[0]}; "
                f"the test set has rows 0 to {self.source.test - 1}"
            )
        self.inexact_test_rows.update(rows)

    def advice_on_digests(self) -> str:
        """Advice for users who gave the digests of their own files, which have no address."""
        if self.source.urls or not any(text.startswith(ChecksumMismatch.__name__) for text in self.tried):
            return ""
        listed = f"datasets.{self.dataset}.files of params.yaml"
        return f". If a file of yours was replaced on purpose, put its new digest into {listed}, then `dvc repro`"

    def _report_unusable(self, error: ChecksumMismatch) -> None:
        self.say(f"fetch: not used: {error}")
        self.tried.append(f"{type(error).__name__}: {error}")

    def _note_missing(self, where: str) -> None:
        if self.missing:
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            self.tried.append(f"{where}: lacks {self.missing[0].name}{more}")


def _is_unpublished(file: SourceFile) -> bool:
    """True if no digest is published, as for a user's own file."""
    return file.md5 is None and file.sha256 is None


def _describe_change(path: Path, known: MirrorFile, digests: Digests) -> str:
    return (
        f"{path}: sha256 was {known.sha256} ({known.bytes:,} bytes) when it was fetched, is {digests.sha256} "
        f"({digests.size_bytes:,} bytes) now"
    )


def compose_manifest(dataset: str, folder: str, info: MirrorInfo) -> Manifest:
    """Return the manifest for `preprocess` of the files in `folder` of the downloads."""
    files = tuple(
        ManifestFile(
            name=name,
            path=f"downloads/{folder}/{name}",
            sha256=file.sha256,
            bytes=file.bytes,
            official_md5=file.official_md5 or "",
            matches_official=file.matches_official is True,
        )
        for name, file in info.files.items()
    )
    is_official = all(file.matches_official for file in files)
    return Manifest(
        dataset=dataset,
        source="official" if is_official else "mirror",
        files=files,
        inexact_test_rows=info.inexact_test_rows,
    )

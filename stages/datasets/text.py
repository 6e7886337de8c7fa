"""A text as a sequence of tokens, one per byte: Tiny Shakespeare, a sample of OpenWebText, or any file of text.

The last tenth is the test set, as in the examples that made Tiny Shakespeare known (Karpathy 2015), unless the names of
files have train and test.  A row is a window of the text, as long as the `shape` of the data set; windows of
placeholder data are shorter, so that a step is fast.

A column of a table is a text, too: its rows are documents, joined in their order by an empty line, as is usual for a
vocabulary without a token between documents.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.datasets.archive import UNREADABLE, Member, walk
from stages.datasets.manifest import DatasetError, Manifest, all_files, find_reader, judge_provenance
from stages.datasets.packed import PackedInfo, TokenSet, digest_tokens, write_packed
from stages.datasets.shards import choose_splits, is_table, read_columns, split_of
from stages.datasets.tables import decode_file, read_csv
from stages.params.experiment import DatasetSource
from stages.params.schema import nearest
from stages.texts import encoding_of

MAX_PAGE_BYTES = 1 << 24
BETWEEN_PAGES = b"\n\n"


def read_sample(archive: Path, size_bytes: int) -> bytes:
    """Return the first `size_bytes` of the pages in their order, or all of them if there are fewer."""
    text = bytearray()
    for member in walk(archive):
        if member.name.endswith("_data.xz"):
            for page in _pages(member):
                text += page + BETWEEN_PAGES
                if len(text) >= size_bytes:
                    return bytes(text[:size_bytes])
    return bytes(text)


def _pages(member: Member) -> Iterator[bytes]:
    try:
        with tarfile.open(fileobj=io.BytesIO(member.read()), mode="r:xz") as pages:
            for info in pages:
                if info.size > MAX_PAGE_BYTES:
                    raise DatasetError(f"{member.where}, {info.name}: a page of {info.size:,} bytes")
                file = pages.extractfile(info) if info.isreg() else None
                if file is not None:
                    yield file.read()
    except UNREADABLE as error:
        raise DatasetError(f"{member.where}: not a readable tar archive ({error})") from None


VOCABULARY = 256  # a byte each
TEST_PART = 10
STAND_IN_SENTENCES, STAND_IN_WINDOW = 120, 32  # a model of 124 million parameters reads the whole test part

# Meaningless sentences of ours: a model can learn spelling, agreement and the order of words from them.
_SUBJECTS = {
    "the miller": "counts",
    "an old clerk": "mends",
    "the ferryman": "sells",
    "her brother": "hides",
    "the two smiths": "count",
    "some pilgrims": "mend",
    "the twins": "sell",
    "all the weavers": "hide",
}
_OBJECTS = ("seven stones", "a copper bell", "the torn sail", "grey wool", "his last coin", "an empty jar")
_PLACES = ("by the river", "under the bridge", "before dawn", "in the market", "without a word", "for the queen")


def prepare_text(source: DatasetSource, manifest: Manifest, folder: Path, target: Path) -> PackedInfo:
    """Write the packed text of the raw file in `folder`, or of placeholder data, into `target`."""
    shape = source.shape
    if len(shape) != 1 or shape[0] < 1:
        raise DatasetError(f"{manifest.dataset}: a text's shape is [tokens of a window]; params.yaml: {list(shape)}")
    note = ""
    if manifest.source == "embedded":
        shape, parts = (stand_in_window(source),), _cut(compose_stand_in(manifest.dataset))
    else:
        parts, note = _read_parts(source, manifest.dataset, folder)
    train, test = (TokenSet(np.frombuffer(part, dtype=np.uint8).astype(np.uint16)) for part in parts)
    if manifest.source != "embedded" and (len(train), len(test)) != (source.train, source.test):
        raise DatasetError(
            f"{manifest.dataset}: {len(train):,} training and {len(test):,} test tokens; "
            f"params.yaml declares {source.train:,} and {source.test:,}"
        )
    info = PackedInfo(
        dataset=manifest.dataset,
        kind="text",
        # Only a text's length shows whether it is complete.
        provenance=judge_provenance(
            source, manifest, len(train), len(test), files=all_files(source), content_is_whole=True
        ),
        digest=digest_tokens(train, test, shape[0]),
        classes=(),
        shape=shape,
        train_images=len(train),
        test_images=len(test),
        test_rows=None,
        excluded_test_images=0,
        source=manifest.source,
        split_note=note or None,
        vocabulary=VOCABULARY,
    )
    write_packed(target, {"train": train, "test": test}, info)
    return info


def _read_parts(source: DatasetSource, dataset: str, folder: Path) -> tuple[tuple[bytes, bytes], str]:
    """The training and the test text, and a note on how they were divided."""
    names = [file.name for file in source.files]
    if source.text is None:
        read = find_reader(dataset, source.reader, READERS)
        texts = {name: read(folder / name, source.train + source.test) for name in names}
    else:
        names = [name for name in names if source.reader != "huggingface" or is_table(name)]
        texts = {name: _join(folder / name, source) for name in names}
    words = {name: split_of(name) for name in names}
    parts, note = choose_splits(words, "bytes", {name: len(text) for name, text in texts.items()})
    if parts:
        train, test = (BETWEEN_PAGES.join(texts[name] for name in part) for part in parts.values())
        return (train, test), note
    if not names or (len(names) > 1 and source.text is None):
        named = ", ".join(names[:5])
        raise DatasetError(
            f"{dataset}: {len(names)} files ({named}); a text is one, whose last tenth is the test set, or files whose "
            "names have train and test"
        )
    return _cut(BETWEEN_PAGES.join(texts.values())), "the last tenth of the text is the test set"


def _cut(text: bytes) -> tuple[bytes, bytes]:
    end, _ = split_lengths(len(text))
    return text[:end], text[end:]


def _join(path: Path, source: DatasetSource) -> bytes:
    """Join the documents in the column `source.text` of a table, without those that are missing if it says so.

    Raises:
        DatasetError: the table can't be read, has no such column, or a row has no text.
    """
    documents = []
    for row, document in enumerate(_COLUMNS[source.reader](path, source)):
        if isinstance(document, str):
            documents.append(document)
        elif document is not None or source.missing != "drop":
            raise DatasetError(
                f"{path}: row {row} has {document!r} as {source.text}; expected text; `missing: drop` leaves out null"
            )
    try:
        return BETWEEN_PAGES.decode().join(documents).encode()
    except UnicodeEncodeError as error:
        raise DatasetError(f"{path}: column {source.text!r} has no valid Unicode ({error.reason})") from None


def _csv_column(path: Path, source: DatasetSource) -> Iterator[Any]:
    # Texts such as NA and null aren't missing; an empty cell is an empty document, unless those are dropped.
    frame = read_csv(path, source.separator, dtype=str, keep_default_na=False)
    for text in frame[_known(source, [*map(str, frame.columns)], path)]:
        yield text if text or source.missing != "drop" else None


def _jsonl_column(path: Path, source: DatasetSource) -> Iterator[Any]:
    with path.open("rb") as raw:
        encoding = encoding_of(raw.read(2))
    with path.open(encoding=encoding) as file:
        try:
            for number, line in enumerate(file):
                if line.strip():
                    fields = dict(json.loads(line).items())
                    yield fields[_known(source, [*fields], f"{path}, line {number + 1}")]
        except (ValueError, AttributeError, RecursionError) as error:
            decode_file(path.read_bytes(), path)
            raise DatasetError(f"{path}: a line isn't a JSON object ({error})") from None


def _rows_column(path: Path, source: DatasetSource) -> Iterator[Any]:
    for (cells,) in read_columns(path, lambda schema, where: [_known(source, schema.names, where)]):
        yield from cells


def _known(source: DatasetSource, columns: Sequence[str], where: Path | str) -> str:
    """The column of the text, which must be one of those that there are."""
    assert source.text is not None, "checked when the params are read"
    if source.text not in columns:
        raise DatasetError(f"{where}: has no column {source.text!r}{nearest(source.text, columns)}")
    return source.text


# Path of the table -> the cells of the column `text`.
_COLUMNS: dict[str, Callable[[Path, DatasetSource], Iterator[Any]]] = {
    "csv": _csv_column,
    "jsonl": _jsonl_column,
    "parquet": _rows_column,
    "huggingface": _rows_column,
}


def split_lengths(tokens: int) -> tuple[int, int]:
    """Numbers of tokens for training and for testing."""
    train = tokens * (TEST_PART - 1) // TEST_PART
    return train, tokens - train


def stand_in_window(source: DatasetSource) -> int:
    """Number of tokens in a row of placeholder data."""
    return min(source.shape[0], STAND_IN_WINDOW)


def read_text(path: Path, size_bytes: int) -> bytes:
    """Read the whole file, whatever `size_bytes` are declared: the number is checked later."""
    content = path.read_bytes()
    text = decode_file(content, path)
    if len(content) < TEST_PART:
        raise DatasetError(f"{path}: too short, not a text")
    return text.encode() if encoding_of(content) == "utf-16" else content


# Path of the raw file and number of bytes declared -> the text.
READERS: dict[str, Callable[[Path, int], bytes]] = {"openwebtext": read_sample, "text": read_text}


def compose_stand_in(name: str) -> bytes:
    """Compose sentences from a small grammar, the same for the same `name` on every machine."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    random = np.random.RandomState(seed)  # its stream is frozen
    subjects = list(_SUBJECTS)
    sentences = []
    for who, what, where in random.randint(0, (len(subjects), len(_OBJECTS), len(_PLACES)), (STAND_IN_SENTENCES, 3)):
        subject = subjects[who]
        sentences.append(f"{subject.capitalize()} {_SUBJECTS[subject]} {_OBJECTS[what]} {_PLACES[where]}.\n")
    return "".join(sentences).encode()

"""A text as a sequence of tokens, one per byte: Tiny Shakespeare, a sample of OpenWebText, or any file of text.

The last tenth is the test set, as in the examples that made Tiny Shakespeare known (Karpathy 2015).  A row is a window
of the text, as long as the `shape` of the data set; windows of placeholder data are shorter, so that a step is fast.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from stages.datasets.archive import UNREADABLE, Member, walk
from stages.datasets.manifest import Manifest, all_files, find_reader, judge_provenance
from stages.datasets.packed import PackedInfo, TokenSet, digest_tokens, write_packed
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource

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
    except (*UNREADABLE, lzma.LZMAError) as error:
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
    if manifest.source == "embedded":
        text, shape = compose_stand_in(manifest.dataset), (stand_in_window(source),)
    else:
        if len(source.files) > 1:
            found = f"{len(source.files)} files; a text is one, whose last tenth is the test set"
            raise DatasetError(f"{manifest.dataset}: {found}")
        text = find_reader(manifest.dataset, source.reader, READERS)(
            folder / source.files[0].name, source.train + source.test
        )
    tokens = np.frombuffer(text, dtype=np.uint8).astype(np.uint16)
    end, _ = split_lengths(len(tokens))
    train, test = TokenSet(tokens[:end]), TokenSet(tokens[end:])
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
        split_note="the last tenth of the text is the test set" if manifest.source != "embedded" else None,
        vocabulary=VOCABULARY,
    )
    write_packed(target, {"train": train, "test": test}, info)
    return info


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
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: not UTF-8 text (byte {error.start:,})") from None
    if len(content) < TEST_PART or b"\0" in content:
        raise DatasetError(f"{path}: {'too short' if len(content) < TEST_PART else 'binary'}, not a text")
    return content


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

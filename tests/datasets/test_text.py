from __future__ import annotations

import dataclasses
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.manifest import Manifest
from stages.datasets.packed import TokenSet, digest_tokens, read_tokens
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.text import compose_stand_in, read_sample
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource, SourceFile, load_params


def declare(train: int, test: int) -> DatasetSource:
    """A user's own text file, declared as in docs/data.md."""
    return DatasetSource(
        title="mine",
        kind="text",
        reader="text",
        shape=(8,),
        classes=256,
        train=train,
        test=test,
        licence="mine",
        homepage="http://127.0.0.1/",
        urls=(),
        files=(SourceFile(name="mine.txt"),),
    )


def pack(folder: Path, content: bytes, train: int, test: int) -> None:
    (folder / "downloads/mine").mkdir(parents=True)
    (folder / "downloads/mine/mine.txt").write_bytes(content)
    source = declare(train, test)
    manifest = fetch_dataset("mine", source, folder, None, lambda line: None)
    info = prepare(source, manifest, folder, folder / "packed")
    assert (info.kind, info.provenance, info.vocabulary) == ("text", "subset", 256)


def test_tokens_are_the_bytes_and_the_last_tenth_is_the_test_set(tmp_path: Path) -> None:
    content = "Grüße, 21 characters".encode()
    pack(tmp_path, content, 19, 3)
    train, test = (read_tokens(tmp_path / "packed", split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert bytes(train.tokens.astype(np.uint8)) + bytes(test.tokens.astype(np.uint8)) == content
    assert (len(train), len(test), train.tokens.dtype) == (19, 3, np.uint16)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"caf\xe9 in Latin-1", r"not UTF-8 text \(byte 3\)"), (b"", "too short"), (b"0123456789\0", "binary")],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=f"mine.txt: {message}"):
        pack(tmp_path, content, 1, 1)


def test_digest_turns_with_every_token_the_border_and_the_window() -> None:
    def tokens(text: bytes) -> TokenSet:
        return TokenSet(np.frombuffer(text, dtype=np.uint8).astype(np.uint16))

    variants = [(b"abcd", b"ef"), (b"abce", b"ef"), (b"abcd", b"eg"), (b"abcde", b"f")]
    digests = {digest_tokens(tokens(train), tokens(test), window) for train, test in variants for window in (2, 3)}
    assert len(digests) == 2 * len(variants)


def test_stand_in_is_text_of_ours_and_the_same_everywhere(tmp_path: Path) -> None:
    source = load_params().datasets["tinyshakespeare"]
    info = prepare(source, Manifest(dataset="tinyshakespeare", source="embedded"), tmp_path, tmp_path / "packed")
    assert (info.provenance, info.digest[:12]) == ("embedded", "f7e066e9c3dc")
    lines = compose_stand_in("tinyshakespeare").decode().splitlines()
    assert len(lines) == 120 and len(set(lines)) > 80
    # Singular subjects have singular verbs.
    assert not any("twins sells" in line or "clerk mend " in line for line in lines)
    assert compose_stand_in("other") != compose_stand_in("tinyshakespeare")


def test_rows_of_a_stand_in_are_few_and_short(tmp_path: Path) -> None:
    """The cost of the smoke run: a language model of printed size reads the whole test part."""
    source = load_params().datasets["openwebtext"]
    info = prepare(source, Manifest(dataset="openwebtext", source="embedded"), tmp_path, tmp_path / "packed")
    assert (source.shape, info.shape) == ((1024,), (32,))
    assert 8 <= info.test_images // info.shape[0] <= 20
    assert info.train_images // info.shape[0] > 100


@pytest.mark.parametrize("shape", [(), (0,), (8, 8)])
def test_a_shape_that_is_no_window_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    source = dataclasses.replace(declare(1, 1), shape=shape)
    with pytest.raises(DatasetError, match=r"mine: a text's shape is \[tokens of a window\]; params.yaml: \["):
        prepare(source, Manifest(dataset="mine", source="embedded"), tmp_path, tmp_path / "packed")


def test_real_text_is_the_pinned_one(tmp_path: Path, sample_mirror: Path) -> None:
    source = load_params().datasets["tinyshakespeare"]
    manifest = fetch_dataset("tinyshakespeare", source, tmp_path, sample_mirror, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("full", "official")
    train = read_tokens(tmp_path / "packed", "train")
    assert bytes(train.tokens[:14].astype(np.uint8)) == b"First Citizen:"
    assert (info.train_images, info.test_images) == (1_003_854, 111_540)


def pages_xz(*pages: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for number, page in enumerate(pages):
            member = tarfile.TarInfo(f"{number:07d}-page.txt")
            member.size = len(page)
            archive.addfile(member, io.BytesIO(page))
    return buffer.getvalue()


def web_text(folder: Path, *files: bytes) -> Path:
    path = folder / "urlsf_subset00.tar"
    members = [(f"openwebtext/urlsf_subset00-{number}_data.xz", content) for number, content in enumerate(files)]
    with tarfile.open(path, "w") as archive:
        for name, content in [("openwebtext/README", b"nothing"), *members]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_sample_is_the_first_bytes_of_the_pages_in_their_order(tmp_path: Path) -> None:
    path = web_text(tmp_path, pages_xz(b"one", b"two"), pages_xz(b"three"), b"is never looked at")
    assert read_sample(path, 15) == b"one\n\ntwo\n\nthree"
    assert read_sample(path, 7) == b"one\n\ntw"
    path = web_text(tmp_path, pages_xz(b"one"))
    assert read_sample(path, 100) == b"one\n\n"


def test_sample_becomes_tokens(tmp_path: Path) -> None:
    (tmp_path / "downloads/mine").mkdir(parents=True)
    path = web_text(tmp_path / "downloads/mine", pages_xz(b"a" * 70, b"b" * 70))
    source = dataclasses.replace(declare(90, 10), reader="openwebtext", files=(SourceFile(name=path.name),))
    manifest = fetch_dataset("mine", source, tmp_path, None, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.train_images, info.test_images, info.provenance) == (90, 10, "subset")
    by_content = dataclasses.replace(source, complete_by_content=True)
    assert prepare(by_content, manifest, tmp_path, tmp_path / "packed").provenance == "full"
    assert bytes(read_tokens(tmp_path / "packed", "test").tokens.astype(np.uint8)) == b"b" * 10


CUT = pages_xz(np.random.RandomState(0).bytes(5000))[:2000]


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"no xz", DatasetError), (CUT, DatasetError), (pages_xz(bytes(1 << 25)), DatasetError)],
    ids=["other", "cut", "bomb"],
)
def test_damaged_pages_are_named(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"urlsf_subset00.tar, openwebtext/urlsf_subset00-0_data.xz"):
        read_sample(web_text(tmp_path, content), 1000)

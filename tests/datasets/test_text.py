"""Texts and tables, from a file to the packed form."""

import dataclasses
import hashlib
import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.datasets import prepare_table
from stages.datasets.manifest import ChecksumMismatch, DatasetError, Manifest
from stages.datasets.packed import (
    PackedInfo,
    Split,
    TableSet,
    TokenSet,
    digest_tables,
    digest_tokens,
    read_info,
    read_table,
    read_tokens,
)
from stages.datasets.prepare import prepare
from stages.datasets.prepare_table import split_rows, standardise
from stages.datasets.sources import fetch_dataset
from stages.datasets.text import compose_stand_in, read_sample
from stages.params.experiment import DatasetSource, ParamsError, SourceFile, load_params
from tests.datasets.archives import write_zip
from tests.datasets.official_host import Answer, OfficialHost
from tests.datasets.tiny import declare
from tests.datasets.workplace import write_params


def declare_text(train: int, test: int) -> DatasetSource:
    """Declare a user's own text file as in docs/data.md."""
    file = SourceFile(name="mine.txt")
    return declare("text", (8,), file, kind="text", classes=256, train=train, test=test, title="mine")


def pack(folder: Path, content: bytes, train: int, test: int) -> None:
    (folder / "downloads/mine").mkdir(parents=True)
    (folder / "downloads/mine/mine.txt").write_bytes(content)
    source = declare_text(train, test)
    manifest = fetch_dataset("mine", source, folder, None, lambda line: None)
    info = prepare(source, manifest, folder, folder / "packed")
    assert (info.kind, info.provenance, info.vocabulary) == ("text", "subset", 256)


def test_tokens_are_bytes_and_the_last_tenth_is_the_test_set(tmp_path: Path) -> None:
    content = "Grüße, 21 characters".encode()
    pack(tmp_path, content, 19, 3)
    train, test = (read_tokens(tmp_path / "packed", split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert bytes(train.tokens.astype(np.uint8)) + bytes(test.tokens.astype(np.uint8)) == content
    assert (len(train), len(test), train.tokens.dtype) == (19, 3, np.uint16)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "mine.txt: too short"), (b"0123456789\0", "mine.txt, line 1: there is a NUL character")],
)
def test_invalid_text_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        pack(tmp_path, content, 1, 1)


def test_second_file_of_a_text_is_refused_not_left_out(tmp_path: Path) -> None:
    source = declare_text(19, 3)
    (tmp_path / "downloads/mine").mkdir(parents=True)
    for name in ("mine.txt", "test.txt"):
        (tmp_path / "downloads/mine" / name).write_text("Grüße, 21 characters", encoding="utf-8")
    source = dataclasses.replace(source, files=(*source.files, SourceFile(name="test.txt")))
    with pytest.raises(DatasetError, match=r"test \(\d+ bytes, as test\.txt\), none \(22 bytes, as mine\.txt\)"):
        prepare(source, fetch_dataset("mine", source, tmp_path, None, str), tmp_path, tmp_path / "packed")


def test_digest_changes_with_tokens_split_and_window() -> None:
    def tokens(text: bytes) -> TokenSet:
        return TokenSet(np.frombuffer(text, dtype=np.uint8).astype(np.uint16))

    variants = [(b"abcd", b"ef"), (b"abce", b"ef"), (b"abcd", b"eg"), (b"abcde", b"f")]
    digests = {digest_tokens(tokens(train), tokens(test), window) for train, test in variants for window in (2, 3)}
    assert len(digests) == 2 * len(variants)


def test_placeholder_text_is_grammatical_and_equal_everywhere(tmp_path: Path) -> None:
    source = load_params().datasets["tinyshakespeare"]
    info = prepare(source, Manifest(dataset="tinyshakespeare", source="embedded"), tmp_path, tmp_path / "packed")
    assert (info.provenance, info.digest[:12]) == ("embedded", "f7e066e9c3dc")
    lines = compose_stand_in("tinyshakespeare").decode().splitlines()
    assert len(lines) == 120 and len(set(lines)) > 80
    # Singular subjects have singular verbs.
    assert not any("twins sells" in line or "clerk mend " in line for line in lines)
    assert compose_stand_in("other") != compose_stand_in("tinyshakespeare")


def test_placeholder_rows_are_few_and_short(tmp_path: Path) -> None:
    """They limit the smoke run, in which a language model of printed size reads the whole test part."""
    source = load_params().datasets["openwebtext"]
    info = prepare(source, Manifest(dataset="openwebtext", source="embedded"), tmp_path, tmp_path / "packed")
    assert (source.shape, info.shape) == ((1024,), (32,))
    assert 8 <= info.test_images // info.shape[0] <= 20
    assert info.train_images // info.shape[0] > 100


@pytest.mark.parametrize("shape", [(), (0,), (8, 8)])
def test_invalid_window_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    source = dataclasses.replace(declare_text(1, 1), shape=shape)
    with pytest.raises(DatasetError, match=r"mine: a text's shape is \[tokens of a window\]; params.yaml: \["):
        prepare(source, Manifest(dataset="mine", source="embedded"), tmp_path, tmp_path / "packed")


def test_real_text_matches_its_digest(tmp_path: Path, sample_mirror: Path) -> None:
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


def test_sample_is_the_first_bytes_of_the_pages_in_order(tmp_path: Path) -> None:
    path = web_text(tmp_path, pages_xz(b"one", b"two"), pages_xz(b"three"), b"is never looked at")
    assert read_sample(path, 15) == b"one\n\ntwo\n\nthree"
    assert read_sample(path, 7) == b"one\n\ntw"
    path = web_text(tmp_path, pages_xz(b"one"))
    assert read_sample(path, 100) == b"one\n\n"


def test_sample_becomes_tokens(tmp_path: Path) -> None:
    (tmp_path / "downloads/mine").mkdir(parents=True)
    path = web_text(tmp_path / "downloads/mine", pages_xz(b"a" * 70, b"b" * 70))
    source = dataclasses.replace(declare_text(90, 10), reader="openwebtext", files=(SourceFile(name=path.name),))
    manifest = fetch_dataset("mine", source, tmp_path, None, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.train_images, info.test_images, info.provenance) == (90, 10, "subset")
    by_content = dataclasses.replace(source, complete_by_content=True)
    assert prepare(by_content, manifest, tmp_path, tmp_path / "packed").provenance == "full"
    assert bytes(read_tokens(tmp_path / "packed", "test").tokens.astype(np.uint8)) == b"b" * 10


CUT = pages_xz(np.random.RandomState(0).bytes(5000))[:2000]


@pytest.mark.parametrize("content", [b"no xz", CUT, pages_xz(bytes(1 << 25))], ids=["other", "cut", "bomb"])
def test_damaged_pages_are_reported(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DatasetError, match=r"urlsf_subset00.tar, openwebtext/urlsf_subset00-0_data.xz"):
        read_sample(web_text(tmp_path, content), 1000)


HEADER = "MWG,NWG,KWG,MDIMC,NDIMC,MDIMA,NDIMB,KWI,VWM,VWN,STRM,STRN,SA,SB,Run1 (ms),Run2 (ms),Run3 (ms),Run4 (ms)"
FIRST = "16,16,16,8,8,8,8,2,1,1,0,0,0,0,115.26,115.87,118.55,115.8"
SECOND = "128,64,32,32,16,8,16,8,4,2,1,0,1,0,32,33,34,35"
SPLITS: tuple[Split, ...] = ("train", "test")


def write(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / prepare_table.FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def declare_table(train: int, test: int, columns: int = 14) -> DatasetSource:
    file = SourceFile(name=prepare_table.FILE)
    return declare("sgemm", (columns,), file, kind="table", classes=0, train=train, test=test, title="tiny")


def test_row_has_fourteen_settings_and_four_runs(tmp_path: Path) -> None:
    settings, times = prepare_table.read_rows(write(tmp_path, HEADER, FIRST, SECOND))
    assert settings.tolist() == [
        [16, 16, 16, 8, 8, 8, 8, 2, 1, 1, 0, 0, 0, 0],
        [128, 64, 32, 32, 16, 8, 16, 8, 4, 2, 1, 0, 1, 0],
    ]
    assert times.tolist() == [[115.26, 115.87, 118.55, 115.8], [32.0, 33.0, 34.0, 35.0]]


FAULTS = {
    "empty": ((), "first line isn't MWG"),
    "other header": ((HEADER.replace("SA", "SC"), FIRST), "first line isn't MWG"),
    "no row": ((HEADER,), "has 0 rows"),
    "short row": ((HEADER, FIRST, SECOND[:-3]), "columns"),
    "rows of another width": ((HEADER, FIRST + ",1"), "has 1 rows of 19 values"),
    "no number": ((HEADER, FIRST.replace("115.26", "fast")), "fast"),
    "no power of two": ((HEADER, SECOND, FIRST.replace("16,16,16", "16,24,16")), "row 1 has NWG 24"),
    "no switch": ((HEADER, FIRST.replace("0,0,0,0", "0,0,0,2")), "row 0 has SB 2"),
    "fraction": ((HEADER, FIRST.replace("16,16,16", "16.5,16,16")), "row 0 has MWG 16.5"),
    "no time": ((HEADER, FIRST.replace("115.26", "0")), "row 0 has the run time 0 ms"),
    "no time of a later run": ((HEADER, FIRST.replace("118.55", "-1")), "row 0 has the run time -1 ms"),
    "endless": ((HEADER, FIRST.replace("115.26", "inf")), "row 0 has the run time inf ms"),
    "not a time": ((HEADER, FIRST.replace("115.26", "nan")), "row 0 has the run time nan ms"),
    "setting twice": ((HEADER, FIRST, SECOND, FIRST.replace("115.26", "1")), "a setting occurs twice"),
}


@pytest.mark.filterwarnings("ignore:loadtxt")  # numpy warns about a table without rows
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_table_is_reported(tmp_path: Path, fault: str) -> None:
    lines, message = FAULTS[fault]
    with pytest.raises(DatasetError, match=message):
        prepare_table.read_rows(write(tmp_path, *lines))


def test_columns_are_logarithms_standardised_by_training_rows() -> None:
    settings = np.tile([16, 16, 16, 8, 8, 8, 8, 2, 1, 1, 0, 0, 0, 0], (4, 1))
    settings[1], settings[2, 0], settings[3, 0] = [128, 128, 32, 32, 32, 32, 32, 8, 8, 8, 1, 1, 1, 1], 64, 32
    rows = {"train": np.array([0, 1]), "test": np.array([2, 3])}
    splits, mean, std = standardise(settings, np.array([1.0, 2.0, 4.0, 3.0]), rows)  # type: ignore[arg-type]
    assert (mean[0], std[0]) == ((4 + 7) / 2, 1.5), "log2 of 16 and of 128"
    assert (mean[-1], std[-1]) == (0.5, 0.5), "a switch stays 0 and 1"
    np.testing.assert_array_equal(splits["train"].features, [[-1.0] * 14, [1.0] * 14])
    assert splits["test"].features[0, 0] == np.float32((6 - 5.5) / 1.5)
    assert splits["test"].targets.tolist() == [2.0, np.float32(math.log2(3))]


def test_target_is_the_first_run_and_the_range_covers_all_four(tmp_path: Path) -> None:
    source = dataclasses.replace(declare_table(2, 0), response_range=(50.0, 118.55))
    greatest = "128,128,32,32,32,32,32,8,8,8,1,1,1,1,50,51,52,53"  # every setting, so that every column varies
    write(tmp_path / "downloads/tiny", HEADER, FIRST, greatest)
    manifest = fetch_dataset("tiny", source, tmp_path, None, lambda line: None)
    prepare(source, manifest, tmp_path, tmp_path / "packed")
    targets = np.concatenate([read_table(tmp_path / "packed", split).targets for split in SPLITS])
    assert sorted(2**targets) == pytest.approx([50.0, 115.26])


def test_split_is_disjoint_complete_and_deterministic() -> None:
    counts: dict[Split, int] = {"train": 85, "test": 15}
    rows = split_rows(counts)
    assert {split: len(part) for split, part in rows.items()} == counts
    assert sorted(np.concatenate(list(rows.values()))) == list(range(100))
    assert rows["test"].tolist() == split_rows(counts)["test"].tolist()
    assert rows["train"].tolist() != list(range(85))


def test_digest_changes_with_every_part() -> None:
    table = TableSet(np.ones((2, 3), dtype=np.float32), np.ones(2, dtype=np.float32))
    other = TableSet(np.zeros((2, 3), dtype=np.float32), np.ones(2, dtype=np.float32))
    third = TableSet(np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32))
    base = dict.fromkeys(SPLITS, table)
    variants = [base, *({**base, split: change} for split in SPLITS for change in (other, third))]
    digests = {digest_tables(**splits, columns=("a", "b", "c")) for splits in variants}
    digests.add(digest_tables(**base, columns=("a", "b", "d")))
    assert len(digests) == len(variants) + 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (declare_table(1, 2), "tiny: 2 rows; params.yaml declares 3"),
        (
            dataclasses.replace(declare_table(1, 1), response_range=(32.0, 115.26)),
            "tiny: responses from 32 to 118.55; params.yaml: 32 to 115.26",
        ),
        (declare_table(1, 1, columns=13), r"rows have 14 columns; params.yaml: \(13,\)"),
    ],
)
def test_deviation_from_the_declaration_is_reported(tmp_path: Path, source: DatasetSource, message: str) -> None:
    write(tmp_path / "downloads/tiny", HEADER, FIRST, SECOND)
    manifest = fetch_dataset("tiny", source, tmp_path, None, lambda line: None)
    with pytest.raises(DatasetError, match=message):
        prepare(source, manifest, tmp_path, tmp_path / "packed")


def test_placeholder_table_has_the_real_columns_and_one_digest_everywhere(tmp_path: Path) -> None:
    source = load_params().datasets["sgemm"]
    info = prepare(source, Manifest(dataset="sgemm", source="embedded"), tmp_path, tmp_path / "packed")
    assert (info.kind, info.provenance, info.shape) == ("table", "embedded", (14,))
    assert (info.train_images, info.test_images) == (576, 64)
    assert info.digest.startswith("5d17f1355ff2")
    assert read_info(tmp_path / "packed") == info
    tables = [read_table(tmp_path / "packed", split) for split in SPLITS]
    rows = [row.tobytes() for table in tables for row in table.features]
    assert len(set(rows)) == len(rows) == 640, "no setting is in two splits"
    assert [table.features.dtype for table in tables] == [np.float32] * 2


def test_placeholder_table_can_be_learnt_but_not_from_one_column() -> None:
    settings, times = prepare_table.compose_stand_in(640)
    splits, _, _ = standardise(settings, times, split_rows({"train": 576, "test": 64}))
    train, test = splits["train"], splits["test"]

    def error(columns: slice) -> float:
        inputs = np.c_[train.features[:, columns], np.ones(len(train))]
        weights = np.linalg.lstsq(inputs, train.targets, rcond=None)[0]
        return float(((np.c_[test.features[:, columns], np.ones(len(test))] @ weights - test.targets) ** 2).mean())

    assert error(slice(0, 14)) < 0.3 * test.targets.var() < min(error(slice(i, i + 1)) for i in range(14))


def test_pinned_table_is_accepted_in_any_archive(tmp_path: Path, official_host: OfficialHost) -> None:
    content = write(tmp_path / "raw", HEADER, FIRST, SECOND).joinpath(prepare_table.FILE).read_bytes()
    members = [
        (f"__MACOSX/._{prepare_table.FILE}", b"a file manager's"),
        (prepare_table.FILE, content),
        ("Readme.txt", b""),
    ]
    archive = write_zip(tmp_path / "sgemm.zip", members)
    official_host.answers = {"sgemm.zip": Answer(body=archive.read_bytes())}
    source = dataclasses.replace(
        declare_table(1, 1),
        urls=(official_host.url,),
        archive=SourceFile(name="sgemm.zip"),
        files=(SourceFile(name=prepare_table.FILE, sha256=hashlib.sha256(content).hexdigest()),),
    )
    manifest = fetch_dataset("tiny", source, tmp_path, None, lambda line: None)
    assert (manifest.source, [file.matches_official for file in manifest.files]) == ("official", [True])
    wrong = dataclasses.replace(source, files=(SourceFile(name=prepare_table.FILE, sha256="0" * 64),))
    with pytest.raises(ChecksumMismatch, match=rf"sgemm.zip, {prepare_table.FILE}: expected sha256 0000"):
        fetch_dataset("tiny", wrong, tmp_path / "elsewhere", None, lambda line: None)


@pytest.mark.slow(hours=True)
def test_real_table_is_complete_and_matches_its_digest(tmp_path: Path, sample_mirror: Path) -> None:
    source = load_params().datasets["sgemm"]
    manifest = fetch_dataset("sgemm", source, tmp_path, sample_mirror, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("full", "official")
    tables = [read_table(tmp_path / "packed", split) for split in SPLITS]
    assert [len(table) for table in tables] == [205_360, 36_240]
    times = 2 ** np.concatenate([table.targets for table in tables])
    # `prepare` checks the declared range, 13.25 to 3397.08 ms, on all four runs; these are of the first.
    assert (times.min().round(2), times.max().round(2)) == (13.29, 3339.63)
    np.testing.assert_allclose(tables[0].features.mean(0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(tables[0].features.std(0, dtype=np.float64), 1, atol=1e-6)
    assert abs(tables[1].features.mean(0)).max() > 1e-4, "no test row was used"


DOCUMENTS = ["Grüße, NA", "", 'a "quoted" line\nand another', "null", "the end, with enough letters for a test"]
JOINED = "\n\n".join(DOCUMENTS).encode()


def write_table(path: Path, kind: str, documents: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {"id": [*range(len(documents))], "body": documents}
    if kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False, sep=";")
    elif kind == "jsonl":
        lines = [json.dumps({"id": number, "body": text}) for number, text in enumerate(documents)]
        path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    elif kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        import datasets  # two seconds

        datasets.disable_progress_bars()
        datasets.Dataset.from_dict(rows).save_to_disk(path.with_suffix(""))


def in_table(kind: str, *names: str, **fields: Any) -> DatasetSource:
    files = (SourceFile(name=name) for name in names)
    plain: dict[str, Any] = {"kind": "text", "classes": 256, "text": "body", "separator": ";", "train": 1, "test": 1}
    return declare("huggingface" if kind == "saved" else kind, (8,), *files, **plain | fields)


def pack_table(home: Path, source: DatasetSource) -> tuple[list[bytes], PackedInfo]:
    manifest = fetch_dataset("mine", source, home, None, lambda line: None)
    info = prepare(source, manifest, home, home / "packed")
    parts = [read_tokens(home / "packed", split) for split in ("train", "test")]  # type: ignore[arg-type]
    return [bytes(part.tokens.astype(np.uint8)) for part in parts], info


KINDS = ("csv", "jsonl", "parquet", "saved")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_column_are_documents_of_a_text(tmp_path: Path, kind: str) -> None:
    write_table(tmp_path / f"downloads/mine/mine.{kind}", kind, DOCUMENTS)
    end = len(JOINED) * 9 // 10
    name = "mine/" if kind == "saved" else f"mine.{kind}"
    source = in_table(kind, name, train=end, test=len(JOINED) - end)
    parts, info = pack_table(tmp_path, source)
    assert parts == [JOINED[:end], JOINED[end:]] and info.split_note == "the last tenth of the text is the test set"
    with pytest.raises(DatasetError, match=rf"{end:,} training and {len(JOINED) - end:,} test tokens; params"):
        pack_table(tmp_path, dataclasses.replace(source, train=1))
    with pytest.raises(DatasetError, match="has no column 'bodi'; did you mean body"):
        pack_table(tmp_path, dataclasses.replace(source, text="bodi"))


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_documents_are_divided_by_their_names(tmp_path: Path, kind: str) -> None:
    parts = {"test": DOCUMENTS[:1], "train-0": DOCUMENTS[1:3], "train-1": DOCUMENTS[3:], "validation": ["left out"]}
    for name, documents in parts.items():
        write_table(tmp_path / f"downloads/mine/mine/{name}.{kind}", kind, documents)
    train, test = "\n\n".join(DOCUMENTS[1:]).encode(), DOCUMENTS[0].encode()
    found, info = pack_table(tmp_path, in_table(kind, "mine/", train=len(train), test=len(test)))
    assert found == [train, test] and info.split_note == "8 bytes of validation left out, because test is the test set"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_missing_documents_are_refused_or_dropped(tmp_path: Path, kind: str) -> None:
    write_table(tmp_path / f"downloads/mine/mine.{kind}", kind, ["a" * 9, None, "b" * 9])
    source = in_table(kind, f"mine.{kind}", train=18, test=2)
    with pytest.raises(DatasetError, match="row 1 has None as body; expected text; `missing: drop` leaves out null"):
        pack_table(tmp_path, source)
    parts, _ = pack_table(tmp_path, dataclasses.replace(source, missing="drop"))
    assert b"".join(parts) == b"aaaaaaaaa\n\nbbbbbbbbb"
    with pytest.raises(DatasetError, match="row 0 has 0 as id; expected text"):
        pack_table(tmp_path, dataclasses.replace(source, text="id"))


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("csv", b'body;id\n"a', "mine.csv: Error tokenizing"),
        ("csv", b"body;id\n\xff;1", "mine.csv, line 2: byte 0xff is not UTF-8"),
        ("jsonl", b'{"body": "a"}\n[1]', "mine.jsonl: a line isn't a JSON object"),
        ("jsonl", b'{"body": "a"', "mine.jsonl: a line isn't a JSON object"),
        ("jsonl", b'{"body": "a"}\n{"bodi": "a"}', r"mine.jsonl, line 2: has no column 'body'; did you mean bodi"),
        ("jsonl", b'{"body": "\\ud800"}', "mine.jsonl: column 'body' has no valid Unicode"),
        ("parquet", b"PAR1", "mine.parquet: not a readable parquet file"),
    ],
)
def test_unsuitable_table_of_texts_is_named(tmp_path: Path, kind: str, content: bytes, words: str) -> None:
    path = tmp_path / f"downloads/mine/mine.{kind}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=words):
        pack_table(tmp_path, in_table(kind, path.name))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"text": None}, "text is None; expected the column that has the text"),
        ({"reader": "text"}, "text is 'body'; only a text in csv, jsonl, parquet or huggingface has one"),
        ({"kind": "table", "target": "a"}, "text is 'body'; only a text"),
    ],
)
def test_column_is_declared_for_texts_in_tables_alone(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    write_params(tmp_path, "smoke", mine=in_table("csv", "mine.csv"))
    assert load_params(tmp_path).datasets["mine"].text == "body"
    write_params(tmp_path, "smoke", mine=dataclasses.replace(in_table("csv", "mine.csv"), **fields))
    with pytest.raises(ParamsError, match=rf"datasets\.mine\.{words}"):
        load_params(tmp_path)

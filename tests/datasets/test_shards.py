"""Pictures in shards, written by the packages that define their formats: Hugging Face's `datasets` and `webdataset`."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import ipc, parquet

from stages.datasets.manifest import ChecksumMismatch, DatasetError
from stages.datasets.mirror import copy_to_mirror
from stages.datasets.packed import read_images
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import DatasetSource, ParamsError, SourceFile, load_params
from tests.datasets import archives
from tests.datasets.official_host import Answer, OfficialHost
from tests.datasets.test_own import pack, source_of
from tests.datasets.workplace import write_params

CLASSES = ["wolf", "cat", "eel"]  # not in the order of the alphabet
COUNTS = {"train": 21, "test": 9}
Rows = list[tuple[bytes, int]]


def rows_of(split: str) -> Rows:
    """Encoded pictures, all different, and their classes."""
    rows = []
    for number in range(COUNTS[split]):
        content = io.BytesIO()
        colour = (number, 5 if split == "test" else 9, 100 * (number % 3))
        Image.new("RGB", (8, 8), colour).save(content, "PNG")
        rows.append((content.getvalue(), number % 3))
    return rows


def table_of(rows: Rows) -> Any:
    import datasets  # two seconds

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    content = {"image": [{"bytes": picture, "path": None} for picture, _ in rows], "label": [name for _, name in rows]}
    return datasets.Dataset.from_dict(content, features=features)


def write_saved(root: Path, change: Callable[[Rows], Rows]) -> DatasetSource:
    import datasets

    datasets.disable_progress_bars()
    splits = datasets.DatasetDict({split: table_of(change(rows_of(split))) for split in COUNTS})
    splits.save_to_disk(root / "pets", num_shards={"train": 2, "test": 1})
    splits["train"].save_to_disk(root / "other")
    (root / "other/data-00000-of-00001.arrow").rename(root / "pets/train/cache-1f2e.arrow")  # as `map` leaves
    return source_of("pets/", reader="huggingface")


def write_hub(root: Path, change: Callable[[Rows], Rows]) -> DatasetSource:
    (root / "data").mkdir(parents=True)
    for split, shards in (("train", 2), ("test", 1)):
        table = table_of(change(rows_of(split)))
        for number in range(shards):
            name = f"data/{split}-{number:05d}-of-{shards:05d}.parquet"
            table.shard(shards, number, contiguous=True).to_parquet(root / name)
    names = ("data/train-{00000..00001}-of-00002.parquet", "data/test-00000-of-00001.parquet")
    return source_of(*names, reader="huggingface")


def write_samples(root: Path, change: Callable[[Rows], Rows], kind: str) -> DatasetSource:
    from webdataset import ShardWriter

    root.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train-%03d.tar"), ("test", "pets-validation-%03d.tar")):
        with ShardWriter(str(root / name), maxcount=11, verbose=0) as shards:
            for number, (picture, label) in enumerate(change(rows_of(split))):
                label_part = {"cls": label} if kind == "cls" else {"json": {"label": CLASSES[label], "id": number}}
                shards.write({"__key__": f"{number:04d}", "png": picture, **label_part, "txt": "a caption"})
    return source_of("train-{000..001}.tar", "pets-validation-000.tar", reader="webdataset")


FORMATS: dict[str, Callable[[Path, Callable[[Rows], Rows]], DatasetSource]] = {
    "saved": write_saved,
    "hub": write_hub,
    "cls": lambda root, change: write_samples(root, change, "cls"),
    "json": lambda root, change: write_samples(root, change, "json"),
}
every = pytest.mark.parametrize("kind", FORMATS)


def unchanged(rows: Rows) -> Rows:
    return rows


@every
def test_pictures_keep_their_class_order_and_split(tmp_path: Path, kind: str) -> None:
    info = pack(tmp_path, FORMATS[kind](tmp_path / "downloads/pets", unchanged))
    assert info.classes == {"cls": ("0", "1", "2"), "json": tuple(sorted(CLASSES))}.get(kind, tuple(CLASSES))
    assert (info.train_images, info.test_images, info.split_note) == (21, 9, None)
    for split in COUNTS:
        rows, packed = rows_of(split), read_images(tmp_path / "packed", split)  # type: ignore[arg-type]
        expected = [np.asarray(Image.open(io.BytesIO(picture))).transpose(2, 0, 1) for picture, _ in rows]
        assert (packed.images == np.stack(expected)).all()
        names = [info.classes[label] for label in packed.labels]
        assert names == [str(label) if kind == "cls" else CLASSES[label] for _, label in rows]


@every
def test_broken_pictures_are_named_and_refused_or_skipped(tmp_path: Path, kind: str) -> None:
    def breaks(rows: Rows) -> Rows:
        (whole, label), *others = rows
        return [(whole[: len(whole) // 2], label), *others]

    source = FORMATS[kind](tmp_path / "downloads/pets", breaks)
    first = {"saved": "row 00000000", "hub": "row 00000000"}.get(kind, "0000")
    with pytest.raises(DatasetError, match=rf"{first}: not a complete picture.*declare `broken: skip`"):
        pack(tmp_path, source)
    info = pack(tmp_path, dataclasses.replace(source, broken="skip"))
    assert (info.train_images, info.test_images, info.provenance) == (20, 8, "subset")
    assert info.split_note and "2 broken pictures left out" in info.split_note and first in info.split_note


@every
def test_declared_digest_makes_shards_official_and_notices_changes(tmp_path: Path, kind: str) -> None:
    root, said = tmp_path / "downloads/pets", list[str]()
    source = FORMATS[kind](root, unchanged)
    assert pack(tmp_path, source).provenance == "subset"
    pinned = []
    for file in source.files:
        found = sorted(path for path in root.rglob("*") if file.covers(path.relative_to(root).as_posix()))
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n"
            for path in found
            if path.is_file()
        ]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest() if file.is_group else lines[0][:64]
        pinned.append(dataclasses.replace(file, sha256=digest))
    fetch_dataset("pets", source, tmp_path, None, said.append)
    groups = [file for file in pinned if file.is_group]
    assert all(any(f"`sha256: {file.sha256}`" in line for line in said) for file in groups), "fetch prints it"
    source = dataclasses.replace(source, files=tuple(pinned))
    info = pack(tmp_path, source)
    assert (info.provenance, info.source) == ("full", "official")
    copy_to_mirror(source, root, tmp_path / "mirror/pets")
    (tmp_path / "other").mkdir()
    assert pack(tmp_path / "other", source, mirror=tmp_path / "mirror") == info
    changed = next(path for path in sorted(root.rglob("*")) if path.is_file() and "train" in str(path))
    changed.write_bytes(changed.read_bytes() + b" ")
    (root / "mirror.json").unlink()
    with pytest.raises(ChecksumMismatch, match="expected sha256"):
        fetch_dataset("pets", source, tmp_path, None, said.append)


@pytest.mark.parametrize("kind", ["hub", "cls"])
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_ranges_come_from_addresses(tmp_path: Path, kind: str, scheme: str) -> None:
    source = FORMATS[kind](tmp_path / "shared", unchanged)
    with OfficialHost() as host:
        for path in (path for path in (tmp_path / "shared").rglob("*") if path.is_file()):
            host.answers[path.name] = Answer(body=path.read_bytes())
        url = host.url if scheme == "http" else f"file://{tmp_path}/shared/"
        assert pack(tmp_path, dataclasses.replace(source, urls=(url,))).train_images == 21
        del host.answers[next(name for name in host.answers if "train" in name)]
        (tmp_path / "other").mkdir()
        if scheme == "http":
            with pytest.raises(DatasetError, match=r"[12] of 3 files were not found.*HTTP 404"):
                pack(tmp_path / "other", dataclasses.replace(source, urls=(url,)))


@pytest.mark.parametrize("name", ["a-{3..1}.tar", "{3..1}{3..1}.tar", "a-{0..9999999999}.tar", "{0..999}{0..999}.tar"])
def test_range_without_files_or_with_too_many_is_an_error(tmp_path: Path, name: str) -> None:
    write_params(tmp_path, "smoke", pets=source_of("x"))
    text = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text.replace("name: x\n", f"name: '{name}'\n"), encoding="utf-8")
    with pytest.raises(ParamsError, match=r"datasets\.pets\.files\.0 .*expected ranges of 1 to 100,000 files"):
        load_params(tmp_path)


def test_range_counts_with_the_zeros_of_its_start() -> None:
    assert SourceFile(name="a{b}.png").names == {"a{b}.png"}, "a name with braces alone is a name"
    assert SourceFile(name="a-{08..10}-{0..1}.tar").names == {
        f"a-{number}-{one}.tar" for number in ("08", "09", "10") for one in (0, 1)
    }


PICTURE = rows_of("train")[0][0]
CELL = {"bytes": PICTURE, "path": None}
EXTERNAL = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def pack_parquet(home: Path, columns: dict[str, Any], metadata: bytes | None = None, **fields: Any) -> Any:
    path = home / "downloads/pets/pets.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    parquet.write_table(table.replace_schema_metadata({"huggingface": metadata} if metadata else None), path)
    return pack(home, source_of("pets.parquet", reader="huggingface", **fields))


CLASS_LABEL = {"_type": "ClassLabel", "names": CLASSES}
TWO_CLASSES = json.dumps({"info": {"features": {"hair": CLASS_LABEL, "eyes": CLASS_LABEL}}}).encode()
ALL_CLASSES = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": CLASSES}}}}).encode()


@pytest.mark.parametrize(
    ("columns", "metadata", "fields", "words"),
    [
        ({"label": [0]}, None, {}, "expected one column of pictures, or one called image; it has label"),
        ({"a": [CELL], "b": [CELL], "label": [0]}, None, {}, "expected one column of pictures.*it has a, b, label"),
        ({"image": [CELL], "lable": [0]}, None, {}, r"has no column 'label'; did you mean lable.*as `target`"),
        (
            {"image": [CELL], "label": [0], "labels": [0]},
            None,
            {},
            "label and labels may have the class; declare one",
        ),
        ({"image": [CELL], "hair": [0], "eyes": [0]}, TWO_CLASSES, {}, "hair and eyes may have the class"),
        ({"image": [CELL], "label": [0]}, None, {"target": "fine"}, "has no column 'fine'"),
        ({"image": [CELL], "label": [0.5]}, None, {}, r"row 00000000: its class is 0\.5; expected a name, or a number"),
        ({"image": [CELL], "label": [-1]}, ALL_CLASSES, {}, "its class is -1.*leave out unlabelled files"),
        ({"image": [CELL], "label": [3]}, ALL_CLASSES, {}, "its class is 3"),
        ({"image": [CELL], "label": [None]}, None, {}, "its class is None"),
        ({"image": [CELL], "label": [0]}, b"[]", {}, "the features in its schema can't be read"),
        ({"image": [CELL], "label": [0]}, b'{"info": {"features": {"image": 3}}}', {}, "can't be read"),
        ({"image": [CELL], "label": ["a"]}, None, {"train": 1, "test": 0}, "1 class names; params.yaml declares 3"),
        (
            {"image": pa.array([{"bytes": None, "path": "/etc/passwd"}], EXTERNAL), "label": [0]},
            None,
            {},
            "row 00000000: has no bytes; embed the pictures",
        ),
    ],
)
def test_unsuitable_columns_are_named(
    tmp_path: Path, columns: dict[str, Any], metadata: bytes | None, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(DatasetError, match=words):
        pack_parquet(tmp_path, columns, metadata, **fields)


def test_classes_of_another_column_can_be_the_target(tmp_path: Path) -> None:
    rows = [*rows_of("train"), *rows_of("test")]
    columns = {"img": [picture for picture, _ in rows], "fine": [CLASSES[label] for _, label in rows]}
    info = pack_parquet(tmp_path, columns, target="fine")
    assert (info.classes, info.train_images) == (tuple(sorted(CLASSES)), 21)
    assert info.split_note == "test pictures drawn once, of each class in proportion"


@pytest.mark.parametrize("name", ["label", "labels"])
def test_column_called_label_wins_over_other_classes(tmp_path: Path, name: str) -> None:
    rows = [*rows_of("train"), *rows_of("test")]
    columns = {"img": [picture for picture, _ in rows], "domain": [0] * 30}
    metadata = json.dumps({"info": {"features": {"domain": {"_type": "ClassLabel", "names": ["photo"]}}}}).encode()
    info = pack_parquet(tmp_path, {**columns, name: [CLASSES[label] for _, label in rows]}, metadata)
    assert info.classes == tuple(sorted(CLASSES))


def test_files_with_other_classes_are_an_error(tmp_path: Path) -> None:
    source = write_hub(tmp_path / "downloads/pets", unchanged)
    path = tmp_path / "downloads/pets/data/test-00000-of-00001.parquet"
    metadata = ALL_CLASSES.replace(b"wolf", b"bear")
    parquet.write_table(parquet.read_table(path).replace_schema_metadata({"huggingface": metadata}), path)
    with pytest.raises(
        DatasetError, match=r"has the classes \['bear', .*; an earlier file has \['wolf'|has the classes"
    ):
        pack(tmp_path, source)


@pytest.mark.parametrize("name", ["pets.parquet", "pets.arrow"])
def test_table_that_unpacks_to_far_more_is_refused_before_that(tmp_path: Path, name: str) -> None:
    path, size = tmp_path / "downloads/pets" / name, 1 << 25
    path.parent.mkdir(parents=True)
    table = pa.table({"image": pa.array([bytes(size)]), "label": [0]})
    if name.endswith("arrow"):
        with ipc.new_stream(path, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(table)
    else:
        parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    known, counting = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counting)
    try:
        with pytest.raises(DatasetError, match=r"unpacks to more than|is compressed"):
            pack(tmp_path, source_of(name, reader="huggingface"))
    finally:
        pa.set_memory_pool(known)
    assert counting.max_memory() < size


def test_repeated_long_value_of_a_small_file_is_refused(tmp_path: Path) -> None:
    """A dictionary holds it once, so the file doesn't say how much its rows are."""
    columns = {"image": pa.array([bytes(1 << 22)] * 16), "label": [0] * 16}
    with pytest.raises(DatasetError, match="unpacks to more than"):
        pack_parquet(tmp_path, columns)


@pytest.mark.parametrize("name", ["pets.parquet", "pets.arrow", "pets.tar"])
@pytest.mark.parametrize("kept", [0, 3, 1540])
def test_truncated_file_is_named(tmp_path: Path, name: str, kept: int) -> None:
    root = tmp_path / "downloads/pets"
    kind, shard = {
        "pets.parquet": ("hub", "data/test-00000-of-00001.parquet"),
        "pets.arrow": ("saved", "pets/test/data-00000-of-00001.arrow"),
        "pets.tar": ("cls", "pets-validation-000.tar"),
    }[name]
    source = FORMATS[kind](tmp_path / "whole", unchanged)
    content = (tmp_path / "whole" / shard).read_bytes()
    root.mkdir(parents=True)
    (root / name).write_bytes(content[:kept])
    assert kept < len(content)
    with pytest.raises(DatasetError, match=name):
        pack(tmp_path, dataclasses.replace(source, files=(SourceFile(name=name),)))


def write_tar(path: Path, *members: tuple[str, bytes]) -> Path:
    return archives.write_tar(path, members, "w")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("a.png", PICTURE), ("b.cls", b"0")], r"pets\.tar, a: has \.png; expected the class next to it"),
        ([("a.png", PICTURE), ("a.jpg", PICTURE), ("a.cls", b"0")], "a: has 2 pictures; expected one"),
        ([("a.cls", b"0")], "a: has 0 pictures; expected one"),
        ([("a.png", PICTURE), ("a.cls", b"\xff")], "a: its class can't be read"),
        ([("a.png", PICTURE), ("a.cls", b"")], "a: its class is ''"),
        ([("a.png", PICTURE), ("a.cls", b"-1")], "a: its class is -1"),
        ([("a.png", PICTURE), ("a.json", b"[" * 100_000)], "a: its class can't be read"),
        ([("a.png", PICTURE), ("a.json", b"[]")], "a: its class can't be read"),
        ([("a.png", PICTURE), ("a.json", b'{"id": 3}')], "a: its class is None"),
        ([("a.png", PICTURE), ("a.json", b'{"label": true}')], "a: its class is True"),
        ([("../a.png", PICTURE), ("../a.cls", b"0")], "the name leads out of the archive"),
        ([("/a.png", PICTURE)], "the name leads out of the archive"),
        ([("a.png", PICTURE), ("a.png", PICTURE)], "occurs twice"),
        ([("readme", b"")], "1 files have no picture that the reader webdataset can read"),
        ([("a/.b.png", PICTURE), ("c.txt", b"")], "1 files have no picture that the reader webdataset can read"),
    ],
)
def test_unsuitable_sample_is_named(tmp_path: Path, members: list[tuple[str, bytes]], words: str) -> None:
    write_tar(tmp_path / "downloads/pets/pets.tar", *members)
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source_of("pets.tar", reader="webdataset"))

"""A user's own files with a fault: each reader names the file and what is wrong, or reads it right."""

import dataclasses
import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource
from tests.datasets.archives import write_zip
from tests.datasets.test_own import picture, source_of
from tests.datasets.test_splits import FORMS, Parts, as_npz, content_of

PARTS = {"train": list(range(6)), "test": list(range(6, 9))}
TABLE: dict[str, Any] = {"kind": "table", "reader": "csv", "target": "price", "shape": (2,), "train": 8, "test": 2}


def as_zip(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    members = [(f"{part}/{one % 3}/{one}.png", content_of(one)) for part, numbers in parts.items() for one in numbers]
    write_zip(root / "pets.zip", members)
    return source_of("pets.zip")


def as_table_of(kind: str) -> Callable[[Path, Parts, set[int]], DatasetSource]:
    def write(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
        root.mkdir(parents=True, exist_ok=True)
        for part, numbers in parts.items():
            frame = pd.DataFrame({"row": numbers, "word": ["ab"[one % 2] for one in numbers], "target": numbers})
            frame.to_parquet(root / f"{part}.parquet") if kind == "parquet" else frame.to_csv(root / f"{part}.csv")
        files = [f"{part}.{kind}" for part in parts]
        return dataclasses.replace(source_of(*files, reader=kind), kind="table", shape=(4,), target="target")

    return write


def as_rows(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    root.mkdir(parents=True, exist_ok=True)
    arrays = {f"x_{part}": np.stack([numbers, np.square(numbers)], 1) / 3 for part, numbers in parts.items()}
    np.savez(root / "pets.npz", **arrays, **{f"y_{part}": np.array(numbers) / 7 for part, numbers in parts.items()})
    return dataclasses.replace(source_of("pets.npz", reader="npz"), kind="table", shape=(2,))


def as_text_of(kind: str) -> Callable[[Path, Parts, set[int]], DatasetSource]:
    def write(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
        root.mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame({"body": [f"document {number}" for number in range(30)]})
        path = root / f"pets.{kind}"
        if kind == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        elif kind == "text":
            path.write_text("\n".join(frame["body"]))
        else:
            frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        column = None if kind == "text" else "body"
        return dataclasses.replace(source_of(path.name, reader=kind), kind="text", shape=(4,), text=column)

    return write


WRITERS: dict[str, Callable[[Path, Parts, set[int]], DatasetSource]] = {
    **FORMS,
    "zip": as_zip,
    "npz of images": as_npz,
    "npz of rows": as_rows,
    **{f"{kind} of rows": as_table_of(kind) for kind in ("csv", "parquet")},
    **{f"{kind} of text": as_text_of(kind) for kind in ("text", "csv", "jsonl", "parquet")},
}


def damage(content: bytes, kind: str, place: float, length: int) -> bytes:
    start = int(place * len(content))
    end = start + length
    return {
        "cut": content[:start],
        "flipped": content[:start] + bytes(byte ^ 0xA5 for byte in content[start:end]) + content[end:],
        "zeroed": content[:start] + bytes(len(content[start:end])) + content[end:],
        "lost": content[:start] + content[end:],
        "twice": content[:end] + content[start:],
        "renamed picture": picture((9, 9, 9)),
        "renamed text": b"body,target\n1,2\n" * (length + 1),
        "renamed array": array_file(),
        "empty": b"",
    }[kind]


def array_file() -> bytes:
    content = io.BytesIO()
    np.save(content, np.arange(3))
    return content.getvalue()


DAMAGES = ("cut", "flipped", "zeroed", "lost", "twice", "renamed picture", "renamed text", "renamed array", "empty")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", WRITERS)
def test_damaged_file_is_an_error_in_one_line_or_read_as_declared(tmp_path: Path, form: str) -> None:
    whole = tmp_path / "whole"
    source = dataclasses.replace(WRITERS[form](whole, PARTS, set()), train=6, test=3)
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())

    @settings(max_examples=12, deadline=None)
    @given(st.sampled_from(names), st.sampled_from(DAMAGES), st.floats(0, 1), st.integers(1, 40), st.booleans())
    def check(name: Path, kind: str, place: float, length: int, skips: bool) -> None:
        with tempfile.TemporaryDirectory() as home:
            root = Path(home) / "downloads/pets"
            shutil.copytree(whole, root)
            (root / name).write_bytes(damage((root / name).read_bytes(), kind, place, length))
            outcome = outcome_in(Path(home), dataclasses.replace(source, broken="skip" if skips else "refuse"))
            assert "\n" not in outcome

    check()


def outcome_in(home: Path, source: DatasetSource) -> str:
    """The error of a set, or nothing if it is packed as declared, without more than the pictures that are left out."""
    try:
        manifest = fetch_dataset("pets", source, home, None, lambda line: None)
        info = prepare(source, manifest, home, home / "packed")
    except DatasetError as error:
        return str(error)
    is_whole = (info.train_images, info.test_images) == (source.train, source.test)
    return "" if is_whole or "broken pictures left out" in (info.split_note or "") else f"not as declared:\n{info}"

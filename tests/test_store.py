"""The run store: whole outcomes or none, the first publication stays, nothing half-written is ever read."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from stages.runs.store import RunStore, write_atomically


def test_folder_without_result_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "runs" / "k").mkdir(parents=True)
    assert RunStore(tmp_path).published("k") is None


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, None)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"


def _write_many(path: str, letter: bytes) -> None:
    for _ in range(50):
        write_atomically(Path(path), letter * 200_000)


def test_a_reader_beside_two_writers_sees_whole_files(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"a" * 200_000)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(target), letter)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = target.read_bytes()
        assert len(content) == 200_000
        assert len(set(content)) == 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0

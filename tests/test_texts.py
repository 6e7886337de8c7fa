"""Every reader of files that users write takes UTF-8 and UTF-16 alike, and says how to convert another encoding."""

import gzip
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.citation import read_about
from stages.datasets.tables import read_frame
from stages.datasets.text import READERS, _jsonl_column
from stages.params.schema import read_yaml
from stages.reported.command import _read_rules
from stages.reported.judging import RULES
from stages.reported.reading import read_file
from stages.reported.trackers import import_results
from stages.texts import UnreadableText, decode, plain
from tests.datasets.test_own import source_of

TABLE = "arm,seed,accuracy\nvít,0,0.9\nvít,1,0.91\n"
CITATION = "title: Zähler\nauthors: [{name: Jürgen}]\n"


def read_own(path: Path) -> Any:
    return read_frame(path, source_of(path.name, reader="csv", target="seed"), "csv").to_dict("list")


def read_lines(path: Path) -> Any:
    return [*_jsonl_column(path, source_of(path.name, reader="jsonl", kind="text", text="a"))]


PARSERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "reported table": (TABLE, lambda path: read_file(path).to_dict("list")),
    "tracker": (TABLE, lambda path: import_results("csv", path).table.to_dict("list")),
    "own table": (TABLE, read_own),
    "own text": ("Zähler und Nenner\n", lambda path: READERS["text"](path, 0)),
    "own lines": ('{"a": "Zähler"}\n', read_lines),
    "parameters": ("title: Zähler\n", read_yaml),
    "rules": ("# für uns\nalpha_within: 0.1\n", partial(_read_rules, usual=RULES)),
    "citation": (CITATION, read_about),
}


@pytest.mark.parametrize("parser", PARSERS)
def test_every_parser_reads_unicode_and_explains_other_encodings(parser: str, tmp_path: Path) -> None:
    text, read = PARSERS[parser]
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    expected = read(path)
    for encoding in ("utf-16", *(() if parser == "own text" else ("utf-8-sig",))):  # every byte is a token there
        path.write_text(text, encoding=encoding)
        assert read(path) == expected, encoding
    for content, said in (
        (text.encode("latin-1"), r"byte 0x\w\w is not UTF-8; in Windows-1252 it would be '.*[äíü]'.*-f WINDOWS-1252"),
        (text.encode("utf-16-le"), "as in UTF-16 without a byte-order mark.*iconv -f UTF-16LE"),
        (f"\0{text}".encode(), "line 1: there is a NUL character"),
    ):
        path.write_bytes(content)
        with pytest.raises(Exception, match=r"mine\.txt, line \d.*-t UTF-8 mine\.txt > new-mine\.txt") as caught:
            read(path)
        assert re.search(said, str(caught.value)) and "\n" not in str(caught.value), caught.value


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff")),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_text_is_the_same_in_each_unicode_encoding(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding), Path("x")) == text


@given(st.binary())
def test_any_bytes_are_decoded_or_refused_in_one_line(content: bytes) -> None:
    try:
        said = decode(content, Path("x"))
    except UnreadableText as error:
        said = str(error).removeprefix("x, line ").replace("\n", "\0")
    assert "\0" not in said


def test_names_that_look_the_same_are_the_same() -> None:
    assert plain(" Zu\u0308rich\u00a050\u200b ") == "Zürich 50"


def test_compressed_tables_are_read_and_explained(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "mine.csv.gz").write_bytes(gzip.compress(TABLE.encode(encoding)))
        assert read_own(tmp_path / "mine.csv.gz")["arm"] == ["vít", "vít"]
    (tmp_path / "mine.csv.gz").write_bytes(gzip.compress(TABLE.encode("latin-1")))
    with pytest.raises(Exception, match="line 2: byte 0xed is not UTF-8; in Windows-1252 it would be 'ví'"):
        read_own(tmp_path / "mine.csv.gz")

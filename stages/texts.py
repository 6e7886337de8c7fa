"""Reads text that users write, in files and cells.  Standard library only."""

from __future__ import annotations

import codecs
import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Soft hyphens, spaces without width and byte-order marks, which PDF files and word processors leave in names."""


class UnreadableText(ValueError):
    """A file in another encoding, or that isn't CSV; the message has the file and the line, and says what to do."""


def encoding_of(start: bytes) -> str:
    """Return the encoding of a text that begins with these bytes: UTF-16 with its byte-order mark, else UTF-8."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def decode(content: bytes, path: Path) -> str:
    """Decode a file's content in UTF-8, or in UTF-16 with a byte-order mark, as Excel writes it.

    Raises:
        UnreadableText: it is in another encoding.
    """
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raw, at, line = error.object, error.start, error.object.count(b"\n", 0, error.start) + 1
        found, guess = f"byte {raw[at]:#04x} is not {'UTF-16' if encoding == 'utf-16' else 'UTF-8'}", ""
        word = re.split(rb"[\s,;]", raw[max(at - 20, 0) : at])[-1] + raw[at : at + 1]
        if encoding != "utf-16" and b"\0" not in content and "\ufffd" not in word.decode("cp1252", "replace"):
            found, guess = f"{found}; in Windows-1252 it would be {word.decode('cp1252')!r}", "WINDOWS-1252"
    else:
        if "\0" not in text:
            return text
        line, found, guess = text[: text.index("\0")].count("\n") + 1, "there is a NUL character", ""
    if encoding != "utf-16" and content.count(0) > len(content) / 4:
        guess = "UTF-16LE" if content[1::2].count(0) > content[::2].count(0) else "UTF-16BE"
        found = f"{found}, as in UTF-16 without a byte-order mark"
    raise UnreadableText(
        f"{path}, line {line}: {found}; save it as UTF-8 (in Excel: CSV UTF-8), or convert it with "
        f"`iconv -f {guess or 'ITS-ENCODING'} -t UTF-8 {path.name} > new-{path.name}`"
    )


def csv_rows(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV file that aren't blank, header first, each with the line in which it begins, from 1.

    Lines that begin with # may precede the header, whose cells may be separated by commas, semicolons or tabs.

    Raises:
        UnreadableText: a row isn't CSV.
    """
    lines = list(io.StringIO(text, newline=""))
    first = next((at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    header, rows, begin = "".join(lines[first : first + 1]), [], first + 1
    reader = csv.reader(lines[first:], delimiter=max(",;\t", key=header.count), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((begin, cells))
            begin = first + reader.line_num + 1
    except csv.Error as error:
        raise UnreadableText(f"{path}, line {begin}: {error}; expected CSV") from None
    return rows


def surplus(cells: Sequence[str], columns: Sequence[str]) -> str:
    """Return what is wrong if a row has more cells than columns, else an empty text."""
    if not any(cell.strip() for cell in cells[len(columns) :]):
        return ""
    return f"{len(cells)} cells in {len(columns)} columns; quote a cell that has a comma"


def plain(text: str) -> str:
    """Return a name or number in the form in which it is compared: composed letters, plain spaces, none at the ends."""
    return re.sub(r"\s", " ", unicodedata.normalize("NFC", text).translate(_INVISIBLE)).strip()

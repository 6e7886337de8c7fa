"""Reads text that users write, in files and cells.  Standard library only."""

from __future__ import annotations

import codecs
import re
import unicodedata
from pathlib import Path

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Soft hyphens, spaces without width and byte-order marks, which PDF files and word processors leave in names."""


class UnreadableText(ValueError):
    """A file in another encoding; the message has the file and the line, and says how to convert it."""


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


def plain(text: str) -> str:
    """Return a name or number in the form in which it is compared: composed letters, plain spaces, none at the ends."""
    return re.sub(r"\s", " ", unicodedata.normalize("NFC", text).translate(_INVISIBLE)).strip()

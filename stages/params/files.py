"""Files of a data set as params.yaml names them: one file, a folder, or a range of files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from stages.run import STRICT

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_MOST_FILES = 100_000


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file under its official name, relative to the data set's folder, and its published digests, if there are any.

    `optional`: a mirror's part of the data set may lack it; the official host may not.  A name that ends with a slash
    is a folder, and one with a range in braces, as in `train-{000..009}.tar`, is that many files: the sha256 of either
    is that of a line `sha256  name` for each of its files, sorted by name (`fetch` prints it).
    """

    __pydantic_config__: ClassVar = STRICT
    name: str
    md5: str | None = None
    sha256: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        files = math.prod(max(int(last) - int(first) + 1, 0) for first, last in _RANGE.findall(self.name))
        if not 0 < files <= _MOST_FILES:
            raise ValueError(f"expected ranges of 1 to {_MOST_FILES:,} files, as in train-{{000..009}}.tar")

    @property
    def is_group(self) -> bool:
        return self.name.endswith("/") or _RANGE.search(self.name) is not None

    def covers(self, name: str) -> bool:
        """True for each file of the folder or the range, or the file itself."""
        return name.startswith(self.name) if self.name.endswith("/") else name in self.names

    @cached_property
    def names(self) -> frozenset[str]:
        """The files of a range, or the name itself."""
        return frozenset(_expand(self.name))


def _expand(name: str) -> Iterator[str]:
    if (found := _RANGE.search(name)) is None:
        yield name
        return
    first, last = found.groups()
    for number in range(int(first), int(last) + 1):
        yield from _expand(f"{name[: found.start()]}{number:0{len(first)}d}{name[found.end() :]}")

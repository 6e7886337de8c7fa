"""Read documentation pages as executable examples: files to write, commands to run, and expected output."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"(?:^`(?P<file>[^`\n]+)`[^\n]*\n\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block; `file` is the backticked path that starts the line above it, if any."""

    file: str | None
    language: str
    text: str


def read_examples(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    found = [
        Block(match["file"], match["language"], match["text"])
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]
    assert len(found) == page.read_text(encoding="utf-8").count("\n```") / 2, f"{page}: this parser misses a block"
    return found


def is_printed(expected: str, output: str) -> list[str]:
    """Return the lines of `expected` that `output` lacks; `…` matches any text within a line."""
    lines = output.splitlines()
    return [line for line in expected.splitlines() if not any(_fits(line, shown) for shown in lines)]


def _fits(line: str, shown: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, line.split("…"))), shown) is not None


def differences(expected: Any, answer: Any, place: str = "answer") -> Iterable[str]:
    """List differences between `answer` and the example on the page.

    Objects may have extra keys, and each example element must occur in the list. The text `…` matches any value.
    """
    if expected == "…":
        return
    if isinstance(expected, dict) and isinstance(answer, dict):
        for key, value in expected.items():
            yield from differences(value, answer.get(key, "nothing"), f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(answer, list):
        for number, value in enumerate(expected):
            tries = [list(differences(value, item, f"{place}[{number}]")) for item in answer]
            yield from min(tries, key=len, default=[f"{place} is empty"])
    elif expected != answer:
        yield f"{place} is {answer!r}, shown is {expected!r}"

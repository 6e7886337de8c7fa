"""Reads YAML and JSON that users write, and writes YAML.

What YAML would read as something else than was probably meant is refused.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from stages.texts import decode

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_NUMBERS, _OTHERS = ("int", "float"), ("str", "bool", "null", "seq", "map")
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+")
"""A number in JSON, and in YAML since 1.2; the parser would read a text."""
_MISREAD = re.compile(r"[-+]?0[0-9_]+|.*:.*")
"""Octal numbers, as 010, and numbers to base 60, as 1:30."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


class YamlError(ValueError):
    """A file that isn't YAML or has something to correct; the message has the file, and the line if it is known."""


def read_yaml(path: Path) -> Any:
    """Read finite numbers, texts, true, false, null, lists, and mappings whose keys are texts or numbers.

    Raises:
        OSError: the file can't be read.
        UnreadableText: it isn't in UTF-8.
        YamlError: it isn't YAML, or it has a key twice or a value of another type, such as a date.
    """
    loader = _Loader(decode(path.read_bytes(), path))
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _Check(loader, path).visit(root, "", ())
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise YamlError(f"{path}: not YAML: {describe_yaml(error)}") from error
    except RecursionError:
        raise YamlError(f"{path}: its lists and mappings are nested too deep") from None
    finally:
        loader.dispose()


class _Check:
    """Refuses what isn't plain in a document that is parsed but not constructed yet."""

    def __init__(self, loader: Any, path: Path) -> None:
        self.loader, self.path = loader, path
        self.seen: set[int] = set()

    def visit(self, node: Any, key_path: str, above: tuple[int, ...]) -> None:
        """Check a node at a dotted path of keys, `above` which are those with these ids."""
        if id(node) in above:
            self.refuse(node, key_path, "contains itself")
        if id(node) in self.seen:  # an alias
            return
        self.seen.add(id(node))
        kind, above = node.tag.removeprefix(_TAG), (*above, id(node))
        if kind == "str" and not node.style and _EXPONENT.fullmatch(node.value):
            node.tag, kind = f"{_TAG}float", "float"
        if kind in _NUMBERS:
            self.check_number(node, key_path)
        elif kind not in _OTHERS:
            what = "a date" if kind == "timestamp" else f"of the type {kind}"
            self.refuse(node, key_path, f"is {what}; expected a number, text, true, false, null, list or mapping")
        elif kind == "seq":
            for number, item in enumerate(node.value):
                self.visit(item, f"{key_path}.{number}".strip("."), above)
        elif kind == "map":
            names: dict[Any, int] = {}
            for key, item in node.value:
                name = key_path if key.tag == f"{_TAG}merge" else self.add_key(key, names, key_path)
                self.visit(item, name, above)

    def check_number(self, node: Any, key_path: str) -> None:
        try:
            number = self.loader.construct_object(node)
            is_finite = math.isfinite(number)
        except (ValueError, OverflowError):  # more digits than Python reads, or than a float holds
            number, is_finite = f"{node.value[:20]}…", False
        if not is_finite:
            self.refuse(node, key_path, f"is {number}; expected a finite number")
        if _MISREAD.fullmatch(node.value):
            self.refuse(node, key_path, f"is {node.value}, which YAML reads as {number}; write that, or quote it")

    def add_key(self, key: Any, names: dict[Any, int], key_path: str) -> str:
        """Check a key after those that are in `names` with their lines; return its dotted path."""
        kind = key.tag.removeprefix(_TAG)
        if not isinstance(key, yaml.ScalarNode) or kind not in ("str", *_NUMBERS):
            self.refuse(key, key_path, f"has a key of the type {kind}; expected a text or a number: quote it")
        name, line = self.loader.construct_object(key), key.start_mark.line + 1
        if name in names:
            self.refuse(key, key_path, f"key {key.value!r} occurs twice, first in line {names[name]}; keep one")
        names[name] = line
        if len({isinstance(one, str) for one in names}) > 1:
            self.refuse(key, key_path, f"has texts and numbers as keys, such as {key.value!r}; quote the numbers")
        return f"{key_path}.{key.value}".strip(".")

    def refuse(self, node: Any, key_path: str, fault: str) -> None:
        place = f"{self.path}, line {node.start_mark.line + 1}"
        raise YamlError(f"{place}: {key_path}{' ' if key_path else ''}{fault}")


def dump_yaml(value: Any, **options: Any) -> str:
    """Return YAML in the order of the value, which spells out what occurs more than once."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)


def describe_yaml(error: yaml.YAMLError) -> str:
    """Return the parser's message on one line, without its name for a text."""
    return re.sub(r' in "<(?:unicode|byte) string>",', " at", " ".join(str(error).split()))

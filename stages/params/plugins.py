"""Finds the plugins of installed distributions, which params may name without their module.

A distribution declares a plugin by an entry point: `name = "package.module:object"` in the group `claimcheck.<kind>`.
The name means that address and nothing else, so run keys have the address and the version of its distribution.  A
malformed entry point is listed with its fault, and refused where params name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stages.params.callables import ADDRESS
from stages.params.schema import ParamsError, hint

KINDS = ("models", "optimizers", "schedules", "losses", "transforms", "metrics", "tasks", "readers")


@dataclass(frozen=True, order=True)
class Plugin:
    """An object that a distribution offers; `address` is its `package.module:name`, or empty if there is a `fault`."""

    kind: str
    name: str
    distribution: str
    version: str
    address: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.address or self.fault})"


def find_plugins(*kinds: str) -> list[Plugin]:
    """Return the installed plugins of some kinds, without importing them."""
    return sorted({plugin for distribution in metadata.distributions() for plugin in _offered_by(distribution, kinds)})


def _offered_by(distribution: metadata.Distribution, kinds: Iterable[str]) -> Iterator[Plugin]:
    """Yield the plugins of a distribution, unless another one of its name comes before it on the path."""
    text, group = distribution.read_text("entry_points.txt") or "", ""
    if "[claimcheck." not in text:
        return
    owner, version = distribution.metadata["Name"] or "unknown", distribution.metadata["Version"] or "unknown"
    if owner != "unknown" and metadata.distribution(owner).read_text("entry_points.txt") != text:
        return
    for line in map(str.strip, text.splitlines()):  # importlib's parser gives up at the first malformed line
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group in [f"claimcheck.{kind}" for kind in kinds] and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            address = ":".join(part.strip() for part in value.partition("[")[0].split(":"))  # without extras
            fault = "" if ADDRESS.fullmatch(address) else f"{line!r}; expected {name.strip()} = package.module:object"
            kind = group.removeprefix("claimcheck.")
            yield Plugin(kind, name.strip(), owner, version, "" if fault else address, fault)


def address_of(kind: str, name: str, known: Iterable[str], path: Path, key_path: str) -> str:
    """Return `package.module:name` of a plugin's name; such an address stays.  `known`: names that are built in.

    Raises:
        ParamsError: there is no such plugin, it is malformed, or several distributions offer one of this name.
    """
    if ":" in name:
        if not ADDRESS.fullmatch(name):
            raise ParamsError(f"{path}: {key_path} is {name!r}; expected package.module:name")
        return name
    plugins = find_plugins(kind)
    found = [plugin for plugin in plugins if plugin.name == name]
    if not found:
        choices = [*sorted({*known, *(plugin.name for plugin in plugins)}), "package.module:name"]
        raise ParamsError(f"{path}: {key_path} is {name!r}{hint(name, choices)}")
    if len(found) > 1:
        offers = " and ".join(map(str, found))
        raise ParamsError(f"{path}: {key_path} is {name!r}, which {offers} offer; write the address of one")
    if found[0].fault:
        raise ParamsError(f"{path}: {key_path} is {name!r}, which is malformed in {found[0]}; write its address here")
    return found[0].address

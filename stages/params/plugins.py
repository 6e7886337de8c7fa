"""Finds the plugins of installed distributions, which params may name without their module.

A distribution declares a plugin by an entry point: `name = "package.module:object"` in the group `claimcheck.<kind>`.
The name means that address and nothing else, so run keys have the address and the version of its distribution.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stages.params.schema import ParamsError, hint

KINDS = ("models", "optimizers", "schedules", "losses", "transforms", "metrics", "tasks", "readers")


@dataclass(frozen=True, order=True)
class Plugin:
    """An object that a distribution offers; `address` is its `package.module:name`."""

    kind: str
    name: str
    distribution: str
    version: str
    address: str


def find_plugins(*kinds: str) -> list[Plugin]:
    """Return the installed plugins of some kinds, without importing them."""
    return sorted(
        Plugin(kind, point.name, point.dist.name, point.dist.version, f"{point.module}:{point.attr}")
        for kind in kinds
        for point in metadata.entry_points(group=f"claimcheck.{kind}")
        if point.dist is not None
    )


def address_of(kind: str, name: str, known: Iterable[str], path: Path, key_path: str) -> str:
    """Return `package.module:name` of a plugin's name; such an address stays.  `known`: names that are built in.

    Raises:
        ParamsError: there is no such plugin, or several distributions offer one of this name.
    """
    if ":" in name:
        return name
    plugins = find_plugins(kind)
    found = [plugin for plugin in plugins if plugin.name == name]
    if not found:
        choices = [*sorted({*known, *(plugin.name for plugin in plugins)}), "package.module:name"]
        raise ParamsError(f"{path}: {key_path} is {name!r}{hint(name, choices)}")
    if len(found) > 1:
        offers = " and ".join(f"{one.distribution} {one.version} ({one.address})" for one in found)
        raise ParamsError(f"{path}: {key_path} is {name!r}, which {offers} offer; write the address of one")
    return found[0].address

"""The specs of two arms of an experiment: every leaf of model and protocol, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from stages.results import Arm, Experiment


@dataclass(frozen=True, kw_only=True)
class SpecRow:
    """One leaf by its dotted name; None on a side that has no such leaf."""

    name: str
    left: object
    right: object

    @property
    def differs(self) -> bool:
        return self.left != self.right


def flatten(value: object, prefix: str = "") -> list[tuple[str, object]]:
    """Nested mappings as dotted names and leaves."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [pair for key, item in value.items() for pair in flatten(item, f"{prefix}.{key}" if prefix else str(key))]


def spec_of(experiment: Experiment, arm: Arm) -> dict[str, object]:
    """Model and protocol of an arm, with its departures from the experiment's protocol filled in."""
    return dict(flatten({"model": arm.model, "protocol": {**experiment.protocol, **arm.protocol}}))


def lay_side_by_side(experiment: Experiment, left: Arm, right: Arm) -> list[SpecRow]:
    """Every leaf of either side, in the order of the left one first."""
    one, other = spec_of(experiment, left), spec_of(experiment, right)
    return [SpecRow(name=name, left=one.get(name), right=other.get(name)) for name in {**one, **other}]

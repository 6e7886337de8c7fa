"""Lines of a chart of learning curves, each of a model or of a single run, whichever experiments they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.database import queries
from service.database.comparing import Question
from service.database.curves import CURVES, Curve, CurvePoint, known_curves, list_curves, name_curve
from stages.results import Epoch, ExperimentComparison, UnknownArm

Answer = Callable[[Question], list[ExperimentComparison]]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A model, by `<experiment>.<arm>`, or a run, by the beginning of its key; `name` is that.

    `against` is the line of the model that it stands against.  `curves` were measured; placeholders have none here.
    """

    name: str
    title: str
    experiment: str
    address: str
    kind: str
    provenance: str | None
    cut: str | None
    against: str | None
    curves: tuple[Curve, ...]
    points: Callable[[Curve], list[CurvePoint]]


def find_line(session: Session, name: str, compare: Answer) -> Line:
    """The line of this name.

    Raises:
        UnknownExperiment, UnknownArm: there is no such model.
        UnknownRun: no run's key begins so, or several do.
    """
    return _of_model(session, name, compare) if "." in name else _of_run(session, name)


def _of_model(session: Session, name: str, compare: Answer) -> Line:
    experiment, _, arm = name.partition(".")
    found = queries.find_experiment(session, experiment[:80])
    asked = next((item for item in found.arms if item.name == arm), None)
    if asked is None:
        raise UnknownArm(arm[:80], [item.name for item in found.arms])
    comparison = next(item for item in compare(Question(dataset=found.dataset)) if item.experiment == found.name)
    is_drawn = comparison.is_real and any(item.arm == arm and item.run_keys for item in comparison.arms)
    return Line(
        name=name,
        title=f"{asked.title} ({found.name})",
        experiment=found.name,
        address=f"/experiments/{found.name}?arm={arm}",
        kind=queries.find_dataset(session, found.dataset).kind,
        provenance=comparison.provenance,
        cut=comparison.cut,
        against=f"{found.name}.{asked.against}" if asked.role == "proposed" and asked.against else None,
        curves=tuple(known_curves(session, comparison, arm=arm)) if is_drawn else (),
        points=lambda curve: list_curves(session, comparison, curve, [arm]),
    )


def _of_run(session: Session, start: str) -> Line:
    run = queries.find_run(session, start)[0]
    experiment = queries.find_experiment(session, run.experiment)
    title = next(arm.title for arm in experiment.arms if arm.name == run.arm)
    is_drawn = run.provenance != "embedded"
    return Line(
        name=start,
        title=f"{title}, run {run.run_key[: queries.FEWEST_DIGITS]} ({experiment.name})",
        experiment=experiment.name,
        address=f"/runs/{run.run_key}",
        kind=queries.find_dataset(session, experiment.dataset).kind,
        provenance=run.provenance,
        cut=run.cut,
        against=None,
        curves=tuple(curve for curve in CURVES if _points(start, run.epochs, curve)) if is_drawn else (),
        points=lambda curve: _points(start, run.epochs, curve),
    )


def _points(name: str, epochs: Sequence[Epoch], curve: Curve) -> list[CurvePoint]:
    return [
        CurvePoint(arm=name, epoch=epoch.epoch, replicates=1, mean=value, low=value, high=value)
        for epoch in epochs
        if (value := getattr(epoch, curve)) is not None
    ]


def curves_of(lines: Sequence[Line]) -> list[Curve]:
    """The curves that any of the lines has: those of the most lines first, else in the order of `CURVES`."""
    counts = Counter(curve for line in lines for curve in line.curves)
    return sorted(counts, key=lambda curve: (-counts[curve], CURVES.index(curve)))


def drawn_together(lines: Sequence[Line], curve: Curve) -> list[Line]:
    """The lines that have this curve, in the first one's quantity: nats share no axis with a squared error."""
    have = [line for line in lines if curve in line.curves]
    return [line for line in have if name_curve(curve, line.kind) == name_curve(curve, have[0].kind)]

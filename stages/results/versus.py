"""Judge whether one model beats another on a data set, for any two models of one experiment, as a printed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

import numpy as np
import scipy
from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.results.claims import CLAIMS
from stages.results.comparison import ComparisonRows, Run, load_facts, printed_metrics, values_of
from stages.results.database import UnknownArm, known_metrics, read_rules
from stages.results.estimates import FIRST_METRICS, Measured, cut_of_each
from stages.results.tables import ArmRow, Array, Claim, Dataset, ExperimentRow, VerdictRow
from stages.rules import Rules
from stages.runs.evidence import unpack_correct
from stages.verdicts import (
    ComparedArms,
    Design,
    EvidenceLevel,
    GainClaim,
    Observation,
    Sample,
    Verdict,
    evidence_level_of,
    judge_gain,
    not_tested,
)
from stages.verdicts.metrics import METRICS, MetricInfo
from stages.verdicts.power import least_detected
from stages.verdicts.value import Pairing

Model = tuple[ExperimentRow, ArmRow]
Runs = Sequence[Run]


class SameModel(ValueError):
    """A model is compared with itself."""


@dataclass(frozen=True, kw_only=True)
class ImagePair:
    """McNemar's exact test of two networks of one replicate on the same test images."""

    replicate: int
    images: int
    a_alone: Annotated[int, "images that only a's network gets right"]
    b_alone: int
    p_value: Annotated[float, "two-sided; compares these two networks, not the two models"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two models: its mean in the metric over `n` replicates, which may be shortened runs.

    `trained` of the `planned` replicates ran as printed on all official data.
    """

    experiment: ExperimentRow
    arm: ArmRow
    value: float | None
    n: int
    trained: int
    planned: int

    @property
    def ours(self) -> Measured | None:
        return None if self.value is None else Measured(value=self.value, low=None, high=None, n=self.n)


@dataclass(frozen=True, kw_only=True)
class Versus:
    """The answer to "does `a` beat `b`?"; the verdict has the gain of a over b, better positive.

    `is_paired`: one experiment trains both.  `cut` says how the runs were shortened, if they were.  `least` is the
    difference that the plan detects with a probability of 80 %, given a measured, printed or assumed spread
    (`spread_source`).  `claims` are those of the paper about this pair.
    """

    dataset: Dataset
    metric: MetricInfo
    a: Side
    b: Side
    verdict: Verdict
    is_paired: bool = False
    cut: str = ""
    least: float | None = None
    spread_source: str | None = None
    images: tuple[ImagePair, ...] = ()
    claims: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        return sum(side.planned - side.trained for side in (self.a, self.b))

    @property
    def hours(self) -> dict[str, float] | None:
        """Cost of the missing trainings by kind of device; None if one of them has no estimate."""
        left = [(side.planned - side.trained, side.arm.hours) for side in (self.a, self.b)]
        if any(number and not hours for number, hours in left):
            return None
        return {kind: sum(number * hours.get(kind, 0.0) for number, hours in left) for kind in left[0][1] or left[1][1]}


def versus(session: Session, dataset: Dataset, a: str, b: str) -> Versus:
    """Judge the order of two models, each named by its arm, `<experiment>.<arm>` or its title.

    If several experiments train both, the one with the strongest evidence is used.

    Raises:
        UnknownArm: no experiment on the data set has such a model.
        SameModel: both names are of one model.
    """
    query = select(ExperimentRow, ArmRow).join(ArmRow, ArmRow.experiment == ExperimentRow.name)
    on_dataset = query.where(ExperimentRow.dataset == dataset.name)
    rows = session.execute(on_dataset.order_by(ExperimentRow.position, ArmRow.position))
    known = [(row.ExperimentRow, row.ArmRow) for row in rows]
    ours, theirs = (_named(name, known) for name in (a, b))
    shared = [name for name in ours if name in theirs and ours[name][1] is not theirs[name][1]]
    if not shared and set(ours) & set(theirs):
        raise SameModel(f"{a[:80]!r} and {b[:80]!r} are the same model; name two different ones")
    names = shared or [next(iter(ours)), next(iter(theirs))]
    infos = known_metrics(session)
    printed = printed_metrics(session, names, infos)  # what the paper compares these models by
    first = METRICS[FIRST_METRICS[dataset.kind][0]]
    metrics = {
        name: next((infos[each] for each in printed[name] if infos[each].split == "test"), first) for name in names
    }
    arms = {arm.name for found in (ours, theirs) for _, arm in found.values()}
    facts, rules = load_facts(session, {name: [metrics[name]] for name in names}, arms), read_rules(session)
    pairs = {name: (ours[name], theirs[name]) for name in shared}
    runs = {name: _strongest(facts, pair) for name, pair in pairs.items()}
    name = min(shared, key=lambda name: (not runs[name], bool(_cut(runs[name])))) if shared else names[0]
    one, other = pairs.get(name, (ours[names[0]], theirs[names[-1]]))
    metric, found = metrics[name], runs.get(name, [])
    sides = [_side(model, found or _strongest(facts, (model,)), facts, metric, rules) for model in (one, other)]
    if not shared:
        why = "No experiment trains both, so a difference could be that of their settings."
        return Versus(dataset=dataset, metric=metric, a=sides[0], b=sides[1], verdict=not_tested(why))
    images = _images(session, one, other, found) if metric.unit == "fraction" else ()
    about = Claim.experiment == name, Claim.metric == metric.name, Claim.baseline_arm.is_not(None)
    claims = [(row.Claim, row.VerdictRow) for row in session.execute(CLAIMS.where(*about))]
    verdict = _judge(one, other, found, facts, metric, rules, images)
    spread, source = _spread(claims, verdict, {one[1].name, other[1].name})
    plan = Design(planned=one[0].replicates, spread=1.0, source="assumed", because="", pairing=_pairing(one[0]))
    least = spread and least_detected(plan, rules)
    return Versus(
        dataset=dataset,
        metric=metric,
        a=sides[0],
        b=sides[1],
        verdict=verdict,
        is_paired=True,
        cut=_cut(found),
        least=least * spread if least and spread else None,
        spread_source=source,
        images=images,
        claims=tuple(
            claim.id for claim, _ in claims if {claim.arm, claim.baseline_arm} == {one[1].name, other[1].name}
        ),
    )


def _named(name: str, known: Iterable[Model]) -> dict[str, Model]:
    """Return `{experiment: model}` of this name, which is unique within an experiment."""
    models = list(known)
    for fits in (
        lambda model: name in (model[1].name, f"{model[0].name}.{model[1].name}"),
        lambda model: name.casefold() == model[1].title.casefold(),
    ):
        found = {model[0].name: model for model in reversed(models) if fits(model)}
        if found:
            return dict(reversed(found.items()))
    raise UnknownArm(name[:80], dict.fromkeys(arm.name for _, arm in models))


def _strongest(facts: ComparisonRows, models: Sequence[Model]) -> Runs:
    """Return the runs on real data under the strongest conditions that have all these models of one experiment."""
    arms = {arm.name for _, arm in models}
    runs = [run for run in facts.runs.get(models[0][0].name, ()) if run.arm in arms and run.provenance != "embedded"]
    for position in dict.fromkeys(run.group_position for run in runs):
        group = [run for run in runs if run.group_position == position]
        if {run.arm for run in group} == arms:
            return group
    return []


def _cut(runs: Runs) -> str:
    return cut_of_each(runs[0].cut) if runs else ""


def _decides(run: Run, rules: Rules) -> bool:
    level = evidence_level_of(profile=run.profile, provenance=run.provenance, share=0.0, rules=rules)
    return level is EvidenceLevel.DECIDES


def _side(model: Model, runs: Runs, facts: ComparisonRows, metric: MetricInfo, rules: Rules) -> Side:
    experiment, arm = model
    own = [run for run in runs if run.arm == arm.name]
    values = values_of(own, metric, facts)
    of_arm = [run for run in facts.runs.get(experiment.name, ()) if run.arm == arm.name]
    return Side(
        experiment=experiment,
        arm=arm,
        value=fmean(values.values()) if values else None,
        n=len(values),
        trained=len({run.replicate for run in of_arm if _decides(run, rules)}),
        planned=experiment.replicates,
    )


def _judge(
    one: Model,
    other: Model,
    runs: Runs,
    facts: ComparisonRows,
    metric: MetricInfo,
    rules: Rules,
    images: Sequence[ImagePair],
) -> Verdict:
    """Judge whether the first model is better, as a printed order."""
    if not runs:
        return not_tested("They have not both been trained yet.")
    if not all(_decides(run, rules) for run in runs):
        return not_tested("Only shortened runs so far; they decide nothing.")
    lost = [run.excluded_test_images / (run.test_images + run.excluded_test_images) for run in runs]
    differ = (images[0].a_alone + images[0].b_alone) / images[0].images if images else 1.0
    samples = []
    for _, arm in (one, other):
        own = [run for run in runs if run.arm == arm.name]
        values = values_of(own, metric, facts)
        kept = (run for run in own if run.replicate in values or run.status == "diverged")
        observations = (
            Observation(index=run.replicate, value=values.get(at), environments=frozenset({run.machine_digest}))
            for run in kept
            for at in [run.replicate]
        )
        samples.append(Sample(tuple(observations)))
    pairing = _pairing(one[0])
    arms = ComparedArms(
        *samples,
        rules=rules,
        pairing=pairing,
        planned=one[0].replicates,
        widening=max(lost) * differ,
        folds=one[0].protocol["split"]["folds"] if pairing == "fold" else None,
    )
    better: Literal["higher", "lower"] = "higher" if metric.better == "higher" else "lower"
    return judge_gain(GainClaim(gain=1.0, margin=None, better=better), arms)


def _pairing(experiment: ExperimentRow) -> Pairing:
    return "fold" if experiment.protocol["split"]["kind"] == "folds" else "none"


def _spread(
    claims: Sequence[tuple[Claim, VerdictRow]], verdict: Verdict, pair: set[str]
) -> tuple[float | None, str | None]:
    """Return the standard deviation of a difference of two replicates, and its source.

    It is ours if it was measured, else that of a claim's plan: of a claim about this pair if there is one, or about
    other models of the experiment.
    """
    if verdict.spread:
        return verdict.spread, "measured"
    with_power = [
        (claim, row.power) for claim, row in claims if claim.facts.is_gain and row.power and row.power["spread"]
    ]
    with_power.sort(key=lambda item: {item[0].arm, item[0].baseline_arm} != pair)
    return next(((power["spread"], power["source"]) for _, power in with_power), (None, None))


def _images(session: Session, one: Model, other: Model, runs: Runs) -> tuple[ImagePair, ...]:
    """Compare the networks of each replicate whose right answers are stored, image by image."""
    kept = dict(
        session.execute(
            select(Array.result_id, Array.content).where(
                Array.kind == "correct", Array.result_id.in_([run.id for run in runs])
            )
        ).all()
    )
    sides = [{run.replicate: run for run in runs if run.arm == arm.name and run.id in kept} for _, arm in (one, other)]
    found = []
    for replicate, run in sides[0].items():
        match = sides[1].get(replicate)
        if match is None or match.test_images != run.test_images:
            continue
        mine, its = (unpack_correct(kept[each.id], each.test_images) for each in (run, match))
        ahead, behind = int(np.sum(mine & ~its)), int(np.sum(its & ~mine))
        p = float(scipy.stats.binomtest(ahead, ahead + behind).pvalue) if ahead + behind else 1.0
        found.append(ImagePair(replicate=replicate, images=run.test_images, a_alone=ahead, b_alone=behind, p_value=p))
    return tuple(found)

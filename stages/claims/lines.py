"""`data/claims.csv`: every statement of the papers, and where it is tested or why it can't be.

Also `stages/papers/<paper>/deviations.yaml`: recorded differences between a paper and our runs.  They are data files
next to the paper's models, so that reading them loads no model.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from stages.params.experiment import Params
from stages.params.metrics import OwnMetric
from stages.params.schema import nearest, read_yaml, validate
from stages.run import STRICT
from stages.runs.fingerprint import source_path
from stages.texts import UnreadableText, csv_rows, decode, surplus
from stages.verdicts import Power, Status, Verdict
from stages.verdicts.kinds import KINDS, KindFacts
from stages.verdicts.metrics import CLAIMED_METRICS, find_unit, is_share

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(KINDS)]  # a closed set: a row of any other kind is rejected


class ClaimsError(ValueError):
    """Claims or deviations that contradict each other or the params files; the message names the place."""


@dataclass(frozen=True, kw_only=True)
class ClaimLine:
    """One row of `data/claims.csv`.  Accuracies are fractions; an empty cell is None.

    A row with an `experiment` is measured there.  It and the arms are patterns of `fnmatch`: `*` matches any text,
    `[0-9]` a digit; each of several arms is compared with its `against` in the params file.  A row with only a `family`
    counts that family's orders, in its own metric.  All others are computed by the paper's `findings`, or have the
    `reason` why they can't be tested.  `high` is the end of a range, `trials` the total of a count, `factor` names the
    levels over which a gain is uniform, `statement` is the claim if it has no number.  A `noise` claims that `trials`
    numbers, whose range (largest − smallest) is its `value`, differ by chance alone.

    An `order` or `difference` claims that one of two arms is better (the sign and the size of a gain; an `order`
    without a `value` has no size), a `gap` is a printed difference without a claimed order (its size alone), and an
    `equivalence` claims that two arms are comparable: its `value` is the largest loss that the paper calls so, its
    `precision` the least margin.

    `reading` says how we read an experiment that the text leaves so open that trainings can't refute the claim.
    """

    __pydantic_config__: ClassVar = {**STRICT, "allow_inf_nan": False}
    id: str
    paper: str
    place: str
    experiment: str | None
    arm: str | None
    metric: str
    kind: Kind
    value: float | None
    unit: str | None
    precision: float | None
    stderr: float | None
    n: int | None
    baseline_arm: str | None
    better: str | None
    note: str | None
    high: float | None = None
    trials: int | None = None
    factor: str | None = None
    family: str | None = None
    statement: str | None = None
    reason: str | None = None
    reading: str | None = None

    @property
    def facts(self) -> KindFacts:
        return KINDS[self.kind]

    @property
    def is_share(self) -> bool:
        """True if the metric is a share, such as an accuracy; its margins are then partly in points."""
        return is_share(self.metric, self.unit)


def read_claims(path: Path, faults: list[str] | None = None) -> list[ClaimLine]:
    """Read all claims of the papers; given `faults`, add to it what is wrong with a row and leave out the row.

    Raises:
        ClaimsError: the file is missing; without `faults`, a row can't be read or an id occurs twice.
    """
    try:
        text = decode(path.read_bytes(), path)
    except OSError as error:
        raise ClaimsError(f"{path}: {error.strerror}") from None
    except UnreadableText as error:
        raise ClaimsError(str(error)) from None
    return parse_claims(text, path, faults)


def parse_claims(text: str, path: Path, faults: list[str] | None = None) -> list[ClaimLine]:
    """Parse the claims in the text of a file; `path` is for messages, `faults` as for `read_claims`.

    Raises:
        ClaimsError: as for `read_claims`.
    """
    adapter = TypeAdapter(ClaimLine)
    claims: dict[str, ClaimLine] = {}
    try:
        rows = csv_rows(text, path)
    except UnreadableText as error:
        raise ClaimsError(str(error)) from None
    columns = rows[0][1] if rows else []
    lacking = {"id", "paper", "place", "metric", "kind", "value"} - set(columns)
    if lacking:
        raise ClaimsError(f"{path}: lacks the columns {', '.join(sorted(lacking))}; `git checkout {path}` puts it back")
    if twice := sorted(name for name, times in Counter(columns).items() if times > 1):
        raise ClaimsError(f"{path}: has the columns {', '.join(twice)} twice; delete one of them")
    for number, cells in rows[1:]:
        try:
            if fault := surplus(cells, columns):
                raise ValueError(fault)
            claim = adapter.validate_python({key: cell or None for key, cell in zip(columns, cells, strict=False)})
            if {".", ".."} & {*claim.id.split("/")}:
                raise ValueError(f"id {claim.id} is no address of a page; leave out its single and double dots")
            if claims.setdefault(claim.id, claim) is not claim:
                raise ValueError(f"id {claim.id} occurs twice")
        except ValueError as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            fault = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}" if first else str(error)
            if faults is None:
                raise ClaimsError(f"{path}, line {number}: {fault}") from None
            faults.append(f"{path}, line {number}: {fault}; the row is left out")
    return list(claims.values())


# results: trained models.  finding: computed without training.  params: read off the params files.  none: nothing yet.
Basis = Literal["results", "finding", "params", "none"]
Side = Literal["proposed", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run behind a verdict.  `result` numbers the result; `value` is None if the run diverged.

    The arm of a claim about a single value is on the side `proposed`.
    """

    result: int
    side: Side
    arm: str
    replicate: int
    value: float | None


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """An arm's number in a metric that chooses an epoch for all its folds, such as DAC's in Appendix B.

    `stderr` is as the paper computes it; `low` to `high` is the 95 % interval of the mean, including the choice of the
    epoch.  `epoch` counts from 1 to `epochs`; `n` counts the folds.  FLOPs are those of one image's forward pass.
    """

    experiment: str
    arm: str
    role: str
    n: int
    value: float
    stderr: float
    low: float
    high: float
    epoch: int
    epochs: int
    flops: float | None
    parameters: float | None


@dataclass(frozen=True, kw_only=True)
class ClaimCost:
    """The joint cost of the runs behind a verdict.  A number is None if one of the runs doesn't report it."""

    device_seconds: float
    flops: float | None
    peak_memory_bytes: int
    energy_joules: float | None
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The claim's verdict in another `metric`; `low` to `high` is the interval of its estimate."""

    metric: str
    status: Status
    size: Status | None
    ours: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`ours` is our number in the claim's unit; `is_decidable`: something here can decide the claim, now or later.

    A figure or a setting is never decidable.  `variants`: the verdict in other metrics.  `power`: what the plan can
    show about the claim.
    """

    claim: ClaimLine
    verdict: Verdict
    basis: Basis
    is_decidable: bool
    ours: float | None = None
    entries: tuple[Entry, ...] = ()
    arms: tuple[ArmSummary, ...] = ()
    cost: ClaimCost | None = None
    variants: tuple[Variant, ...] = ()
    power: Power | None = None

    @property
    def is_by_training(self) -> bool:
        """True if trained models were judged, decided or not; False for claims that are only shown."""
        return self.basis == "results" and self.verdict.status not in (Status.NOT_TESTED, Status.SHOWN)


@dataclass(frozen=True, kw_only=True)
class RecordedDeviation:
    """One deviation.  `claims` are patterns of the claim ids that it affects; the rest are sentences for a reviewer.

    `paper` is what the paper says, `code` what its authors' public code does, `ours` what we do, `why` the reason.
    `departs`: ours differs from the paper or, if it is silent, from its authors' code.  `explains` says in a sentence
    what it may explain about the paper's comparison; the arm `tested_by` shows whether it does.  `in_titles`: a few
    words by which the titles of these claims name our choice.
    """

    __pydantic_config__: ClassVar = STRICT
    subject: str
    claims: tuple[str, ...]
    paper: str
    ours: str
    why: str | None = None
    code: str | None = None
    departs: bool = True
    explains: str | None = None
    tested_by: str | None = None
    in_titles: str | None = None


@dataclass(frozen=True, kw_only=True)
class MainQuestion:
    """A reader's main question; the claims whose ids match a pattern of `claims` answer it."""

    __pydantic_config__: ClassVar = STRICT
    asks: str
    claims: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PaperDeviations:
    """`device`: part of torch's name for the device that the paper timed on; None if the paper doesn't say.

    `repository`: the address of its authors' public code; None if there is none.  `before_use`: what users of
    the paper's comparison must know first, in sentences.  `argument`: patterns of the ids of the claims about
    the paper's proposal, the most important first.  `called`: a short name of the paper; `question`: its main question.
    """

    __pydantic_config__: ClassVar = STRICT
    paper: str
    called: str | None = None
    question: MainQuestion | None = None
    device: str | None = None
    repository: str | None = None
    before_use: tuple[str, ...] = ()
    argument: tuple[str, ...] = ()
    deviations: Mapping[str, RecordedDeviation]


def read_deviations(papers: Collection[str]) -> list[PaperDeviations]:
    """Read the deviations of each paper that has a file, ordered by paper name.

    Raises:
        ParamsError: a file can't be read, or has an unknown key.
    """
    found = []
    for paper in sorted(papers):
        package = source_path(f"stages.papers.{paper}")
        path = package.parent / "deviations.yaml" if package else None
        if path is not None and path.is_file():
            found.append(validate(TypeAdapter(PaperDeviations), {"paper": paper, **read_yaml(path)}, path))
    return found


def touched(deviation: RecordedDeviation, claims: Sequence[ClaimLine]) -> list[str]:
    """Return the ids of the claims that the deviation affects, in order."""
    return [claim.id for claim in claims if any(fnmatch.fnmatchcase(claim.id, pattern) for pattern in deviation.claims)]


_ORDERS = ("tally", "wins", "significant_wins")
_PAIRS = ("gap", "order", "difference", "equivalence", "uniform", "ahead_from", "behind_up_to")
_RATIOS = ("ratio", "range")
_RELATIONS = ("relative gain", "relative reduction", "of the gain of DAC")
"""Units of ratios of trained models."""
_NEEDED = {  # column -> kinds that can't be judged without it
    "value": (
        *("value", "gap", "difference", "uniform", "ahead_from", "behind_up_to", *_ORDERS),
        *("count", "setup", "noise", "failures", "observed", *_RATIOS),
    ),
    "better": ("value", "failures", "wins", "significant_wins", *_PAIRS),
    "baseline_arm": _PAIRS,
    "trials": ("noise", "failures", *_ORDERS),
    "factor": ("uniform",),
    "family": _ORDERS,
}
FAULT = "its row has a fault: "
"""First words of the reason why a claim isn't judged because of its row."""

_MOST = 1e18
"""Smallest number that no row may have: squares of larger ones overflow."""
_FAR = 30
"""Factor between a gain and the difference of its cells beyond which percent and fractions are probably mixed."""


def place_claims(claims: Sequence[ClaimLine], params: Params) -> list[ClaimLine]:
    """Remove the experiment of each claim that can't be judged there, and record why.

    The reason is a fault in the claim's row, or that the params files have no such experiment.  A mistake in a
    row can accuse a paper wrongly: 99.05 instead of 0.9905, or an accuracy for which lower is better.
    """
    rows = Counter(claim.family for claim in claims if claim.family)
    families = {*params.verdicts.families, *(name for name, count in rows.items() if count > 1)}
    families &= {claim.family for claim in claims if claim.family and claim.facts.is_gain}
    cells = {(claim.experiment, claim.metric, claim.arm): claim.value for claim in claims if claim.kind == "value"}
    placed = []
    for claim in claims:
        fault = next(find_faults(claim, params, families), "")
        one, other = (cells.get((claim.experiment, claim.metric, arm)) for arm in (claim.arm, claim.baseline_arm))
        if claim.facts.is_gain and claim.value and one and other and abs(claim.value) > _FAR * abs(one - other) > 0:
            fault = fault or f"value is {claim.value:g}; the printed numbers of both models differ by {one - other:.4g}"
        reason = f"{FAULT}{fault}" if fault else ""
        if not reason and claim.experiment and not fnmatch.filter(params.experiments, claim.experiment):
            close = nearest(claim.experiment, params.experiments)
            hint = close if "did you mean" in close else ""
            reason = claim.reason or f"its experiment {claim.experiment} is not in the params files yet{hint}"
        placed.append(replace(claim, experiment=None, reason=reason) if reason else claim)
    return placed


def find_faults(claim: ClaimLine, params: Params, families: Collection[str]) -> Iterator[str]:
    """Yield each fault of a row: the column, what it holds, and what it should hold.

    `families` are those of orders.
    """
    for column, kinds in _NEEDED.items():
        if claim.kind in kinds and getattr(claim, column) is None and not claim.reason:
            yield f"{column} is empty; {claim.kind} needs it"
    for column, least in (("value", -math.inf), ("high", -math.inf), ("precision", 0), ("stderr", 0)):
        number = getattr(claim, column)
        if number is not None and not (abs(number) < _MOST and number >= least):
            yield f"{column} is {number}; expected a finite number{' that is not negative' if not least else ''}"
    for column in ("n", "trials"):
        if (count := getattr(claim, column)) is not None and count < 1:
            yield f"{column} is {count}; expected a number of at least 1"
    value, trials = claim.value or 0, claim.trials or 0
    if claim.kind in (*_ORDERS, "failures") and not (0 <= value <= trials and value % 1 == 0):
        yield f"value is {value:g}; expected a whole number from 0 to {trials}, the trials"
    if claim.better not in (None, "higher", "lower"):
        yield f"better is {claim.better!r}; expected higher or lower"
    if claim.family and claim.family not in families:
        yield f"family is {claim.family!r}, of no orders{nearest(claim.family, families)}"
    names = fnmatch.filter(params.experiments, claim.experiment or "")
    for experiment in (params.experiments[name] for name in names):
        if experiment.paper != claim.paper:
            yield f"paper is {claim.paper!r}; {experiment.name} is of {experiment.paper}"
        for column, arm in (("arm", claim.arm), ("baseline_arm", claim.baseline_arm)):
            if arm and not fnmatch.filter(experiment.arms, arm):
                yield f"{column}: {experiment.name} has no arm {arm!r}{nearest(arm, experiment.arms)}"
        counts = [len(fnmatch.filter(experiment.arms, arm or "")) for arm in (claim.arm, claim.baseline_arm)]
        if counts[0] == 1 < counts[1]:
            yield f"baseline_arm is {claim.baseline_arm!r}, {counts[1]} arms of {experiment.name}; name one"
        if claim.factor and len({str(arm.model.get(claim.factor)) for arm in experiment.arms.values()}) < 2:
            yield f"factor is {claim.factor!r}; the models of {experiment.name} don't differ in it"
    if claim.experiment and claim.facts.by == "training":
        own = {metric: one for name in names for metric, one in params.experiments[name].metrics.items()}
        yield from _find_faults_of_training(claim, own)


def _find_faults_of_training(claim: ClaimLine, own: Mapping[str, OwnMetric]) -> Iterator[str]:
    found, metric = find_unit(claim.metric), own.get(claim.metric)
    is_size = claim.facts.number == "model" or claim.kind in ("gap", "order", "difference", "uniform")
    is_size |= claim.kind == "observed" and claim.better is None
    if is_size and claim.value == 0 and not claim.precision and not claim.is_share:
        yield f"precision is {claim.precision or 'empty'}; a printed 0 needs it, as other margins are a share of it"
    if claim.kind == "noise" and claim.trials == 1:
        yield "trials is 1; expected at least 2, as one number has no range"
    if claim.high is not None and claim.value is not None and claim.high < claim.value:
        yield f"high is {claim.high:g}; expected the end of the range that begins with value, {claim.value:g}"
    if claim.kind in _RATIOS:
        for column in ("baseline_arm", *(("high",) if claim.kind == "range" else ())):
            if getattr(claim, column) is None:
                yield f"{column} is empty; {claim.kind} needs it"
        if claim.unit not in _RELATIONS:
            yield f"unit is {claim.unit or ''!r}; expected {', '.join(_RELATIONS)}: 1.1 times as much is a gain of 0.1"
    if found and metric:
        yield f"metric is {claim.metric!r}, which we measure, too; rename the one in the params file"
    if metric is not None:
        found = metric.unit, metric.better
        if claim.facts.number == "model" and claim.value is not None and not metric.holds(claim.value):
            yield f"value is {claim.value:g}; the range of {claim.metric} is {list(metric.range)}"
    if found is None:
        if claim.kind != "observed":  # the paper's own
            yield f"metric is {claim.metric!r}{nearest(claim.metric, (*own, *CLAIMED_METRICS))}"
        return
    unit, better = found
    is_number = claim.facts.is_gain or claim.facts.number == "model" or claim.factor is not None
    if claim.better not in (None, better):
        yield f"better is {claim.better or 'empty'}; {better} is better for {claim.metric}"
    if claim.facts.is_gain and claim.arm == claim.baseline_arm:
        yield f"baseline_arm is {claim.baseline_arm!r}, as arm; name the model that it is compared with"
    if claim.arm is None:
        yield "arm is empty; name the model that the claim is about"
    if claim.facts.is_spread and not claim.value:
        yield f"value is {claim.value}; expected the printed range"
    if not is_number:
        return
    if (claim.unit or "") != unit and (claim.value is not None or claim.facts.is_alike):
        given = repr(claim.unit) if claim.unit else "empty"
        yield f"unit is {given}; {claim.metric} is in {unit or 'no unit: leave it empty'}"
    least = 0 if claim.facts.number == "model" else -1
    for column in ("value", "stderr", "precision"):
        number = getattr(claim, column)
        if unit == "fraction" and number is not None and not least <= number <= 1:
            yield f"{column} is {number:g}; expected a fraction of 1, such as {number / 100:g} for {number:g} %"

"""`data/claims.csv`: every statement of the papers, and where it is tested or why it can't be.

Recorded differences between what a paper says and what we ran: `stages/papers/<paper>/deviations.yaml`.

They are data files next to the paper's models, so that reading them loads no model.
"""

from __future__ import annotations

import csv
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from stages.params.schema import read_yaml, validate
from stages.run import STRICT
from stages.runs.fingerprint import source_path
from stages.verdicts import Power, Status, Verdict
from stages.verdicts.kinds import KINDS, KindFacts

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(KINDS)]  # a closed set: a row of any other kind is refused


class ClaimsError(ValueError):
    """Claims or deviations that contradict each other or the params files; the message names the place."""


@dataclass(frozen=True, kw_only=True)
class ClaimLine:
    """One row of `data/claims.csv`.  Accuracies are fractions; an empty cell is None.

    A row with an `experiment` is measured there; it and the arms are patterns of `fnmatch`: `*` matches any text,
    `[0-9]` for a digit; each of several arms is compared with the one that its file sets against it.  A row with a
    `family` alone counts that family's orders, in its own metric.  Any other is computed by the paper's `findings`, or
    has the `reason` why it can't be tested.  `high` is the end of a range, `trials` the total of a count, `factor`
    names the levels over which a gain is uniform, `statement` is the claim where it has no number.  A `noise` says that
    `trials` numbers, whose largest − smallest is its `value`, differ by chance alone.

    Of two arms, an `order` or `difference` claims that one is better (the sign and the size of a gain; an `order`
    without a `value` has no size), a `gap` is a printed difference that claims no order (its size alone), and an
    `equivalence` says that they are comparable: its `value` is the largest loss that the paper calls so, its
    `precision` the least margin.

    `reading` says how we read an experiment that the text leaves so open that trainings can't refute the claim.
    """

    __pydantic_config__: ClassVar = STRICT
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


def read_claims(path: Path, faults: list[str] | None = None) -> list[ClaimLine]:
    """Read all claims of the papers; given `faults`, add to it what is wrong with a row and leave out the row.

    Raises:
        ClaimsError: the file is missing; without `faults`, a row can't be read or an id occurs twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClaimsError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ClaimsError(f"{path}: not UTF-8 at byte {error.start}; `git checkout {path}` puts it back") from None
    return parse_claims(text, path, faults)


def parse_claims(text: str, path: Path, faults: list[str] | None = None) -> list[ClaimLine]:
    """Parse the claims in the text of a file; `path` is for messages, `faults` as for `read_claims`.

    Raises:
        ClaimsError: as for `read_claims`.
    """
    adapter = TypeAdapter(ClaimLine)
    claims: dict[str, ClaimLine] = {}
    reader = csv.DictReader(text.splitlines())
    lacking = {"id", "paper", "place", "metric", "kind", "value"} - set(reader.fieldnames or ())
    if lacking:
        raise ClaimsError(f"{path}: lacks the columns {', '.join(sorted(lacking))}; `git checkout {path}` puts it back")
    for number, row in enumerate(reader, start=2):
        try:
            claim = adapter.validate_python({key: value or None for key, value in row.items()})
            fault = f"id {claim.id} occurs twice" if claim.id in claims else ""
        except ValidationError as error:
            first = error.errors()[0]
            fault = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        if not fault:
            claims[claim.id] = claim
        elif faults is None:
            raise ClaimsError(f"{path}, line {number}: {fault}")
        else:
            faults.append(f"{path}, line {number}: {fault}; the row is left out")
    return list(claims.values())


# results: trained models.  finding: computed without training.  params: read off the params files.  none: nothing yet.
Basis = Literal["results", "finding", "params", "none"]
Side = Literal["proposed", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run behind a verdict.  `result` numbers the result; `value` is None where the run diverged.

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

    `stderr` is as the paper computes it; `low` to `high` is the 95 % interval of the mean, the choice of the epoch in
    it.  `epoch` counts from 1, of `epochs`; `n` counts the folds.  FLOPs are those of one forward pass of one image.
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
    """The joint cost of the runs behind a verdict.  A number is None where one of the runs doesn't report its own."""

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

    A figure or a setting is never decidable: nothing is at stake.  `variants`: the verdict in other metrics.  `power`:
    what the plan can show about the claim.
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
        """True if trained models were judged, decided or not; False of what is only shown."""
        return self.basis == "results" and self.verdict.status not in (Status.NOT_TESTED, Status.SHOWN)


@dataclass(frozen=True, kw_only=True)
class RecordedDeviation:
    """One deviation.  `claims` are patterns of the claim ids it touches; the rest are sentences for a reviewer.

    `paper` is what the paper says, `code` what its authors' public code does, `ours` what we do, `why` the reason.
    `departs`: ours is not what the paper has or, where that is silent, its authors' code.  `explains` says what it may
    explain of the paper's comparison, in a sentence; the arm `tested_by` shows whether it does.  `in_titles`: a choice
    of ours that the titles of these claims name, in a few words that say so.
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
    """The question that a reader comes with; the claims whose ids match a pattern of `claims` answer it."""

    __pydantic_config__: ClassVar = STRICT
    asks: str
    claims: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PaperDeviations:
    """`device`: what the paper timed on, as part of the name that torch gives it; None where the paper doesn't say.

    `repository`: the address of its authors' public code; None if there is none.  `before_use`: what users of
    the paper's comparison must know first, in sentences.  `argument`: patterns of the ids of the claims that are about
    what the paper proposes, the weightiest first.  `called`: a short name of the paper; `question`: its main question.
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
    """The deviations of each paper that has a file, ordered by paper name.

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
    """Ids of the claims that the deviation touches, in their order."""
    return [claim.id for claim in claims if any(fnmatch.fnmatchcase(claim.id, pattern) for pattern in deviation.claims)]

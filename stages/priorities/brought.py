"""What finished trainings brought the claims: a look that is complete now, or some steps towards it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from stages.params.experiment import Params
from stages.priorities.looks import (
    NextLook,
    RunName,
    all_trainings,
    as_printed,
    judgements_about,
    next_looks,
    standing_today,
    trained_runs,
)


@dataclass(frozen=True, kw_only=True)
class Brought:
    """A claim that finished runs serve.

    `verdict` is the recorded one if these runs are behind it (`is_judged`), else that of before.  `look`: the next one,
    of which `there` of the `needed` runs are trained; None for a claim that needs no more.
    """

    claim: str
    verdict: str
    is_judged: bool
    runs: tuple[str, ...]
    look: int | None
    planned: int | None
    there: int
    needed: int

    @property
    def is_complete(self) -> bool:
        """True if the look waits for nothing but `record`."""
        return self.look is not None and self.there == self.needed


def runs_named(labels: Collection[str], params: Params) -> list[RunName]:
    """Runs of the params files with these labels; other labels are left out."""
    found = []
    for label in labels:
        name, _, cell = label.partition(".")
        arm, _, replicate = cell.rpartition(".")
        if name in params.experiments and arm in params.experiments[name].arms and replicate.isdigit():
            found.append(RunName(name, arm, int(replicate)))
    return found


def brought_by(labels: Collection[str], root: Path, params: Params) -> list[Brought]:
    """What these runs, trained as printed, brought: claims with a complete look first, then the nearest to theirs.

    Raises:
        ClaimsError, EvidenceError, ParamsError, RecordError: a file can't be read or contradicts another.
    """
    printed = as_printed(params)
    trainings, standing = all_trainings(printed), standing_today(root, printed)
    finished = trainings.with_same(run for run in runs_named(labels, printed) if run in trainings.first)
    trained = trainings.with_same(standing.decided_by | trained_runs(printed, root) | finished)
    looks = {look.claim.id: look for look in next_looks(standing, printed, trained)}
    served: dict[str, list[RunName]] = {}
    verdicts: dict[str, str] = {}
    for run in sorted(finished):
        for one in judgements_about(run, standing.judgements, printed):
            served.setdefault(one.claim.id, []).append(run)
            verdicts[one.claim.id] = str(one.verdict.status)
    found = [
        _brought(claim, verdicts[claim], runs, looks.get(claim), standing.decided_by) for claim, runs in served.items()
    ]
    return sorted(found, key=lambda one: (not one.is_judged, not one.is_complete, one.needed - one.there))


def _brought(
    claim: str, verdict: str, runs: list[RunName], look: NextLook | None, decided_by: Collection[RunName]
) -> Brought:
    needed = look.runs if look else frozenset[RunName]()
    return Brought(
        claim=claim,
        verdict=verdict,
        is_judged=set(runs) <= set(decided_by),
        runs=tuple(run.label for run in runs),
        look=look.at if look else None,
        planned=look.planned if look else None,
        there=len(needed) - len(look.lacking) if look else 0,
        needed=len(needed),
    )

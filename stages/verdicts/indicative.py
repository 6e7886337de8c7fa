"""The conclusions that a run allows, given its budget and data; and the little that a short run can say of an order."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from stages.rules import Rules
from stages.verdicts.difference import GainClaim
from stages.verdicts.numerals import signed
from stages.verdicts.verdict import Sample, Status, Verdict


class EvidenceLevel(StrEnum):
    """`decides`: full data, as printed.  `indicates`: real data and a good part of the epochs.  `silent`: the rest."""

    DECIDES = "decides"
    INDICATES = "indicates"
    SILENT = "silent"


def evidence_level_of(
    *,
    profile: str,
    provenance: Literal["embedded", "subset", "full"],
    share: float,
    rules: Rules,
) -> EvidenceLevel:
    """The evidence level of results of this profile and data that cover this `share` of the printed epochs.

    A run that was stopped early by its rule is complete.
    """
    if provenance == "embedded":
        return EvidenceLevel.SILENT
    if profile == "paper" and provenance == "full":
        return EvidenceLevel.DECIDES
    return EvidenceLevel.INDICATES if share >= rules.indicative_share else EvidenceLevel.SILENT


def indicate_order(
    claim: GainClaim, proposed: Sample, baseline: Sample, *, epochs_share: float, precision: str = ""
) -> Verdict:
    """Compare the means of short runs with the claimed order: a direction, not a test, whatever n.

    `precision`: "tf32 instead of float32", where it isn't the printed one.
    """
    if not proposed.values or not baseline.values or not claim.gain:
        return Verdict(
            status=Status.NOT_TESTED, explanation="No finished replicates of both arms, or no order claimed."
        )
    sign = 1 if claim.better == "higher" else -1
    means = [sum(arm.values) / len(arm.values) for arm in (proposed, baseline)]
    gain = sign * (means[0] - means[1])
    n = min(proposed.n, baseline.n)
    diverged = proposed.n_diverged + baseline.n_diverged
    if gain == 0:
        return Verdict(status=Status.NOT_TESTED, explanation="The two arms are equal: no order.", estimate=gain, n=n)
    status = Status.AGREES if gain * claim.gain > 0 else Status.DISAGREES
    note = f", in {precision}," if precision else ""
    lost = f" {diverged} replicates diverged." if diverged else ""
    return Verdict(
        status=status,
        explanation=f"At {epochs_share:.0%} of the printed epochs{note} the gain is {signed(gain)} (n = {n}); "
        f"the paper's is {signed(claim.gain)}. A direction, no test.{lost}",
        estimate=gain,
        n=n,
        n_diverged=diverged,
    )

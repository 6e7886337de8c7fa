"""The conclusions that a run allows, given its budget and data; and the little that a short run can say of an order.

An order is indicated only by a gap of two spreads or more, a spread being that of the difference of two replicates in
the plan (printed, else assumed).  How often such an order holds until the end is calibrated (`calibrate`) on all pairs
of the SGEMM networks with 5 and 8 layers, one replicate of each at 30 % of its epochs against all five at the end.  The
only other pair with full runs, NMN's prototypes on MNIST, ends alike: there all early orders held (`ELSEWHERE`) and,
with ten other seeds, none of seven.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

import numpy as np

from stages.rules import Rules
from stages.verdicts.difference import GainClaim
from stages.verdicts.numerals import signed
from stages.verdicts.verdict import Sample, Status, Verdict

DEMANDED = 2.0
"""Gap, in spreads, from which an order is indicated."""
GAPS = (0.0, 0.5, 1.0, 2.0, 3.0)
"""Where the classes of gaps begin, in spreads."""
CALIBRATED_AT = 0.3
CALIBRATED_PAIRS = 406
HELD = ((274, 530), (373, 555), (914, 1137), (1012, 1094), (6792, 6834))
"""(orders that held, orders seen), by class of gap; a test computes them again from `data/evidence/dac-sgemm.jsonl`."""
ELSEWHERE = (16, 16)
"""The same of all demanded gaps between NMN's prototypes on MNIST, from `data/evidence/nmn-mnist-inversion.jsonl`."""


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
            status=Status.NOT_TESTED,
            explanation="A model has no finished run, or the paper claims no order.",
        )
    sign = 1 if claim.better == "higher" else -1
    means = [sum(arm.values) / len(arm.values) for arm in (proposed, baseline)]
    gain = sign * (means[0] - means[1])
    n = min(proposed.n, baseline.n)
    diverged = proposed.n_diverged + baseline.n_diverged
    if gain == 0:
        return Verdict(status=Status.NOT_TESTED, explanation="Neither model is ahead.", estimate=gain, n=n)
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


def weigh_gap(gain: float, spread: float | None) -> tuple[bool, str]:
    """(True if a gain this large may indicate an order, how often such orders held in a sentence).

    `spread`: standard deviation of the difference of two replicates; None if nobody says it.
    """
    if not spread:
        return False, "Nothing says how far replicates spread, so no order is indicated."
    gap = abs(gain) / spread
    number = bisect(GAPS, gap) - 1
    held, seen = HELD[number]
    ends = f"{GAPS[number]:g} to {GAPS[number + 1]:g}" if number + 1 < len(GAPS) else f"{GAPS[number]:g} or more"
    said = f"The gap is {gap:.1f} SD of a difference of two replicates ({spread:.2g}); an order seen at "
    said += f"{CALIBRATED_AT:.0%} of training with a gap of {ends} SD held in {held / seen:.0%} of cases among "
    said += f"{CALIBRATED_PAIRS} pairs of SGEMM networks."
    if gap < DEMANDED:
        return False, f"{said} Below {DEMANDED:g} SD that is too close to say."
    held, seen = ELSEWHERE
    return True, f"{said} Between two models of NMN on MNIST, which end alike, {held} of {seen} held."


def calibrate(
    early: Mapping[str, Sequence[float]], final: Mapping[str, float], spread: float
) -> tuple[tuple[int, int], ...]:
    """(orders that held, orders seen) by class of gap, over all pairs of arms and of their replicates.

    `early`: the values of each arm's replicates at a part of training; `final`: its mean at the end.
    """
    found = np.zeros((len(GAPS), 2), dtype=int)
    for one, other in itertools.combinations(early, 2):
        gaps = np.subtract.outer(early[one], early[other]).ravel()
        held = gaps * (final[one] - final[other]) > 0
        for number, is_held in zip(np.searchsorted(GAPS, np.abs(gaps) / spread, side="right") - 1, held, strict=True):
            found[number] += is_held, 1
    return tuple((int(held), int(seen)) for held, seen in found)

"""Claims about the inside of trained networks, decided by recorded observations."""

from collections.abc import Sequence

import pytest

from stages.claims import Judgement, Trial
from stages.runs.evidence import Provenance
from stages.verdicts import Status
from tests.claims.lines import claims, judge, results, trials

ORDER, LEARNED = "hyperbf.obs.sigma_order.c10", "hyperbf.obs.sigma_learned"
MOTION = "brownian.trained.motion"
NEAR_TWO = (2.1, 2.2, 2.0, 2.15, 2.05)


def ran(
    claim: str,
    values: Sequence[float | None],
    *,
    metric: str | None = None,
    profile: str = "paper",
    provenance: Provenance = "full",
    epochs: int | None = None,
) -> list[Trial]:
    row = claims()[claim]
    lines = results(
        (row.experiment or "").replace("*", "cifar10"),
        {row.arm or "": values},
        metric=metric or row.metric,
        profile=profile,
        provenance=provenance,
        epochs=epochs,
    )
    return trials(lines)


def judged(claim: str, entered: Sequence[Trial]) -> Judgement:
    (judgement,) = judge(claims()[claim], entered=entered)
    return judgement


@pytest.mark.parametrize("claim", [ORDER, LEARNED])
@pytest.mark.parametrize(
    ("gaps", "status"),
    [
        (NEAR_TWO, Status.SUPPORTED),
        ([-gap for gap in NEAR_TWO], Status.REVERSED),
        ((0.5, -0.6, 0.4, -0.5, 0.1), Status.UNRESOLVED),
        ((2.1, None, 2.0, 2.15, 2.05), Status.UNRESOLVED),
        ((2.1, None, None, None, None), Status.UNRESOLVED),
        ((2.1, 2.2), Status.UNRESOLVED),
        ((1.0,) * 5, Status.UNRESOLVED),
    ],
)
def test_width_gap_is_on_one_side_of_its_bound(claim: str, gaps: Sequence[float | None], status: Status) -> None:
    judgement = judged(claim, ran(claim, gaps))
    assert (judgement.verdict.status, judgement.is_decidable) == (status, True), judgement.verdict.explanation
    assert judgement.basis == "results" and len(judgement.entries) == len(gaps)
    assert gaps is not NEAR_TWO or judgement.ours == pytest.approx(2.1), "the number itself"


@pytest.mark.parametrize(
    ("ratios", "status"),
    [
        ((1.02, 0.98, 1.01, 0.99, 1.0), Status.REPRODUCED),
        ((1.45, 1.40, 1.42, 1.44, 1.43), Status.REPRODUCED),
        ((3.1, 3.2, 3.0, 3.15, 3.05), Status.NOT_REPRODUCED),
        ((0.1, 0.12, 0.09, 0.11, 0.1), Status.NOT_REPRODUCED),
        ((0.6, 1.9, 1.2, 0.7, 1.6), Status.INCONCLUSIVE),
    ],
)
def test_displacement_ratio_must_be_within_half_of_one(ratios: Sequence[float], status: Status) -> None:
    judgement = judged(MOTION, ran(MOTION, ratios))
    assert judgement.verdict.status is status, judgement.verdict.explanation
    assert judgement.verdict.margin == 0.5
    assert judgement.verdict.prediction is None, "the paper gives no number for a run"

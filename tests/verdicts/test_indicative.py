import pytest

from stages.verdicts import EvidenceLevel, GainClaim, Sample, Status, evidence_level_of, indicate_order, weigh_gap
from stages.verdicts.others import HELD
from tests.verdicts.simulation import RULES

CLAIM = GainClaim(gain=0.02, margin=0.01, better="higher")


@pytest.mark.parametrize(
    ("profile", "provenance", "epochs", "expected"),
    [
        ("paper", "full", 100, EvidenceLevel.DECIDES),
        ("paper", "subset", 100, EvidenceLevel.INDICATES),
        ("quick", "full", 30, EvidenceLevel.INDICATES),
        ("quick", "subset", 30, EvidenceLevel.INDICATES),
        ("quick", "full", 29, EvidenceLevel.SILENT),
        ("paper", "embedded", 100, EvidenceLevel.SILENT),
        ("smoke", "embedded", 100, EvidenceLevel.SILENT),
    ],
)
def test_evidence_level_of_a_run(profile: str, provenance: str, epochs: int, expected: EvidenceLevel) -> None:
    said = evidence_level_of(profile=profile, provenance=provenance, share=epochs / 100, rules=RULES)
    assert said is expected


@pytest.mark.parametrize(
    ("proposed", "baseline", "status"),
    [
        ([0.6], [0.5], Status.AGREES),
        ([0.5, 0.6], [0.6, 0.6], Status.DISAGREES),
        ([0.5], [0.5], Status.NOT_TESTED),
        ([None], [0.5], Status.NOT_TESTED),
        ([], [0.5], Status.NOT_TESTED),
    ],
)
def test_short_run_indicates_a_direction(proposed: list, baseline: list, status: Status) -> None:
    verdict = indicate_order(CLAIM, Sample.of(proposed), Sample.of(baseline), epochs_share=0.3)
    assert verdict.status is status


def test_direction_depends_on_the_claim_and_the_metric() -> None:
    lower = GainClaim(gain=0.02, margin=0.01, better="lower")
    worse = GainClaim(gain=-0.02, margin=0.01, better="higher")
    arms = Sample.of([0.4]), Sample.of([0.5])
    assert indicate_order(lower, *arms, epochs_share=0.3).status is Status.AGREES
    assert indicate_order(worse, *arms, epochs_share=0.3).status is Status.AGREES
    assert "At 30% of the printed epochs the gain is −0.1 (n = 1)" in (
        indicate_order(worse, *arms, epochs_share=0.3).explanation
    )


@pytest.mark.parametrize(
    ("gain", "indicates", "said"),
    [
        (0.025, True, "The gap is 2.5 SD of a difference of two replicates (0.01); an order seen at 30% of"),
        (-0.025, True, f"2 to 3 SD held in {HELD[3][0] / HELD[3][1]:.0%} of cases among 406 pairs of SGEMM networks."),
        (0.045, True, f"with a gap of 3 or more SD held in {HELD[4][0] / HELD[4][1]:.0%} of cases"),
        (0.015, False, f"1 to 2 SD held in {HELD[2][0] / HELD[2][1]:.0%} of cases among 406 pairs"),
        (0.0004, False, "0 to 0.5 SD held in 52% of cases among 406 pairs of SGEMM networks. Below 2 SD"),
    ],
)
def test_order_is_indicated_from_two_spreads(gain: float, indicates: bool, said: str) -> None:
    may, explanation = weigh_gap(gain, 0.01)
    assert may is indicates and said in explanation, explanation
    assert explanation.endswith("16 of 16 held." if indicates else "too close to say.")


def test_no_order_is_indicated_without_a_spread() -> None:
    assert weigh_gap(0.5, None) == (False, "Nothing says how far replicates spread, so no order is indicated.")

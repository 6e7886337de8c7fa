import csv
import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from stages.rules import Rules
from tests.verdicts.simulation import MARGINS, RULES

ROOT = Path(__file__).resolve().parents[2]
BLOCK = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["verdicts"]


def test_rules_list_every_family_of_orders() -> None:
    """Except one of which the paper claims only some orders, without a table."""
    with (ROOT / "data" / "claims.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] in ("order", "difference")]
    families = dict.fromkeys(row["family"] for row in rows if row["family"])
    assert BLOCK["families"] == [family for family in families if family != "dac.shallower"]


@pytest.mark.parametrize("place", ["rules", "margins"])
def test_unknown_rule_is_refused(place: str) -> None:
    rules = {**BLOCK, "margins": dict(BLOCK["margins"])}
    (rules if place == "rules" else rules["margins"])["tolerance"] = 1.0
    with pytest.raises(ValidationError, match="tolerance"):
        TypeAdapter(Rules).validate_python(rules)


def test_digest_changes_with_every_rule() -> None:
    margins = dataclasses.replace(RULES.margins, error_points=0.02)
    changes = [
        {"margins": margins},
        {"looks": {3: 0.1, 5: 0.5, 10: 0.4}},
        {"alpha_within": 0.04},
        {"alpha_outside": 0.04},
        {"minimum": 4},
        {"minimum_with_error": 4},
        {"indicative_share": 0.4},
        {"families": ("ninformer.rank",)},
    ]
    assert {next(iter(change)) for change in changes} == {field.name for field in dataclasses.fields(RULES)}
    digests = {dataclasses.replace(RULES, **change).digest() for change in changes}
    assert len(digests | {RULES.digest()}) == len(changes) + 1
    assert TypeAdapter(Rules).validate_python(dataclasses.asdict(RULES)).digest() == RULES.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"looks": {}}, "looks are at"),
        ({"looks": {5: 0.5, 3: 0.5}}, "rising numbers"),
        ({"looks": {1: 0.5, 3: 0.5}}, "from 2"),
        ({"looks": {3: 0.5, 5: 0.6}}, "shares that sum to 1"),
        ({"looks": {3: -0.5, 5: 1.5}}, "positive shares"),
        ({"alpha_within": 0.5}, "alpha_within is 0.5"),
        ({"alpha_outside": 0.0}, "alpha_outside is 0.0"),
        *(({"minimum": number}, "expected 1 to 10, the last analysis") for number in (-5, 0, 11)),
        ({"indicative_share": 7}, "indicative_share is 7; expected a share above 0, at most 1"),
    ],
)
def test_inconsistent_rules_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RULES, **change)


@pytest.mark.parametrize("margin", [float("inf"), float("nan"), -1.0])
def test_margin_is_finite_and_not_negative(margin: float) -> None:
    with pytest.raises(ValueError, match=r"loss_share is .*; expected a finite number from 0"):
        dataclasses.replace(MARGINS, loss_share=margin)


@pytest.mark.parametrize(
    ("error", "margin"),
    [
        (0.4710, 0.0100),  # at most one point
        (0.0864, 0.00864),  # a tenth of the paper's error
        (0.0005, 0.0001),  # at least the printed rounding
    ],
)
def test_margin_of_an_error_is_the_smaller_of_a_point_and_a_tenth(error: float, margin: float) -> None:
    assert MARGINS.error(error, 0.0001) == pytest.approx(margin)
    assert MARGINS.accuracy(1 - error, 0.0001) == pytest.approx(margin)


@pytest.mark.parametrize(("gain", "margin"), [(0.0268, 0.0134), (-0.0049, 0.00245), (0.0004, 0.001), (0.0, 0.001)])
def test_margin_of_a_difference_is_half_of_it_or_a_tenth_of_a_point(gain: float, margin: float) -> None:
    assert MARGINS.difference(gain, 0.0, is_share=True) == pytest.approx(margin)
    assert MARGINS.difference(gain, 0.0, is_share=False) == pytest.approx(abs(gain) / 2), "no points in other units"
    assert MARGINS.difference(gain, 0.02, is_share=False) == 0.02


def test_other_margins_are_shares_of_the_printed_number() -> None:
    for level in (0.1, 0.9):
        assert MARGINS.comparable(level, 0.001, is_share=True) == 0.005
        assert MARGINS.comparable(level, 0.0625, is_share=True) == 0.0625
    for precision, margin in ((0.01, 0.0606), (0.1, 0.1)):
        assert MARGINS.comparable(-3.03, precision, is_share=False) == pytest.approx(margin)
    assert MARGINS.loss(3.03, 0.01) == pytest.approx(0.0606)
    assert MARGINS.loss(0.2, 0.01) == pytest.approx(0.01)
    assert MARGINS.log_mse(-0.25, 0.01) == pytest.approx(0.0625) and MARGINS.log_mse(0.0, 0.01) == 0.01
    assert MARGINS.flops(0.509e9, 0.001e9) == pytest.approx(0.02545e9)
    assert MARGINS.memory(100.0, 1.0) == pytest.approx(5.0)


@given(st.floats(0, 1), st.floats(0, 0.01))
def test_margin_of_an_error_is_between_the_rounding_and_a_point(error: float, precision: float) -> None:
    assert precision <= MARGINS.error(error, precision) <= 0.01

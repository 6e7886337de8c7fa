import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.verdicts.intervals import UnplannedLook, complete_look, level, looks_from, looks_of_part, looks_of_plan
from tests.verdicts.simulation import RULES


@given(st.integers(2, 100))
def test_parts_of_a_grid_spend_alpha_in_any_order_of_arrival(planned: int) -> None:
    """Each arrival adds at least one pair, so there are at most as many analyses as pairs."""
    parts = [looks_of_part(RULES.looks, ran, planned) for ran in range(1, planned + 1)]
    assert sum(level(part, n, 0.05) for part in parts for n in part) == pytest.approx(0.05)
    assert looks_of_part(RULES.looks, planned, planned)[5] == pytest.approx(0.8 * RULES.looks[5])
    assert looks_of_part(RULES.looks, 1, 1) == RULES.looks


@pytest.mark.parametrize("n", [0, 1, 2, 4, 6, 9, 11, 100])
def test_unplanned_analysis_is_refused(n: int) -> None:
    with pytest.raises(UnplannedLook, match=f"{n} replicates are not a planned analysis; planned: 3, 5, 10"):
        level(RULES.looks, n, 0.05)


@pytest.mark.parametrize(
    ("indices", "look"),
    [
        ([], None),
        ([0, 1], None),
        ([1, 2, 3], None),
        ([2, 0, 1], 3),
        ([0, 1, 2, 3], 3),
        ([0, 1, 2, 4, 5, 6], 3),
        (range(5), 5),
        (range(9), 5),
        (range(30), 10),
    ],
)
def test_analysis_needs_the_first_planned_replicates(indices: list, look: int | None) -> None:
    assert complete_look(indices, RULES.looks) == look


@given(st.sets(st.integers(0, 14)), st.integers(0, 14))
def test_another_replicate_never_undoes_an_analysis(indices: set, more: int) -> None:
    assert (complete_look(indices, RULES.looks) or 0) <= (complete_look(indices | {more}, RULES.looks) or 0)


@pytest.mark.parametrize(
    ("planned", "looks"),
    [
        (2, {}),
        (3, {3: 1}),
        (4, {3: 1 / 3, 4: 2 / 3}),
        (5, {3: 1 / 3, 5: 2 / 3}),
        (7, {3: 0.2, 5: 0.4, 7: 0.4}),
        (10, RULES.looks),
        (12, RULES.looks),
        (None, RULES.looks),
    ],
)
def test_last_analysis_is_at_the_end_of_the_plan(planned: int | None, looks: dict) -> None:
    assert looks_of_plan(RULES.looks, planned) == pytest.approx(looks)


def test_plan_shorter_than_the_minimum_has_no_analysis() -> None:
    assert looks_of_plan(looks_from(RULES.looks, RULES.minimum), 4) == {}


@given(st.integers(3, 40), st.sampled_from([RULES.minimum, RULES.minimum_with_error]))
def test_analyses_of_any_plan_spend_alpha_and_include_the_last_replicate(planned: int, minimum: int) -> None:
    looks = looks_of_plan(looks_from(RULES.looks, minimum), planned)
    if planned >= minimum:
        assert sum(looks.values()) == pytest.approx(1)
        assert max(looks) == min(planned, max(RULES.looks))
        assert list(looks) == sorted(looks)

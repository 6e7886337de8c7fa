from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.verdicts.looks import UnplannedLook, complete_look, level, looks_from
from tests.verdicts.simulation import RULES


def test_the_shares_of_all_looks_spend_alpha_and_no_more() -> None:
    assert sum(level(RULES.looks, n, 0.05) for n in RULES.looks) == pytest.approx(0.05)
    later = looks_from(RULES.looks, RULES.minimum)
    assert later == {5: pytest.approx(0.5), 10: pytest.approx(0.5)}
    assert sum(level(later, n, 0.05) for n in later) == pytest.approx(0.05)


@pytest.mark.parametrize("n", [0, 1, 2, 4, 6, 9, 11, 100])
def test_an_unplanned_look_is_refused(n: int) -> None:
    with pytest.raises(UnplannedLook, match=f"{n} replicates are no planned look; planned: 3, 5, 10"):
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
def test_a_look_is_complete_with_the_first_replicates_of_the_plan(indices: list, look: int | None) -> None:
    assert complete_look(indices, RULES.looks) == look


@given(st.sets(st.integers(0, 14)), st.integers(0, 14))
def test_one_more_replicate_never_takes_a_look_back(indices: set, more: int) -> None:
    assert (complete_look(indices, RULES.looks) or 0) <= (complete_look(indices | {more}, RULES.looks) or 0)

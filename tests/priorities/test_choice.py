from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.priorities.proposal import choose

SECONDS = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 1.0}


def completed(wanted: dict[str, set[str]], items: set[str]) -> set[str]:
    return {name for name, needs in wanted.items() if needs and needs <= items}


class Alike(dict[str, float]):
    """Every set is worth 1."""

    def __missing__(self, name: str) -> float:
        return 1.0


def test_what_is_worth_more_comes_first_and_what_is_worth_nothing_never() -> None:
    wanted = {"many": {"a"}, "too": {"a"}, "headline": {"b"}, "hopeless": {"c"}}
    steps = choose(wanted, SECONDS, {"many": 0.1, "too": 0.2, "headline": 0.5, "hopeless": 0.0})
    assert [step.completed for step in steps] == [("headline",), ("many", "too")]


def test_what_completes_most_a_second_comes_first() -> None:
    """Two claims need a, one of them b, too: a serves both of its steps, c serves one claim alone."""
    wanted = {"one": {"a"}, "other": {"a", "b"}, "third": {"a", "b"}, "last": {"c"}}
    steps = choose(wanted, SECONDS, Alike())
    assert [(step.items, step.completed) for step in steps] == [
        (("a", "b"), ("one", "other", "third")),  # 3 in 20 s, before 1 in 10 s
        (("c",), ("last",)),
    ]
    assert [step.seconds for step in steps] == [20.0, 10.0]


def test_what_others_have_paid_for_is_cheap() -> None:
    steps = choose({"one": {"a"}, "two": {"a"}, "more": {"a", "b", "c"}, "apart": {"b"}}, SECONDS, Alike())
    assert steps[0].items == ("a",) and steps[0].completed == ("one", "two")
    assert {item for step in steps for item in step.items} == {"a", "b", "c"}
    assert sum(len(step.items) for step in steps) == 3, "nothing is paid for twice"


def test_nothing_beyond_the_budget_and_nothing_in_part() -> None:
    assert [step.completed for step in choose({"long": {"a", "b"}, "short": {"d"}}, SECONDS, Alike(), 12.0)] == [
        ("short",)
    ]
    assert choose({"long": {"a", "b"}}, SECONDS, Alike(), 19.9) == []
    assert choose({"complete": set()}, SECONDS, Alike()) == []


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from("vwxyz"), st.sets(st.sampled_from("abcd"), max_size=4), max_size=5),
    st.floats(0.5, 40),
)
def test_a_choice_keeps_its_promises_and_is_never_far_from_the_best(wanted: dict[str, set[str]], budget: float) -> None:
    steps = choose(wanted, SECONDS, Alike(), budget)
    taken: set[str] = set()
    for step in steps:
        assert not taken & set(step.items) and step.seconds == sum(SECONDS[item] for item in step.items)
        before, taken = completed(wanted, taken), taken | set(step.items)
        assert set(step.completed) == completed(wanted, taken) - before
    assert sum(step.seconds for step in steps) <= budget
    within = [
        set(items)
        for size in range(5)
        for items in itertools.combinations(SECONDS, size)
        if sum(SECONDS[item] for item in items) <= budget
    ]
    best, found = (max((len(completed(wanted, items)) for items in within), default=0), len(completed(wanted, taken)))
    assert bool(found) == bool(best) and 2 * found >= best, "half of the best at least, on sets as small as these"

"""Simulate every judge in the wind tunnel and compare the error rate of every status with its level."""

import dataclasses
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from stages.claims.kinds import Kind, TrainedKind
from tests.project import REPOSITORY
from tests.soak import write_soak_report
from tests.verdicts.tunnel import (
    GENERATORS,
    WORLDS,
    Worst,
    called_by,
    judging_functions,
    printed_table,
    reached_from,
    statuses_of,
    too_high,
    worst_rates,
)

PAGE = REPOSITORY / "docs" / "verdicts.md"
REPORT = REPOSITORY / "docs" / "soak" / "wind-tunnel.json"
SCREENED, CONFIRMED = map(int, os.environ.get("CLAIMCHECK_TUNNEL", "2000 12000").split())


def test_every_judge_and_each_of_its_statuses_has_a_generator() -> None:
    """A judge that passes on another's status is covered by that judge's generators."""
    judges = judging_functions()
    called = {statement: called_by(generator) for statement, generator in GENERATORS.items()}
    assert {
        name for name, judge in judges.items() if not any(judge.__code__ in ran for ran in called.values())
    } == set()
    for name, judge in judges.items():
        codes = {judge.__code__, *(judges[inner].__code__ for inner in reached_from(judge).keys() & judges.keys())}
        at_risk = {
            status
            for statement, generator in GENERATORS.items()
            if called[statement] & codes
            for status in generator.levels
        }
        assert statuses_of(judge) <= at_risk, name


def test_every_kind_of_claim_has_a_judge_with_a_generator() -> None:
    known = judging_functions().keys()
    trained = [kind for kind in Kind.classes.values() if issubclass(kind, TrainedKind)]
    assert trained and all(reached_from(kind).keys() & known for kind in trained)
    assert {"judge_tally", "judge_wins", "judge_table"} <= known, "they judge the orders of a family"


def test_every_world_is_used_and_every_limit_has_a_ceiling() -> None:
    drawn = {world.name for generator in GENERATORS.values() for world in generator.worlds}
    assert drawn == {world.name for world in WORLDS}
    for generator in GENERATORS.values():
        limits = {generator.limit_in(world) for world in generator.worlds} - {""}
        assert limits == generator.ceilings.keys(), generator.statement


@pytest.mark.slow
@pytest.mark.parametrize("statement", GENERATORS)
def test_no_status_errs_more_often_than_its_level(statement: str) -> None:
    """In the worlds with most errors in the long simulation, and those of a grid that arrives in parts."""
    worlds = {one.world for one in last_report() if one.statement == statement}
    worlds |= {world.name for world in WORLDS if world.part or world.slices}
    assert too_high(worst_rates(statement, 100, worlds=worlds)) == []


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(10_800)
def test_no_status_errs_more_often_than_its_level_in_many_experiments() -> None:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        by_statement = pool.map(partial(worst_rates, screened=SCREENED, confirmed=CONFIRMED), GENERATORS)
        worst = [one for found in by_statement for one in found]
    if write_soak_report("wind-tunnel", {"worst": [dataclasses.asdict(one) for one in worst]}):
        PAGE.write_text(page_with(printed_table(worst)), encoding="utf-8")
    assert too_high(worst) == []


def page_with(table: str) -> str:
    """Return the page with its table replaced by this one."""
    before, mark, after = PAGE.read_text(encoding="utf-8").partition("<!-- wind tunnel: make soak -->\n")
    return before + mark + table + "\n<!-- end -->" + after.partition("\n<!-- end -->")[2]


def last_report(path: Path = REPORT) -> list[Worst]:
    return [Worst(**one) for one in json.loads(path.read_text(encoding="utf-8"))["worst"]]


def test_page_has_the_table_of_the_last_report() -> None:
    printed = printed_table(last_report())
    assert PAGE.read_text(encoding="utf-8") == page_with(printed)
    assert [name for name in judging_functions() if f"`{name}`" not in printed] == []
    assert too_high(last_report()) == []
    at_risk = {(generator.statement, str(status)) for generator in GENERATORS.values() for status in generator.levels}
    assert {(one.statement, one.status) for one in last_report()} == at_risk

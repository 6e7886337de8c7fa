"""The simulated jobs are the plan's: as many runs and hours, grouped as the engine groups them."""

from __future__ import annotations

import pytest

from benchmarks import scale
from benchmarks.simulated import bound
from stages.evaluation.flops import FlopCounts
from stages.params.experiment import load_params
from stages.run import ModelSpec
from stages.scheduling.planning import add_up, plan_costs
from stages.training import loop
from tests.project import REPOSITORY

pytestmark = pytest.mark.long


def some_flops(model: ModelSpec, shape: tuple[int, ...], vocabulary: int | None) -> int:
    return 10**9


def test_jobs_take_the_plans_hours() -> None:
    params = load_params(REPOSITORY)
    jobs = scale.planned_jobs(params, some_flops)
    costs = plan_costs(params, params.profiles["paper"], params.experiments, some_flops)
    planned = add_up(costs.values(), params.rates)
    assert sum(job.seconds for job in jobs) == pytest.approx(planned.seconds["cuda"])
    assert len(jobs) < planned.runs, "stacks are one job"
    assert all(job.save_seconds >= scale.SAVE_SECONDS for job in jobs)


def test_states_are_saved_as_often_as_the_loop_saves_them() -> None:
    assert scale.SAVE_SECONDS == loop._SAVE_SECONDS


def test_each_table_has_as_many_cells_as_headings() -> None:
    jobs = scale.planned_jobs(load_params(REPOSITORY), some_flops)[::400]
    tables = "\n".join(scale.lines(jobs)).split("\n\n")[1:]
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    assert tables[1].count("\n") == 1 + len(scale.GPUS) * len(scale.LIVES_HOURS)


def test_no_simulated_schedule_beats_the_bound() -> None:
    jobs = scale.planned_jobs(load_params(REPOSITORY), some_flops)[::40]
    for found in scale.repeat(jobs, 8, 4.0)[:2]:
        assert found.makespan >= bound(jobs, 8)


@pytest.mark.timeout(600)
def test_the_page_has_the_figures_of_todays_plan() -> None:
    text, counts = (REPOSITORY / "docs" / "scale.md").read_text(), FlopCounts()
    for line in scale.lines(scale.planned_jobs(load_params(REPOSITORY), counts.count)):
        if line[:3].strip("| ").isdigit() and "×" not in line:
            assert line in text, "python -m benchmarks.scale prints the tables again"

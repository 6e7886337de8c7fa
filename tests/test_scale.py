"""The simulated jobs are the plan's: as many runs and hours, grouped as the engine groups them."""

import math

import pytest

from benchmarks import scale
from stages.evaluation.flops import FlopCounts
from stages.params.experiment import load_params
from stages.scheduling.planning import add_up, plan_costs
from stages.training import loop
from tests.project import REPOSITORY

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_jobs_take_the_plans_hours_and_the_page_has_their_figures() -> None:
    """All rows of the page where nothing is drawn, and one of those where GPUs are taken away."""
    params, count = load_params(REPOSITORY), FlopCounts().count
    jobs = scale.planned_jobs(params, count)
    costs = plan_costs(params, params.profiles["paper"], params.experiments, count)
    planned = add_up(costs.values(), params.rates)
    assert sum(job.seconds for job in jobs) == pytest.approx(planned.seconds["cuda"])
    assert len(jobs) < planned.runs, "stacks are one job"
    assert all(job.save_seconds >= scale.SAVE_SECONDS == loop._SAVE_SECONDS for job in jobs)
    page = (REPOSITORY / "docs" / "scale.md").read_text().splitlines()
    rows = [scale.row(jobs, gpus, life) for gpus, life in [*((gpus, math.inf) for gpus in scale.GPUS), (64, 4.0)]]
    assert [row for row in rows if row not in page] == [], "python -m benchmarks.scale prints the tables again"
    assert {row.count("|") for row in rows} == {len(scale.HEADINGS) + 1}

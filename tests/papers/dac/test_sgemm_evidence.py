"""SGEMM's evidence at the last epoch and at the one that counts: the table of docs/papers/dac.md, computed again."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict

import pytest
from fastapi.testclient import TestClient
from scipy import stats
from sqlalchemy import select
from sqlalchemy.orm import aliased

from service.app import create_app
from service.settings import Settings
from stages.experiment import load_params
from stages.ledger.measures import average
from stages.recording import record
from stages.results import ledger_tables, open_results, tables
from stages.verdicts import GainClaim, GridPart, Sample, Status, judge_gain
from tests.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "papers" / "dac.md").read_text()
NATS = r"([+−]\d\.\d\d)"
ROWS = re.findall(
    rf"^\| (parameters|units) \| (\d+) \| (\d+) \| (\d) \| {NATS} \| {NATS} \| {NATS} to {NATS} \|$",
    PAGE,
    flags=re.MULTILINE,
)
Errors = dict[str, list[tuple[float, float]]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of the published evidence."""
    place = str(tmp_path_factory.mktemp("evidence") / "results.db")
    record(REPOSITORY, place, evidence_only=True)
    return place


@pytest.fixture(scope="module")
def errors(place: str) -> Errors:
    """Of each compared replicate the logs of the test error at the last epoch and at the best validation epoch."""
    found: Errors = defaultdict(list)
    last, selected = aliased(tables.Metric), aliased(tables.Metric)
    wanted = (
        select(tables.Result.arm, last.value, selected.value)
        .join(last, (last.result_id == tables.Result.id) & (last.metric == "log_mse"))
        .join(selected, (selected.result_id == tables.Result.id) & (selected.metric == "selected_log_mse"))
        .where(tables.Result.experiment == "dac-sgemm", tables.Result.is_selected)
    )
    with open_results(place)() as session:
        for arm, at_last, at_selected in session.execute(wanted):
            found[arm].append((at_last, at_selected))
    return found


def gains(errors: Errors, base: str, dac: str) -> list[float]:
    """Nats by which DAC's mean is lower: at the last epoch, at the best validation epoch, and Welch's 95 % of that."""
    (last, best), (dac_last, dac_best) = (zip(*errors[arm], strict=True) for arm in (base, dac))
    interval = stats.ttest_ind(best, dac_best, equal_var=False).confidence_interval(0.95)
    means = statistics.mean(last) - statistics.mean(dac_last), statistics.mean(best) - statistics.mean(dac_best)
    return [*means, interval.low, interval.high]


def test_every_pair_that_was_trained_is_in_the_table(errors: Errors) -> None:
    known = {(kind, f"mlp-{base}x{depth}", f"dac-mlp-{dac}x{depth}") for kind, base, dac, depth, *_ in ROWS}
    wider = {18: 25, 25: 35, 35: 50, 50: 71, 71: 100, 100: 141, 141: 200}
    pairs = set()
    for arm in errors:
        if found := re.fullmatch(r"dac-mlp-(\d+)x(\d+)", arm):
            width, depth = map(int, found.groups())
            pairs |= {("units", f"mlp-{width}x{depth}", arm), ("parameters", f"mlp-{wider[width]}x{depth}", arm)}
    assert known == {pair for pair in pairs if pair[1] in errors}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:4]))
def test_the_table_is_what_the_evidence_gives(errors: Errors, row: tuple[str, ...]) -> None:
    _, base, dac, depth, *printed = row
    found = gains(errors, f"mlp-{base}x{depth}", f"dac-mlp-{dac}x{depth}")
    assert printed == [f"{gain:+.2f}".replace("-", "−") for gain in found]


def test_seeds_agree_at_the_best_validation_epoch_and_not_at_the_last(errors: Errors) -> None:
    last, best = (
        math.sqrt(statistics.mean(statistics.variance([one[place] for one in arm]) for arm in errors.values()))
        for place in (0, 1)
    )
    assert f"{last:.2f} nats at the last epoch and {best:.2f} at the best" in PAGE


def test_by_the_last_epoch_nothing_is_decided(errors: Errors) -> None:
    pairs = [(arm, arm.removeprefix("dac-")) for arm in errors if re.fullmatch(r"dac-mlp-\d+x\d+", arm)]
    couples = [
        tuple(Sample.of([last for last, _ in errors[arm]]) for arm in pair) for pair in pairs if pair[1] in errors
    ]
    verdict = judge_gain(
        GainClaim(gain=0.25, margin=0.0625, better="lower"),
        *(average(side) for side in zip(*couples, strict=True)),
        rules=load_params(REPOSITORY).verdicts,
        pairing="none",
        part=GridPart(tuple(couples), 35),
    )
    assert verdict.status is Status.UNRESOLVED
    low, high = (f"{bound:.3f}".replace("-", "−") for bound in (verdict.low, verdict.high))
    assert f"the gain is {verdict.estimate:.3f} nats, 98 % interval {low} to {high}" in PAGE


def test_the_pages_say_what_the_verdict_says(place: str) -> None:
    with open_results(place)() as session:
        verdict = session.get_one(ledger_tables.Verdict, "dac.sgemm.gain")
    readme, results = ((REPOSITORY / name).read_text() for name in ("README.md", "docs/results.md"))
    for text in (PAGE, readme):
        assert f"by {verdict.estimate:.3f} nats on average: `{verdict.status}`" in text
        assert f"{verdict.low:.3f} to {verdict.high:.3f}" in text
    with TestClient(create_app(Settings(root=REPOSITORY, database=place)), base_url="http://127.0.0.1") as client:
        page = client.get("/claims/dac.sgemm.gain").text
    size = verdict.size
    assert size is not None and f"of the size the verdict says `{size['status']}`" in PAGE
    assert f"Its size: {size['status']}. {size['explanation']}" in results
    assert f"Its size: {size['status']}." in page


def test_times_of_two_machines_are_told_apart(place: str) -> None:
    with TestClient(create_app(Settings(root=REPOSITORY, database=place)), base_url="http://127.0.0.1") as client:
        page = client.get("/?dataset=sgemm").text
        charts = [client.get(f"/experiments/dac-sgemm?cost={cost}").text for cost in ("train_seconds", "parameters")]
    notes = [line for line in page.splitlines() if "Time per sample of" in line]
    assert len(notes) == 2 and all("DAC" in note for note in notes)
    assert sum("AMD EPYC" in note for note in notes) == 1
    assert "each model’s own baseline" in page
    shown = re.findall(r'name="arm" value="([^"]+)" checked', charts[0])
    assert sum(arm.startswith("dac") for arm in shown) == len(shown) / 2, "each beside what it stands against"
    assert ["seconds compare on one of them only" in text for text in (page, *charts)] == [True, True, False]

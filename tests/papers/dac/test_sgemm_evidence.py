"""SGEMM's evidence at the last and at the selected epoch, compared with the table of docs/papers/dac.md."""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
from fastapi.testclient import TestClient
from scipy import stats
from sqlalchemy import select
from sqlalchemy.orm import aliased

from service.app import create_app
from service.settings import Settings
from stages.params.experiment import load_params
from stages.recording.reporting import results_page
from stages.results import open_results, tables
from stages.verdicts import WORD_OF, Status
from tests.project import REPOSITORY

PAGE, README = ((REPOSITORY / name).read_text(encoding="utf-8") for name in ("docs/papers/dac.md", "README.md"))
TEXT = " ".join(PAGE.split())
UNITS = (18, 25, 35, 50, 71, 100, 141, 200)
DEPTHS = (5, 8)
COMPLETE_WIDTHS = (18, 25, 35)
Errors = dict[str, list[tuple[float, float]]]


@pytest.fixture(scope="module")
def errors(published: str) -> Errors:
    """Return the log test errors of each compared replicate at the last epoch and at the best validation epoch."""
    found: Errors = defaultdict(list)
    last, selected = aliased(tables.Metric), aliased(tables.Metric)
    wanted = (
        select(tables.Result.arm, last.value, selected.value)
        .join(last, (last.result_id == tables.Result.id) & (last.metric == "log_mse"))
        .join(selected, (selected.result_id == tables.Result.id) & (selected.metric == "selected_log_mse"))
        .where(tables.Result.experiment == "dac-sgemm", tables.Result.is_selected)
    )
    with open_results(published)() as session:
        for arm, at_last, at_selected in session.execute(wanted):
            found[arm].append((at_last, at_selected))
    return found


@pytest.fixture(scope="module")
def client(published: str) -> Iterator[TestClient]:
    settings = Settings(root=REPOSITORY, database=published)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as found:
        yield found


def depth_of(arm: str) -> int:
    return int(arm.rpartition("x")[2])


def minus(text: str) -> str:
    """Format a number with a typographical minus."""
    return text.replace("-", "−")


def scores(found: list[tuple[float, float]] | None) -> str:
    """Return mean and standard deviation over seeds at the best validation epoch."""
    best = [at_selected for _, at_selected in found or ()]
    return minus(f"{statistics.mean(best):.2f} ± {statistics.stdev(best):.2f}") if best else ""


def gain(base: list[tuple[float, float]] | None, dac: list[tuple[float, float]] | None) -> str:
    """Return DAC's lead in nats at the best validation epoch with Welch's 95 % interval."""
    if not base or not dac:
        return ""
    theirs, ours = ([at_selected for _, at_selected in side] for side in (base, dac))
    interval = stats.ttest_ind(theirs, ours, equal_var=False).confidence_interval(0.95)
    mean = statistics.mean(theirs) - statistics.mean(ours)
    return minus(f"{mean:+.2f} ({interval.low:.2f} to {interval.high:.2f})")


def table(errors: Errors) -> str:
    """Return the page's rows: base and DAC networks with equal numbers of units, and the next wider base network."""
    rows = []
    for units, wider in zip(UNITS, (*UNITS[1:], None), strict=True):
        for depth in DEPTHS:
            base, dac, larger = (
                errors.get(f"{kind}-{width}x{depth}")
                for kind, width in (("mlp", units), ("dac-mlp", units), ("mlp", wider))
            )
            if base or dac:
                cells = (units, depth, scores(base), scores(dac), gain(base, dac), gain(larger, dac))
                rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def test_table_equals_the_evidence(errors: Errors) -> None:
    assert "\n".join(re.findall(r"^\| \d+ \| \d \| .*$", PAGE, flags=re.MULTILINE)) == table(errors)


def test_pairs_of_the_claim_equal_the_tables(errors: Errors, client: TestClient) -> None:
    pairs = client.get("/api/v1/claims/dac.sgemm.gain").json()["pairs"]
    page = client.get("/claims/dac.sgemm.gain").text
    known = [arm for arm in errors if re.match(rf"dac-mlp-({'|'.join(map(str, COMPLETE_WIDTHS))})x", arm)]
    assert sorted(pair["arm"] for pair in pairs) == sorted(known)
    shown = re.findall(r'data-label="Gain">(.*?) nats</td>', page)
    assert [float(text.replace("−", "-")) for text in shown] == pytest.approx(
        [pair["ours"]["value"] for pair in pairs], abs=0.005
    )
    for pair in pairs:
        gain = pair["ours"]
        assert pair["against"] == pair["arm"].removeprefix("dac-") and gain["n"] == 5
        theirs, ours = ([at_selected for _, at_selected in errors[pair[side]]] for side in ("against", "arm"))
        interval = stats.ttest_ind(theirs, ours, equal_var=False).confidence_interval(0.95)
        assert gain["value"] == pytest.approx(statistics.mean(theirs) - statistics.mean(ours))
        assert (gain["low"], gain["high"]) == pytest.approx((interval.low, interval.high))


def test_page_states_which_network_leads_at_each_size(errors: Errors, published: str) -> None:
    """Compares networks of nearly equal numbers of parameters."""
    metric, result = tables.Metric, tables.Result
    counted = select(result.arm, metric.value).join(metric).where(metric.metric == "parameters")
    with open_results(published)() as session:
        parameters = dict(iter(session.execute(counted.where(result.experiment == "dac-sgemm"))))
    (said,) = re.findall(r"\*\*Figure 8\*\*.*?\*\*Machines", TEXT)
    for units, wider in pairwise(UNITS):
        for depth in DEPTHS:
            base, dac = f"mlp-{wider}x{depth}", f"dac-mlp-{units}x{depth}"
            if base in errors and dac in errors:
                assert parameters[dac] == pytest.approx(parameters[base], rel=0.14)
                assert f"{parameters[base] / 1000:.0f},000" in said


def test_page_states_dacs_training_time(published: str) -> None:
    """Sums five seeds relative to the base's, for pairs on one processor."""
    spent: dict[str, float] = defaultdict(float)
    processor = {}
    with open_results(published)() as session:
        wanted = select(tables.Result).where(tables.Result.experiment == "dac-sgemm", tables.Result.is_selected)
        for result in session.scalars(wanted):
            spent[result.arm] += result.train_seconds or math.nan
            processor[result.arm] = result.environment["device_name"]
    ratios: dict[str, list[float]] = defaultdict(list)
    for arm in spent:
        base = arm.removeprefix("dac-")
        if base != arm and processor.get(base) == processor[arm] and depth_of(arm) in DEPTHS:
            ratios[processor[arm]].append(spent[arm] / spent[base])
    *here, beside_more = sorted(ratios["Intel(R) Xeon(R) Processor"])
    *there, most = sorted(ratios["AMD EPYC"])
    assert f"took {min(here):.1f} to {max(here):.1f} times the base network's time" in TEXT
    assert f"({beside_more:.1f} with 71 units" in TEXT
    assert len(there) == 4 and f"{min(there):.1f} to {max(there):.1f} in four pairs and {most:.1f} with 141" in TEXT


def test_pages_state_how_much_was_trained(errors: Errors) -> None:
    arms = load_params(REPOSITORY).experiments["dac-sgemm"].arms
    assert f"{len(errors)} of the grid's {len(arms)} networks" in TEXT
    assert {len(seeds) for seeds in errors.values()} == {5}, "five seeds each"


def test_seeds_agree_at_the_best_validation_epoch_but_not_at_the_last(errors: Errors) -> None:
    last, best = (
        math.sqrt(statistics.mean(statistics.variance([one[place] for one in arm]) for arm in errors.values()))
        for place in (0, 1)
    )
    assert f"{last:.2f} nats at the last epoch and {best:.2f} at the best" in TEXT


def test_last_epoch_decides_nothing(published: str) -> None:
    with open_results(published)() as session:
        variants = {one["metric"]: one for one in session.get_one(tables.VerdictRow, "dac.sgemm.gain").variants}
        confidence = session.get_one(tables.VerdictRow, "dac.sgemm.gain").confidence
    by_last = variants["log_mse"]
    assert by_last["status"] == Status.UNRESOLVED and variants["min_log_mse"]["status"] == Status.SUPPORTED
    ours, low, high = (minus(f"{by_last[field]:.3f}") for field in ("ours", "low", "high"))
    assert f"the gain is {ours} nats, {100 * confidence:.4g} % interval {low} to {high}" in TEXT


def test_pages_agree_with_the_verdict(published: str, client: TestClient) -> None:
    with open_results(published)() as session:
        verdict = session.get_one(tables.VerdictRow, "dac.sgemm.gain")
    results = results_page(published)
    for text, word in ((TEXT, f"`{verdict.status}`"), (README, f"| {WORD_OF[Status(verdict.status)]} |")):
        assert f"by {verdict.estimate:.3f} nats on average" in text and word in text
        assert f"{verdict.low:.3f} to {verdict.high:.3f}" in text
    page = client.get("/claims/dac.sgemm.gain").text
    size = verdict.size
    assert size is not None and f"the verdict on the size is `{size['status']}`" in TEXT
    assert f"Its size: {size['status']}. Judged by" in results
    assert len(re.findall(r"^\| (?:DAC, )?\d layers of", results, re.MULTILINE)) == 6, "the three best of each role"
    assert f"Its size is open: {size['explanation'][:20]}" in page


def test_page_states_the_gain_of_more_weights_or_biases_from_141_units(errors: Errors, published: str) -> None:
    """Doubles the parameters of the best base network so far in two ways."""
    best = {arm: [at_selected for _, at_selected in found] for arm, found in errors.items()}
    start = best["mlp-141x5"]
    assert (
        min((arm for arm in best if arm.startswith("mlp-")), key=lambda arm: statistics.mean(best[arm])) == "mlp-141x5"
    )
    said = []
    for arm in ("mlp-200x5", "dac-mlp-141x5"):
        error = math.hypot(*(statistics.stdev(side) / math.sqrt(len(side)) for side in (start, best[arm])))
        said.append(minus(f"{statistics.mean(start) - statistics.mean(best[arm]):.3f} ± {error:.3f}"))
    assert f"(200 units) gain {said[0]} nats" in TEXT and f"biases gain {said[1]}." in TEXT
    with open_results(published)() as session:
        verdict = session.get_one(tables.VerdictRow, "dac.sgemm.more_efficient")
    assert f"gain {verdict.estimate:.3f} nats more, {verdict.low:.3f} to {verdict.high:.3f}: `{verdict.status}`" in TEXT


def test_times_of_different_machines_are_distinguished(client: TestClient) -> None:
    page = client.get("/?dataset=sgemm").text
    charts = [client.get(f"/experiments/dac-sgemm?cost={cost}").text for cost in ("train_seconds", "parameters")]
    notes = [line for line in page.splitlines() if "Time per sample of" in line]
    assert len(notes) == 3 and all("DAC" in note for note in notes), "6 layers ran on a third machine"
    assert sum("AMD EPYC" in note for note in notes) == 1
    assert "each model’s own baseline" in page
    shown = re.findall(r'name="arm" value="([^"]+)" checked', charts[0])
    assert sum(arm.startswith("dac") for arm in shown) == len(shown) / 2, "each with its baseline"
    assert ["Compare seconds only within one of them" in text for text in (page, *charts)] == [True, True, False]

"""No faulty row of data/claims.csv accuses a paper or stops other rows: each is checked against its experiment."""

import csv
import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stages.claims import ClaimLine, Facts, Judgement, gather, judge_claims, place_claims
from stages.claims.trials import ResultGroup
from stages.params.experiment import load_params
from stages.recording.sources import find_results, read_placed_claims, select
from stages.verdicts import Status
from stages.verdicts.kinds import KINDS
from tests.claims.lines import ROOT, claims, params
from tests.project import EXPERIMENT, edit, make_project

TRAINED = [claim for claim in claims().values() if claim.facts.by == "training" and claim.experiment]
NUMBERS = [claim for claim in TRAINED if claim.facts.is_gain or claim.facts.number == "model"]
SHARES = [claim for claim in NUMBERS if claim.unit == "fraction" and claim.value]
CELLS_OF = {(claim.experiment, claim.metric, claim.arm) for claim in TRAINED if claim.kind == "value"}
IN_PERCENT = [  # that can be seen: the number is over 1, or its cells are there
    claim
    for claim in SHARES
    if 100 * abs(claim.value or 0) > 1
    or {(claim.experiment, claim.metric, arm) for arm in (claim.arm, claim.baseline_arm)} <= CELLS_OF
]
OPPOSITE = {"higher": "lower", "lower": "higher"}
MISTAKES = {
    "percent": (IN_PERCENT, lambda claim: {"value": 100 * claim.value}),
    "opposite": (NUMBERS, lambda claim: {"better": OPPOSITE[claim.better]}),
    "no direction": (NUMBERS, lambda _: {"better": None}),
    "another word": (TRAINED, lambda _: {"better": "up"}),
    "metric": ([one for one in TRAINED if one.kind != "observed"], lambda claim: {"metric": claim.metric[:-1]}),
    "arm": ([one for one in TRAINED if one.arm], lambda _: {"arm": "no-such-arm"}),
    "baseline": ([one for one in TRAINED if one.baseline_arm], lambda _: {"baseline_arm": "no-such-arm"}),
    "itself": ([one for one in NUMBERS if one.baseline_arm], lambda claim: {"baseline_arm": claim.arm}),
    "experiment": (TRAINED, lambda claim: {"experiment": f"{claim.experiment}x"}),
    "family": (TRAINED, lambda claim: {"family": f"no.{claim.id}"}),
    "unit": (NUMBERS, lambda claim: {"unit": "percent", "value": claim.value or 0.1}),
    "paper": (TRAINED, lambda _: {"paper": "no-such-paper"}),
    "error": (TRAINED, lambda _: {"stderr": -0.1}),
    "runs": (TRAINED, lambda _: {"n": 0}),
    "number": (TRAINED, lambda _: {"value": float("nan")}),
}


@cache
def evidence() -> dict[str, list[ResultGroup]]:
    return dict(gather(params(), select(find_results(ROOT, params(), evidence_only=True)[0])))


def judge(rows: list[ClaimLine]) -> list[Judgement]:
    placed = place_claims(rows, params())
    return judge_claims(Facts(claims=placed, params=params(), groups=evidence(), with_power=False))[0]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_any_row_is_named_and_not_judged(mistake: str) -> None:
    rows, change = MISTAKES[mistake]
    assert len(rows) > 20
    wrong = [dataclasses.replace(claim, id=f"wrong.{claim.id}", **change(claim)) for claim in rows]
    for placed, claim in zip(place_claims([*wrong, *claims().values()], params()), rows, strict=False):
        assert placed.experiment is None and placed.reason is not None, claim.id
        column = next(iter(change(claim)))
        assert mistake == "experiment" or column in placed.reason, (claim.id, placed.reason)


CELLS = (None, "*", "higher", "vit", "zz")
NUMBERS_OF_NO_USE = (None, -1.0, 0.0, 0.5, 99.0, 1e300, float("inf"))
COLUMNS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("experiment", "arm", "unit", "baseline_arm", "better", "family", "factor", "reading"), CELLS),
    **dict.fromkeys(("value", "precision", "stderr", "high"), NUMBERS_OF_NO_USE),
    **dict.fromkeys(("n", "trials"), (None, -2, 0, 1, 20)),
    "metric": ("zz", "accuracy", "min_error", "loss", "failed"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_cell_of_a_row_stops_the_others(kind: str) -> None:
    """Each column of one row of each shape, with cells that are empty, of another column, out of range or unknown."""
    shapes = {
        (bool(one.experiment), bool(one.family), bool(one.baseline_arm)): one
        for one in claims().values()
        if one.kind == kind
    }
    sound = claims()["dac.sgemm.gain"]
    (alone,) = judge([sound])
    assert alone.verdict.status is not Status.NOT_TESTED
    wrong = [
        dataclasses.replace(claim, **{"id": f"{name}.{column}.{cell}", column: cell})
        for name, claim in enumerate(shapes.values())
        for column, cells in COLUMNS.items()
        for cell in cells
    ]
    judged = judge([sound, *wrong])
    assert [one.claim.id for one in judged[1:]] == [one.id for one in wrong] and judged[0] == alone


PAIR = {"arm": "ninformer", "baseline_arm": "vit", "better": "higher"}
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"kind": "ratio", "value": 1.1, "unit": "fraction", **PAIR}, "unit is 'fraction'; expected relative gain"),
    ({"kind": "ratio", "value": 0.1, "unit": "relative gain", "arm": "vit"}, "baseline_arm is empty; ratio needs it"),
    ({"kind": "range", "value": 0.1, "unit": "relative gain", **PAIR}, "high is empty; range needs it"),
    ({"kind": "range", "value": 0.2, "high": 0.1, "unit": "relative gain", **PAIR}, "high is 0.1; expected the end"),
    ({"kind": "noise", "value": 0.1, "trials": 1, "unit": "fraction", "arm": "vit"}, "trials is 1; expected at"),
    *(
        (
            {"kind": kind, "value": value, "trials": 2, "family": "toy.order", "better": "higher", "experiment": ""},
            f"value is {value:g}; expected a whole",
        )
        for kind in ("tally", "wins", "significant_wins")
        for value in (3, -1, 0.5)
    ),
]
SETTINGS = [
    ({"kind": "setup", "metric": "protocol.optimizer.name"}, "not tested", "is 'adam' in the params files"),
    ({"kind": "setup", "metric": "protocol.optimiser"}, "not tested", "The params files don't hold protocol.optimiser"),
    ({"kind": "count", "metric": "dataset.title"}, "not tested", "in the params files, which is no number"),
    ({"kind": "count", "metric": "dataset.folder"}, "not tested", "isn't set in the params files"),
    ({"kind": "setup", "metric": "model.mlp_dim", "arm": "vit"}, "as printed", "ours 32."),
    ({"kind": "setup", "metric": "model.mlp_dim"}, "deviates", "ours 16, 32."),
]


def test_impossible_row_stops_no_other(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    edit(
        project / f"params/{EXPERIMENT}.yaml", lambda experiment: experiment["arms"]["vit"]["model"].update(mlp_dim=32)
    )
    common = {"paper": "ninformer", "place": "Table 1", "experiment": EXPERIMENT, "metric": "accuracy"}
    order = {"kind": "order", "family": "toy.order", "unit": "fraction", "value": 0.1, **PAIR}
    settings = [fields | {"value": 32} for fields, *_ in SETTINGS]
    rows = [common | fields for fields in (order, order, *settings, *(fields for fields, _ in IMPOSSIBLE))]
    with (project / "data/claims.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(ClaimLine)])
        writer.writeheader()
        writer.writerows({"id": f"toy.{number}", **row} for number, row in enumerate(rows))
    placed = read_placed_claims(project, load_params(project))
    judged, *_ = judge_claims(Facts(claims=placed, params=load_params(project), with_power=False))
    assert all(claim.experiment for claim in placed[: 2 + len(SETTINGS)])
    for one, (fields, status, words) in zip(judged[2:], SETTINGS, strict=False):
        assert (one.verdict.status, words in one.verdict.explanation) == (status, True), (fields, one.verdict)
    for claim, (fields, words) in zip(placed[2 + len(SETTINGS) :], IMPOSSIBLE, strict=True):
        assert claim.experiment is None and words in (claim.reason or ""), (fields, claim.reason)

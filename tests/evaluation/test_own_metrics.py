"""Metrics of installed distributions: what they are called with, what the result line says, and how they fail."""

import hashlib
import os
import random
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from sklearn.metrics import cohen_kappa_score, r2_score, roc_auc_score

from service.settings import Settings
from stages.claims.lines import FAULT
from stages.evaluate import INCOMPLETE, main
from stages.evaluation.scores import auroc, measure_own
from stages.params.experiment import ParamsError, load_params
from stages.params.metrics import TAKEN, OwnMetric, read_metrics
from stages.params.stage_inputs import code_digests, stage_inputs
from stages.recording.builder import record
from stages.recording.sources import find_results, read_placed_claims, select
from stages.run import environment_digest
from stages.runs.evidence import CostLine, EvidenceLine, Measurement, ResultLine, read_lines, write_lines
from stages.verdicts.metrics import CLAIMED_METRICS, METRICS
from tests.claims.lines import ORIGIN
from tests.datasets.tiny import declare
from tests.project import EXPERIMENT, edit, make_project, train_here
from tests.service.conftest import reading
from tests.test_evaluate import on_cpu
from tests.test_plugins import Install, install  # noqa: F401  (a fixture)

CODE = """
class Shares:
    def __init__(self, base=0.0):
        self.total = base

    def update(self, preds, target):
        preds.zero_()  # the next metric has its own copy
        self.total += len(target)

    def compute(self):
        return self.total / 32

def agreement(preds, target):
    return (preds == target).float().mean()

def broken(y_true, y_pred):
    raise RuntimeError("no luck\\nsecond line")

def per_class(y_true, y_pred):
    return [0.1, 0.2]

def undefined(y_true, y_pred):
    return float("nan")

def nothing(y_true, y_pred):
    return None

def far(y_true, y_pred):
    return 7

def leaves(y_true, y_pred):
    raise SystemExit(0)

def masked(y_true, y_pred):
    import numpy
    return numpy.ma.array([1.0, 2.0], mask=True).mean()

def weighted(y_true, y_pred, weights):
    return weights[0] / 2

def draws(y_true, y_pred):
    import random, numpy, torch
    return (random.random() + numpy.random.rand() + torch.rand(()).item()) / 3

def meddles(y_true, y_pred):
    import os, random, warnings
    import numpy, torch
    os.chdir("/")
    os.environ["CLAIMCHECK_METRIC"] = "1"
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(7)
    numpy.seterr(all="raise")
    numpy.set_printoptions(precision=1)
    warnings.simplefilter("error")
    if len(y_true) > 4:
        raise RuntimeError("failed, too")

def minus_zero(y_true, y_pred):
    return -0.0
"""
OFFERED = {"metrics": {"agreement": "agreement", "shares": "Shares"}}
PLAIN = {"takes": "predictions", "unit": "fraction", "better": "higher", "range": [0, 1]}
KAPPA = PLAIN | {"name": "sklearn.metrics:cohen_kappa_score", "unit": "", "range": [-1, 1]}
GOOD = {
    "agreement": PLAIN | {"name": "agreement"},
    "shares": PLAIN | {"name": "shares", "base": 0.0},
    "kappa": KAPPA,
    "log_loss": {"name": "sklearn.metrics:log_loss", "takes": "probabilities", "labels": [*range(10)]}
    | {"unit": "nats", "better": "lower", "range": [0, None]},
}
BAD = {
    "broken": "RuntimeError: no luck",
    "per_class": r"it gives an array of shape \[2\]; expected one number, such as a mean over the classes",
    "undefined": "it is nan; it may be undefined on these rows",
    "nothing": "it gives None; expected one number",
    "far": r"it is 7, outside of its range \[0.0, 1.0\]",
    "leaves": "SystemExit: 0",
    "masked": "it is masked; it may be undefined on these rows",
}
PATH = Path("params.yaml")
CLAIMS = f"""
id,paper,place,experiment,arm,metric,kind,value,unit,precision,stderr,n,baseline_arm,better,note
toy.kappa,ninformer,Table 1,{EXPERIMENT},vit,kappa,value,0.25,,,,,,higher,
toy.order,ninformer,Table 1,{EXPERIMENT},ninformer,kappa,order,0.25,,,,,vit,higher,
toy.percent,ninformer,Table 1,{EXPERIMENT},vit,kappa,value,25,,,,,,higher,
toy.direction,ninformer,Table 1,{EXPERIMENT},vit,kappa,value,0.25,,,,,,lower,
toy.unit,ninformer,Table 1,{EXPERIMENT},vit,kappa,value,0.25,fraction,,,,,higher,
toy.name,ninformer,Table 1,{EXPERIMENT},vit,kapa,value,0.25,,,,,,higher,
""".lstrip()


def declared(metrics: dict[str, dict[str, Any]], **fields: Any) -> dict[str, OwnMetric]:
    source = declare("npz", (1, 4, 4), classes=2, train=6, test=4)
    return read_metrics(metrics, replace(source, **fields), PATH)


@pytest.fixture
def lab(install: Install) -> Install:  # noqa: F811
    install("metrics-of-a-lab", "1.0", "lab_metrics", OFFERED, code=CODE)
    return install


def computed(metrics: dict[str, OwnMetric], **rows: Any) -> tuple[dict[str, float], dict[str, str]]:
    found, faults = measure_own(metrics, {name: np.array(values) for name, values in rows.items()}, [], 4)
    return {row.metric: row.value for row in found}, faults


def test_metrics_get_what_they_take() -> None:
    draw = np.random.default_rng(0)
    labels, shares = draw.integers(3, size=60), draw.dirichlet(np.ones(3), 60).astype(np.float32)
    area = PLAIN | {"takes": "probabilities"}
    metrics = declared(
        {
            "kappa": KAPPA,
            "area": area | {"name": "sklearn.metrics:roc_auc_score", "multi_class": "ovr"},
        },
        classes=3,
    )
    values, faults = computed(metrics, true=labels, predictions=shares.argmax(1), probabilities=shares)
    assert not faults
    assert values["kappa"] == cohen_kappa_score(labels, shares.argmax(1))
    assert values["area"] == pytest.approx(auroc(shares, labels), rel=1e-6)
    positive = declared({"area": area | {"name": "sklearn.metrics:roc_auc_score", "takes": "positive"}})
    values, _ = computed(positive, true=labels > 0, positive=1 - shares[:, 0])
    assert values["area"] == roc_auc_score(labels > 0, 1 - shares[:, 0])
    r2 = {"r2": KAPPA | {"name": "sklearn.metrics:r2_score", "range": [None, 1]}}
    values, _ = computed(declared(r2, task="regression"), true=labels, predictions=shares[:, 0])
    assert values["r2"] == r2_score(labels, shares[:, 0])


ORDERS = {
    "y_true, y_pred": "true",
    "y1, y2": "true",
    "actual, guess": "true",
    "labels_true, labels_pred": "true",
    "trueLabels, scores": "true",
    "a, probabilities": "true",
    "y_pred, y_true": "predicted",
    "preds, labels": "predicted",
    "predictions, references": "predicted",
    "scores, y": "predicted",
    "y_hat, y": "predicted",
    "input, target": "predicted",
    "x, targets": "predicted",
    "yPred, yTrue": "predicted",
    "preds, scores": "refused",
    "labels, targets": "refused",
}
"""Parameters of a metric, and what its first one gets."""


@pytest.mark.parametrize("parameters", ORDERS)
@pytest.mark.parametrize("kind", ["function", "class", "unreadable"])
def test_what_is_true_goes_to_the_parameter_of_that_name(install: Install, parameters: str, kind: str) -> None:  # noqa: F811
    first, expected = parameters.partition(",")[0], ORDERS[parameters]
    code = {
        "function": f"def metric({parameters}):\n    return float({first}[0])\n",
        "unreadable": f"metric = lambda {parameters}: float({first}[0])\n",
        "class": f"class metric:\n def update(self, {parameters}):\n  self.first = float({first}[0])\n"
        " def compute(self):\n  return self.first\n",
    }[kind]
    install("metrics-of-a-lab", "1.0", "lab_metrics", {}, code=code)
    fields = PLAIN | {"name": "lab_metrics:metric"}
    if expected == "refused" and kind == "function":
        with pytest.raises(ParamsError, match=f"metrics.m.name is .*are {parameters.replace(',', ' and')}, which may "):
            declared({"m": fields})
        return
    values, faults = computed(declared({"m": fields}), true=[1], predictions=[0])
    if expected == "refused":
        assert "call the one that gets what is true y_true, and the other y_pred" in faults["m"]
    elif kind == "class" and parameters == "y1, y2":
        assert values == {"m": 0.0}, "as torchmetrics has it"
    else:
        assert values == {"m": float(expected == "true")}, faults


@pytest.mark.usefixtures("lab")
def test_metric_leaves_the_process_as_it_was() -> None:
    def states() -> list[Any]:
        numbers = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]
        of_torch = [torch.get_default_dtype(), torch.tensor(0.0).device, torch.get_num_threads()]
        of_torch += [torch.is_grad_enabled(), torch.get_float32_matmul_precision()]
        of_torch += [torch.are_deterministic_algorithms_enabled()]
        others = [os.getcwd(), dict(os.environ), np.geterr(), np.get_printoptions(), [*warnings.filters]]
        return [*numbers, *of_torch, *others]

    before, meddling = states(), PLAIN | {"name": "lab_metrics:meddles"}
    for rows, fault in (([0] * 4, "it gives None"), ([0] * 5, "RuntimeError: failed, too")):
        _, faults = computed(declared({"m": meddling}), true=rows, predictions=rows)
        assert faults["m"].startswith(fault) and states() == before


@pytest.mark.usefixtures("lab")
def test_metric_is_never_minus_zero() -> None:
    values, _ = computed(declared({"m": PLAIN | {"name": "lab_metrics:minus_zero"}}), true=[0], predictions=[0])
    assert str(values["m"]) == "0.0"


@pytest.mark.slow  # torchmetrics takes seconds to import
@pytest.mark.parametrize(
    "name", ["classification:MulticlassAUROC", "functional.classification:multiclass_auroc"], ids=["class", "function"]
)
def test_metrics_of_torchmetrics_get_tensors(name: str) -> None:
    draw = np.random.default_rng(0)
    labels, shares = draw.integers(3, size=60), draw.dirichlet(np.ones(3), 60).astype(np.float32)
    fields = PLAIN | {"takes": "probabilities", "name": f"torchmetrics.{name}", "num_classes": 3}
    values, faults = computed(declared({"area": fields}, classes=3), true=labels, probabilities=shares)
    assert not faults and values["area"] == pytest.approx(auroc(shares, labels), rel=1e-6)


@pytest.mark.parametrize(
    ("metric", "fields", "words"),
    [
        ({"name": "sklearn.metrics:cohen_kapa_score"}, {}, r"metrics.m.name is .*did you mean cohen_kappa_score"),
        ({"name": "agrement"}, {}, r"metrics.m.name is 'agrement' \(did you mean agreement\?\)"),
        ({"name": None}, {}, "metrics.m.name is 'None'"),
        ({"betta": 2}, {}, r"unknown key metrics.m.betta \(did you mean beta\?\)"),
        ({"better": "up"}, {}, "metrics.m.better is 'up'; input should be 'higher' or 'lower'"),
        ({"takes": "scores"}, {}, "metrics.m.takes is 'scores'; input should be 'predictions', 'probabilities' or"),
        ({"range": [1, 0]}, {}, r"metrics.m.range is \[1.0, 0.0\]; expected the smaller number first"),
        ({"range": [0, 100]}, {}, r"metrics.m.range is \[0.0, 100.0\]; a fraction's is \[0, 1\]"),
        ({"takes": "positive"}, {"classes": 3}, "'positive'; these data have predictions or probabilities"),
        ({"takes": "probabilities"}, {"task": "regression"}, "'probabilities'; these data have predictions"),
        ({"takes": "probabilities"}, {"task": "segmentation"}, "'probabilities'; these data have predictions"),
        ({}, {"kind": "text"}, "texts have no metrics of one's own"),
    ],
)
@pytest.mark.usefixtures("lab")
def test_wrong_metric_is_refused_when_params_are_read(
    metric: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    plain = PLAIN | {"name": "sklearn.metrics:fbeta_score", "beta": 1.0}
    declared({"m": plain})
    with pytest.raises(ParamsError, match=words):
        declared({"m": plain | metric}, **fields)
    for field in PLAIN:
        with pytest.raises(ParamsError, match=f"metrics.m.{field} is missing"):
            declared({"m": {name: value for name, value in plain.items() if name != field}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = make_project(tmp_path_factory.mktemp("metrics") / "project", epochs=1, steps_per_epoch=1)
    with pytest.MonkeyPatch.context() as patch:
        on_cpu(patch, project)
        assert train_here()
    return project


@pytest.fixture
def project(trained: Path, lab: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    on_cpu(monkeypatch, trained)
    yield trained
    edit(trained / f"params/{EXPERIMENT}.yaml", lambda file: file.pop("metrics", None))


def declare_metrics(project: Path, metrics: dict[str, Any]) -> None:
    edit(project / f"params/{EXPERIMENT}.yaml", lambda file: file.update(metrics=metrics))


def lines() -> list[ResultLine]:
    return read_lines(Path("data/results") / f"{EXPERIMENT}.jsonl", ResultLine)


def own_rows(line: ResultLine) -> dict[str, Measurement]:
    return {row.metric: row for row in line.metrics if row.by is not None}


def test_own_metrics_are_in_result_lines_database_and_answers(
    project: Path, lab: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stage_inputs(load_params(project))
    assert main([EXPERIMENT]) == 0
    plain = lines()
    declare_metrics(project, GOOD)
    after = stage_inputs(load_params(project))
    assert [name for name in before if before[name].params != after[name].params] == [
        *("analyse", "record", f"evaluate@{EXPERIMENT}")
    ]
    assert {"sklearn.metrics", "lab_metrics"} <= {*after[f"evaluate@{EXPERIMENT}"].roots}
    assert main([EXPERIMENT]) == 0
    capsys.readouterr()
    assert main([EXPERIMENT]) == 0 and capsys.readouterr().out.count("measured before") == 2
    for line, same in zip(lines(), plain, strict=True):
        rows, values = own_rows(line), {row.metric: row.value for row in line.metrics}
        assert replace(line, metrics=tuple(row for row in line.metrics if row.by is None)) == same
        assert rows.keys() == GOOD.keys() and {row.n for row in rows.values()} == {16}
        assert rows["agreement"].value == pytest.approx(values["accuracy"])
        assert rows["shares"].value == 0.5
        assert rows["log_loss"].value == pytest.approx(values["loss"], rel=1e-5)
        assert rows["agreement"].by == {
            "address": "lab_metrics:agreement",
            "arguments": {},
            "takes": "predictions",
            "code": {"lab_metrics": "metrics-of-a-lab==1.0"},
        }
        assert rows["log_loss"].by and rows["log_loss"].by["arguments"] == {"labels": [*range(10)]}
    lab("metrics-of-a-lab", "1.1", "lab_metrics", OFFERED, code=CODE)
    assert main([EXPERIMENT]) == 0 and "measured before" not in capsys.readouterr().out
    assert {own_rows(line)["agreement"].by["code"]["lab_metrics"] for line in lines()} == {"metrics-of-a-lab==1.1"}  # type: ignore[index]
    (project / "data/claims.csv").write_text(CLAIMS, encoding="utf-8")
    record(project, "data/results.db")
    with reading(Settings(root=project, database="data/results.db")) as client:
        check_answers(client)
    placed = {claim.id: claim.reason for claim in read_placed_claims(project, load_params(project))}
    assert {name: "" if not reason else reason.removeprefix(FAULT) for name, reason in placed.items()} == {
        "toy.kappa": "",
        "toy.order": "",
        "toy.percent": "value is 25; the range of kappa is [-1.0, 1.0]",
        "toy.direction": "better is lower; higher is better for kappa",
        "toy.unit": "unit is 'fraction'; kappa is in no unit: leave it empty",
        "toy.name": "metric is 'kapa'; did you mean kappa?",
    }


def check_answers(client: TestClient) -> None:
    for run in client.get("/api/v1/runs").json():
        assert {row["metric"] for row in run["metrics"]} >= GOOD.keys()
    found = client.get("/compare?metric=kappa", headers={"accept": "application/json"}).json()["comparisons"][0]
    assert found["metric"].items() >= {"name": "kappa", "title": "Kappa", "better": "higher"}.items()
    for page in ("/compare?metric=kappa", "/leaderboard?dataset=mnist&metric=kappa", f"/experiments/{EXPERIMENT}"):
        answer = client.get(page, headers={"accept": "text/html"})
        assert answer.status_code == 200 and ("Kappa" in answer.text or "metric" not in page), page
    unknown = client.get("/compare?metric=kapa", headers={"accept": "application/json"})
    assert unknown.status_code == 422 and "kappa" in unknown.text


def test_failing_metric_is_named_and_others_are_kept(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {name: PLAIN | {"name": f"lab_metrics:{name}"} for name in BAD}
    declare_metrics(project, {"kappa": KAPPA} | bad)
    for _ in range(2):  # a failure isn't cached
        assert main([EXPERIMENT]) == INCOMPLETE
        error = capsys.readouterr().err
        for name, words in BAD.items():
            assert re.search(f"metric {name}: {words}", error), (name, error)
        assert "ninformer.0, vit.0" in error and "all other metrics are in" in error
    for line in lines():
        assert own_rows(line).keys() == {"kappa"} and "accuracy" in {row.metric for row in line.metrics}


@pytest.mark.parametrize("name", [*sorted(TAKEN), "epoch_1_test_loss"])
def test_name_that_every_experiment_has_is_refused(name: str) -> None:
    with pytest.raises(ParamsError, match=f"metrics.{name}: every experiment has a metric of this name"):
        declared({name: KAPPA})


def test_names_of_all_other_metrics_are_taken() -> None:
    assert {*METRICS, *CLAIMED_METRICS} == TAKEN


def test_number_keys_and_random_draws_give_the_same_number_again(project: Path) -> None:
    weighted = PLAIN | {"name": "lab_metrics:weighted", "weights": {0: 1.0, 1: 2.0}}
    declare_metrics(project, {"weighted": weighted, "draws": PLAIN | {"name": "lab_metrics:draws"}})
    state = np.random.get_state()[1]
    assert main([EXPERIMENT]) == 0
    found, _ = find_results(project, load_params(project))
    numbers = [{row.metric: row.value for row in trial.result.metrics if row.by} for trial in found]
    assert len(numbers) == 2 and numbers[0] == numbers[1] and numbers[0].keys() == {"weighted", "draws"}
    assert np.array_equal(state, np.random.get_state()[1])


def test_metric_with_other_arguments_is_another_one(project: Path) -> None:
    """Numbers that were measured under an earlier definition count for no claim."""
    declare_metrics(project, {"f": PLAIN | {"name": "sklearn.metrics:fbeta_score", "beta": 1, "average": "macro"}})
    assert main([EXPERIMENT]) == 0
    content = hashlib.sha256(Path(f"data/results/{EXPERIMENT}.jsonl").read_bytes()).hexdigest()

    def measured() -> set[str]:
        found, _ = find_results(project, load_params(project))
        return {row.metric for trial in found for row in trial.result.metrics if row.by}

    assert measured() == {"f"}
    declare_metrics(project, {"f": PLAIN | {"name": "sklearn.metrics:fbeta_score", "beta": 2, "average": "macro"}})
    assert measured() == set()
    declare_metrics(project, {})
    assert measured() == set()
    assert hashlib.sha256(Path(f"data/results/{EXPERIMENT}.jsonl").read_bytes()).hexdigest() == content


def upgrade(lab: Install, version: str) -> None:
    lab("metrics-of-a-lab", version, "lab_metrics", OFFERED, code=CODE)
    sys.modules.pop("lab_metrics", None)


def agreements() -> tuple[list[tuple[str, str]], list[str]]:
    """Return the source and code's version of each number of `agreement`, and the notes on numbers left out."""
    found, notes = find_results(Path(), load_params(Path()))
    rows = [(trial.source, row) for trial in found for row in trial.result.metrics if row.metric == "agreement"]
    versions = [(source, row.by["code"]["lab_metrics"].partition("==")[2]) for source, row in rows if row.by]
    return versions, [note for note in notes if "agreement" in note]


def publish_lines(lines: Sequence[ResultLine]) -> None:
    costs = {line.run_key: line for line in read_lines(Path(f"data/results/{EXPERIMENT}.cost.jsonl"), CostLine)}
    for line in lines:
        costs[line.run_key] = replace(costs[line.run_key], environment_digest=line.environment_digest)
    published = [EvidenceLine(result=line, cost=costs[line.run_key], origin=ORIGIN) for line in lines]
    Path("data/evidence").mkdir(exist_ok=True)
    Path(f"data/evidence/{EXPERIMENT}.jsonl").write_bytes(write_lines(published))


def test_numbers_of_another_version_are_left_out_until_they_are_measured_again(project: Path, lab: Install) -> None:
    declare_metrics(project, {"agreement": GOOD["agreement"]})
    assert main([EXPERIMENT]) == 0
    old = lines()
    assert agreements() == ([("local", "1.0")] * 2, [])
    upgrade(lab, "1.1")
    what = "numbers of agreement left out, because lab_metrics changed after they were measured"
    how = f"`dvc repro evaluate@{EXPERIMENT}` measures again what was trained here"
    assert agreements() == ([], [f"data/results/{EXPERIMENT}.jsonl: 2 {what}; {how}"])
    assert main([EXPERIMENT]) == 0
    assert agreements() == ([("local", "1.1")] * 2, [])
    path, new = Path(f"data/results/{EXPERIMENT}.jsonl"), lines()
    path.write_bytes(write_lines([old[0], new[1]]))
    versions, (note,) = agreements()
    assert versions == [("local", "1.1")] and f": 1 {what}" in note, "versions aren't mixed"
    path.write_bytes(write_lines(new))
    try:
        publish_lines(old)
        assert agreements() == ([("evidence", "1.1")] * 2, []), "published numbers replace no newer ones"
        elsewhere = {"machine": "another"}
        moved = {"environment": elsewhere, "environment_digest": environment_digest(elsewhere)}
        publish_lines([replace(line, **moved) for line in old])
        versions, (note,) = agreements()
        assert versions == [("local", "1.1")] * 2 and note.startswith(f"data/evidence/{EXPERIMENT}.jsonl: 2 {what}")
        found, _ = find_results(project, load_params(project))
        assert {trial.source for trial in found} == {"evidence", "local"}
        assert {trial.source for trial in select(found)} == {"local"}, "results with today's numbers come first"
        declare_metrics(project, {})
        found, _ = find_results(project, load_params(project))
        assert {trial.source for trial in select(found)} == {"evidence"}
    finally:
        shutil.rmtree("data/evidence")


def test_upgraded_package_that_a_metrics_file_imports_is_noticed(
    project: Path, lab: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(project)
    (project / "my_scores.py").write_text("from my_parts import share\n", encoding="utf-8")
    (project / "my_parts.py").write_text(
        "import lab_metrics\n\ndef share(preds, target):\n    return lab_metrics.agreement(preds, target)\n",
        encoding="utf-8",
    )
    upgrade(lab, "1.0")
    declare_metrics(project, {"share": PLAIN | {"name": "my_scores:share"}})

    def digests() -> dict[str, Mapping[str, str]]:
        found = stage_inputs(load_params(project))
        names = "record", f"train@{EXPERIMENT}", f"evaluate@{EXPERIMENT}"
        return {name: code_digests(found[name].roots, found[name].files) for name in names}

    before = digests()
    assert main([EXPERIMENT]) == 0 and main([EXPERIMENT]) == 0
    assert capsys.readouterr().out.count("measured before") == 2
    upgrade(lab, "1.1")
    after = digests()
    assert [name for name in before if before[name] != after[name]] == ["record", f"evaluate@{EXPERIMENT}"]
    assert find_results(Path(), load_params(project))[1][-1].startswith(f"data/results/{EXPERIMENT}.jsonl: 2 numbers")
    assert main([EXPERIMENT]) == 0 and "measured before" not in capsys.readouterr().out
    assert {own_rows(line)["share"].by["code"]["lab_metrics"] for line in lines()} == {"metrics-of-a-lab==1.1"}  # type: ignore[index]


def test_metric_has_one_unit_and_direction_in_all_experiments(project: Path) -> None:
    declare_metrics(project, {"kappa": KAPPA})
    edit(project / "params.yaml", lambda index: index["experiments"].update(other=index["experiments"][EXPERIMENT]))
    (project / "params/other.yaml").write_text(f"like: {EXPERIMENT}\n", encoding="utf-8")
    try:
        assert load_params(project).experiments["other"].metrics.keys() == {"kappa"}
        (project / "params/other.yaml").write_text(
            f"like: {EXPERIMENT}\nmetrics: {{kappa: {KAPPA | {'better': 'lower'}}}}\n", encoding="utf-8"
        )
        with pytest.raises(ParamsError, match=f"metrics.kappa differs in unit or better from .*{EXPERIMENT}"):
            load_params(project)
    finally:
        edit(project / "params.yaml", lambda index: index["experiments"].pop("other"))
        (project / "params/other.yaml").unlink()

"""Observations of the inside of trained networks: recorded, queried and drawn for real trainings."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from fastapi.testclient import TestClient

from service.app import create_app
from service.pages.formats import plain
from service.settings import Settings
from stages.checkpoint.predictor import load_predictor
from stages.datasets.packed import read_images
from stages.evaluate import main
from stages.evaluation.scores import IMAGES, accuracy
from stages.papers.brownian import ViT
from stages.papers.brownian.walk import head_rows
from stages.papers.hyperbf import HyperBF
from stages.recording.builder import record
from stages.runs.evidence import ResultLine, read_lines, write_lines
from stages.upkeep.verifying import look_again
from tests.project import REPOSITORY, pack_stand_in, train_here
from tests.service.drawn import drawn

TINY = {
    "hyperbf-cifar10": {"patch_size": 8, "dim": 8, "depth": 2, "num_heads": 2},
    "brownian-cifar10": {"patch_size": 8, "dim": 8, "depth": 2, "num_heads": 2, "mlp_dim": 8},
    "nmn-mnist-inversion": {},
}
ARMS = {"hyperbf-cifar10": ("vit", "hyperbf", "hyperbf-equal-widths"), "brownian-cifar10": ("adam", "sgd")}
ARMS["nmn-mnist-inversion"] = ("dot-prototypes", "yat-prototypes")
REST = {"hidden_dim": 4}, {"num_centers": 4, "feedforward_beta": 0.05}


def write_project(folder: Path) -> None:
    """Write three papers' experiments with a few tiny arms on placeholder data."""
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    index["profiles"]["smoke"] |= {"roles": None, "overrides": {"epochs": 2, "steps_per_epoch": 4, "batch_size": 16}}
    index["experiments"] = {name: index["experiments"][name] for name in TINY}
    (folder / "params").mkdir(parents=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    for name, tiny in TINY.items():
        experiment = yaml.safe_load((REPOSITORY / "params" / f"{name}.yaml").read_text(encoding="utf-8"))
        experiment["arms"] = {arm: experiment["arms"][arm] for arm in ARMS[name]}
        for arm in experiment["arms"].values():
            if "name" in arm.get("model", {}):
                arm["model"] |= tiny
        if name.startswith("hyperbf"):
            for arm, own in zip(("vit", "hyperbf"), REST, strict=True):
                experiment["arms"][arm]["model"] |= own
            experiment["arms"]["hyperbf-equal-widths"]["model"]["attention_beta"] = 0.05
        (folder / "params" / f"{name}.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False), encoding="utf-8")
    claims = (REPOSITORY / "data" / "claims.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in claims if line.startswith(("id,", "hyperbf.obs.sigma_", "hyperbf.obs.M_", "brownian.tr"))]
    for dataset in ("cifar10", "mnist"):
        pack_stand_in(folder / "data" / "processed" / dataset, dataset)
    (folder / "data" / "claims.csv").write_text("".join(kept), encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project that is really trained, evaluated and recorded."""
    root = tmp_path_factory.mktemp("observing")
    write_project(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("CLAIMCHECK_DEVICE", "cpu")
        for name in TINY:
            assert train_here(name) and main([name]) == 0
        record(root, "data/results.db")
        yield root


def lines(root: Path, name: str) -> dict[str, ResultLine]:
    return {line.arm: line for line in read_lines(root / "data" / "results" / f"{name}.jsonl", ResultLine)}


def serve(root: Path) -> TestClient:
    return TestClient(create_app(Settings(root=root)), base_url="http://127.0.0.1")


def test_line_has_observations_of_the_trained_and_the_initial_network(root: Path) -> None:
    line = lines(root, "hyperbf-cifar10")["hyperbf-equal-widths"]
    weights = root / "data" / "runs" / line.experiment / line.run_key / "weights.safetensors"
    network = load_predictor(weights).network
    assert isinstance(network, HyperBF) and line.observed is not None
    sigmas = [value for (value,) in line.observed["trained"]["attention_sigma"]]
    assert sigmas == pytest.approx(network.observe_kernels()["attention_sigma"], rel=1e-6)
    start = line.observed["start"]
    assert start["attention_sigma"] == start["feedforward_sigma"] == ((3.162278,), (3.162278,))
    assert sigmas != [value for (value,) in start["attention_sigma"]], "training changed them"
    gap = next(row for row in line.metrics if row.metric == "kernel_width_gap")
    assert gap.split == "none" and gap.value != 0
    assert lines(root, "hyperbf-cifar10")["vit"].observed is None, "the paper makes no statement about its inside"


def test_walk_is_observed_on_the_first_test_images(root: Path) -> None:
    line = lines(root, "brownian-cifar10")["adam"]
    weights = root / "data" / "runs" / line.experiment / line.run_key / "weights.safetensors"
    predictor = load_predictor(weights)
    images = torch.from_numpy(read_images(root / "data" / "processed" / "cifar10", "test").images[:IMAGES])
    assert isinstance(predictor.network, ViT) and line.observed is not None
    rows = head_rows(predictor.network, predictor.inputs(images))
    staying = [value for heads in line.observed["trained"]["self_probability"] for value in heads]
    assert staying == pytest.approx([row["self_probability"] for row in rows], rel=1e-5)
    motion = next(row for row in line.metrics if row.metric == "displacement_over_steps")
    assert (motion.split, motion.n) == ("test", IMAGES)
    other = lines(root, "brownian-cifar10")["sgd"].observed
    assert other is not None and other["start"] == line.observed["start"], "the same seed gives the same start"
    assert other["trained"] != line.observed["trained"]


@pytest.mark.parametrize("arm", ARMS["nmn-mnist-inversion"])
def test_accuracy_after_inversion_covers_all_test_images(root: Path, arm: str) -> None:
    line = lines(root, "nmn-mnist-inversion")[arm]
    weights = root / "data" / "runs" / line.experiment / line.run_key / "weights.safetensors"
    predictor, test_set = load_predictor(weights), read_images(root / "data" / "processed" / "mnist", "test")
    units = predictor.network.units
    with torch.no_grad():
        units.weight.copy_(-units.weight)
    found = accuracy(predictor.probabilities(test_set.images), test_set.labels)
    measured = {row.metric: row for row in line.metrics}
    inverted = measured["accuracy_after_inversion"]
    assert (inverted.value, inverted.split, inverted.n) == (pytest.approx(found), "test", len(test_set))
    assert len(test_set) > IMAGES and inverted.value != measured["accuracy"].value
    assert line.observed is None, "it has no observations by block"


@pytest.mark.parametrize(
    ("name", "arm", "metric"),
    [
        ("hyperbf-cifar10", "hyperbf-equal-widths", "kernel_width_gap"),
        ("brownian-cifar10", "adam", "displacement_over_steps"),
    ],
)
def test_verification_recomputes_observations_from_the_weights(root: Path, name: str, arm: str, metric: str) -> None:
    line = lines(root, name)[arm]
    weights = root / "data" / "runs" / name / line.run_key / "weights.safetensors"
    packed = root / "data" / "processed" / "cifar10"
    assert list(look_again(weights, packed, line)) == []
    edited = [dataclasses.replace(row, value=1.1 * row.value) if row.metric == metric else row for row in line.metrics]
    (said,) = look_again(weights, packed, dataclasses.replace(line, metrics=tuple(edited)))
    assert said.startswith(f"{metric} is recorded as ")


def test_observations_on_placeholder_data_appear_with_the_run_but_not_with_claims(root: Path) -> None:
    client, line = serve(root), lines(root, "hyperbf-cifar10")["hyperbf"]
    (result,) = client.get(f"/api/v1/runs/{line.run_key}").json()["results"]
    assert line.observed is not None
    assert [row["value"] for row in result["observations"] if row["moment"] == "trained"] == [
        value for blocks in line.observed["trained"].values() for heads in blocks for value in heads
    ]
    drawn = client.get(f"/runs/{line.run_key}").text
    assert "Inside the model" in drawn and "Numbers from placeholder data say nothing about the paper" in drawn
    for claim in client.get("/api/v1/claims").json():
        detail = client.get(f"/api/v1/claims/{claim['id']}").json()
        assert (detail["verdict"]["status"], detail["verdict"]["ours"], detail["observations"]) == (
            *("not tested", None),
            [],
        )
        assert "Inside the models" not in client.get(f"/claims/{claim['id']}").text
    assert "Inside the trained models" not in client.get("/experiments/hyperbf-cifar10").text
    points = client.get("/api/v1/experiments/hyperbf-cifar10/observations?quantity=attention_sigma").json()
    assert [(point["arm"], point["moment"], point["block"]) for point in points] == [
        (arm, moment, block)
        for arm in ARMS["hyperbf-cifar10"][1:]
        for moment in ("start", "trained")
        for block in (1, 2)
    ]


@pytest.fixture(scope="module")
def real(root: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """The same lines marked as trained on complete data."""
    folder = tmp_path_factory.mktemp("real")
    write_project(folder)
    (folder / "data" / "results").mkdir()
    for name in TINY:
        whole = [
            dataclasses.replace(line, data=dataclasses.replace(line.data, provenance="full"))
            for line in lines(root, name).values()
        ]
        (folder / "data" / "results" / f"{name}.jsonl").write_bytes(write_lines(whole))
    record(folder, "data/results.db")
    return serve(folder)


def test_observations_of_real_runs_are_drawn_on_the_experiments_page(real: TestClient, root: Path) -> None:
    html = real.get("/experiments/hyperbf-cifar10?quantity=attention_sigma").text
    found = drawn(html, "inside").lines
    for arm, title in (("hyperbf", "HyperBF"), ("hyperbf-equal-widths", "HyperBF with equal sigmas at the start")):
        observed = lines(root, "hyperbf-cifar10")[arm].observed
        assert observed is not None
        for moment, dash in (("trained", ""), ("start", "6 4")):
            values = [value for (value,) in observed[moment]["attention_sigma"]]
            assert [y for _, y in found[title, dash]] == pytest.approx(values, rel=0.01)
            assert f"{title}, {moment}, block 1: {plain(values[0])}" in html
    heads = real.get("/experiments/brownian-cifar10?quantity=self_probability").text
    observed = lines(root, "brownian-cifar10")["adam"].observed
    assert observed is not None
    first = observed["trained"]["self_probability"][0]
    points = real.get("/api/v1/experiments/brownian-cifar10/observations?quantity=self_probability").json()
    point = next(p for p in points if (p["arm"], p["moment"], p["block"]) == ("adam", "trained", 1))
    assert (point["low"], point["high"]) == (min(first), max(first))  # type: ignore[type-var]
    assert point["mean"] == pytest.approx(sum(filter(None, first)) / 2)
    assert '<option value="self_probability" selected>probability of staying' in heads


def test_claim_page_draws_the_quantities_behind_it(real: TestClient) -> None:
    claim = real.get("/api/v1/claims/hyperbf.obs.sigma_order.c10").json()
    assert {(row["arm"], row["quantity"]) for row in claim["observations"]} == {
        ("hyperbf", "attention_sigma"),
        ("hyperbf", "feedforward_sigma"),
    }
    page = real.get("/claims/hyperbf.obs.sigma_order.c10").text
    assert set(drawn(page, "inside").inks) == {"σ of attention", "σ of the feed-forward"}
    assert "above 0" in page, "the paper's statement"
    assert set(drawn(real.get("/claims/brownian.trained.motion").text, "inside").inks) == {"Adam"}


def test_unknown_quantity_is_404_and_the_page_shows_another(real: TestClient) -> None:
    response = real.get("/api/v1/experiments/brownian-cifar10/observations?quantity=colour")
    assert response.status_code == 404
    assert re.search("unknown quantity 'colour'; known: .*self_probability", response.json()["detail"])
    assert drawn(real.get("/experiments/brownian-cifar10?quantity=colour").text, "inside").lines
    assert real.get("/api/v1/experiments/x/observations").status_code == 404

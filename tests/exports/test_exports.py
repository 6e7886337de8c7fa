"""`claimcheck export`, read by the packages that define the formats: their validators and parsers."""

import hashlib
import io
import json
import math
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from scipy import stats
from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.checkpoint.predictor import load_predictor
from stages.cli import main
from stages.datasets.packed import read_images
from stages.params.experiment import load_params
from stages.results import Epoch, Result, open_results
from stages.upkeep.exporting import ExportError, read_citation, write_models, write_records
from tests.project import REPOSITORY

HERE = Path(__file__).parent
READ_BACK = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
from trackio import logbook
runs = trackio.Api().runs("nmn-mnist")
curves = {run.config["run_key"]: SQLiteStorage.get_logs("nmn-mnist", run.name, run_id=run.id) for run in runs}
pages = logbook.read_logbook_data(logbook.require_project_dir())["pages"]
json.dump([curves, pages], sys.stdout)
"""


@pytest.fixture(scope="module")
def clone(published: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in git that exports read, with a database of only the published evidence."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "data").mkdir()
    for name in ("CITATION.cff", "NOTICE", "params.yaml", "params", "data/models", "data/evidence"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "data" / "results.db").symlink_to(published)
    return folder


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the hash-checked packages of `owners.lock`."""
    folder = tmp_path_factory.mktemp("owners")
    options = ["--quiet", "--no-deps", "--ignore-requires-python", "--require-hashes", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(HERE / "owners.lock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def by_owner(packages: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(packages), "TRACKIO_DIR": ".trackio"}
    command = [sys.executable, "-P", *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def records_below(folder: Path) -> dict[str, Any]:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("*.json")]
    return {record["model_info"]["id"]: record for record in records}


def accuracies(session: Session, experiment: str, arm: str, *conditions: Any) -> list[float]:
    chosen = Result.experiment == experiment, Result.arm == arm, Result.is_selected, *conditions
    return [accuracy for accuracy in session.scalars(select(Result.accuracy).where(*chosen)) if accuracy is not None]


def test_released_model_has_a_card_and_results_that_the_hub_can_parse(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    assert main(["export", "huggingface", str(tmp_path / "hub"), "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)["models"]
    texts = [path.read_text(encoding="utf-8") for path in (clone / "data" / "evidence").glob("*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines() if '"same_class"' in line]
    released = {line["release"]["sha256"]: line["release"] for line in lines}
    folders = list((tmp_path / "hub").iterdir())
    assert counted == len(folders) == len(released) > 1
    for folder in folders:
        release = released[hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()]
        card = ModelCard.load(folder / "README.md")
        (in_card,) = card.data.eval_results
        (file,) = (folder / ".eval_results").glob("*.yaml")
        (entry,) = parse_eval_result_entries(yaml.safe_load(file.read_text(encoding="utf-8")))
        assert in_card.metric_value == entry.value == release["accuracy"]
        assert entry.dataset_id == in_card.dataset_type == card.data.datasets[0]
        sampling = math.sqrt(entry.value * (1 - entry.value) / release["n"])
        assert in_card.metric_args["sampling_standard_error"] == pytest.approx(sampling)
        assert f"n = {release['n']} test images, standard error of sampling {sampling:.4f}" in entry.notes
        assert "shortened run" in entry.notes and "shortened run" in card.text and (folder / "NOTICE").is_file()
        assert (card.data.license, card.data.license_link) == ("other", "NOTICE")
        assert card.data.license_name == "apache-2.0-with-terms-of-the-data"
    predictor = load_predictor(tmp_path / "hub" / "ninformer-mnist.ninformer.0" / "model.safetensors")
    samples = read_images(REPOSITORY / "data" / "samples" / "mnist", "test")
    assert (predictor.probabilities(samples.images).argmax(1) == samples.labels).mean() > 0.8, "as its card says"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without CITATION.cff and NOTICE."""
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data" / "models").symlink_to(REPOSITORY / "data" / "models")
    return root


@pytest.fixture
def replicated(published: str, tmp_path: Path) -> str:
    """A database whose only released model is one of ten trainings, four of which ran under weaker conditions."""
    database = str(shutil.copy(published, tmp_path / "results.db"))
    with closing(sqlite3.connect(database)) as writable, writable:
        writable.execute("DELETE FROM checkpoints WHERE position > 0")
        writable.execute(
            "UPDATE checkpoints SET experiment = 'nmn-mnist', "
            "result_id = (SELECT min(id) FROM results WHERE experiment = 'nmn-mnist' AND arm = 'yat-mlp' "
            "AND replicate = 0)"
        )
        writable.execute(
            "UPDATE results SET conditions = 'weaker', group_position = group_position + 1 "
            "WHERE experiment = 'nmn-mnist' AND replicate < 4"
        )
    return database


def write_card(database: str, project: Path, folder: Path) -> ModelCard:
    with open_results(database)() as session:
        write_models(session, project, folder, ["nmn-mnist"])
    (card,) = (ModelCard.load(path) for path in folder.glob("*/README.md"))
    return card


def test_card_has_the_error_between_runs_of_the_same_conditions(replicated: str, project: Path, tmp_path: Path) -> None:
    card = write_card(replicated, project, tmp_path / "hub")
    with open_results(replicated)() as session:
        values = accuracies(session, "nmn-mnist", "yat-mlp", Result.conditions == "weaker")
    numbers = card.data.eval_results[0].metric_args
    assert numbers["training_runs"] == len(values) == 4
    assert numbers["run_to_run_standard_deviation"] == pytest.approx(statistics.stdev(values))
    assert "| printed by the paper (authors' web pages) | 94.97% |" in card.text


@pytest.mark.parametrize(
    ("licence", "named"),
    [
        (None, None),
        ("MIT", "mit-with-terms-of-the-data"),
        (["MIT", "BSD-3-Clause"], "mit-or-bsd-3-clause-with-terms-of-the-data"),
    ],
)
def test_card_has_the_licences_of_the_project_and_the_data(
    licence: str | list[str] | None, named: str | None, replicated: str, project: Path, tmp_path: Path
) -> None:
    if licence:
        about = {"authors": [{"alias": "ada"}], "license": licence}
        (project / "CITATION.cff").write_text(yaml.safe_dump(about), encoding="utf-8")
    card = write_card(replicated, project, tmp_path / "hub")
    assert card.data.get("license_name") == named
    assert card.data.get("license_link") == (named and "http://yann.lecun.com/exdb/mnist/")
    assert "The terms of the data set apply to the weights: CC BY-SA 3.0." in card.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("authors: Ada Lovelace", "authors is 'Ada Lovelace'; expected a list"),
        ("authors: [Ada]", "authors.0 is 'Ada'; expected given-names and family-names, or name"),
        ("authors: [{given-names: [Ada]}]", r"authors.0: given-names is \['Ada'\]; expected a text"),
        ("authors: [{orcid: x}]", "authors.0 has no name"),
        ("authors: [{name: A}]\nlicense: {a: b}", "license is {'a': 'b'}; expected a text"),
        ("authors: [{name: A}]\nlicense: [1, [2]]", r"license is \[2\]; expected a text"),
        ("authors: [{name: A}]\nversion: 2026-01-01", "version is .*; expected a text"),
        ("authors: [{name: A}]\ntitle: true", "title is True; expected a text"),
        ("authors: [{name: A}]\ndate-released: 2026-02-30", "isn't YAML: day is out of range"),
        ("authors: [", "isn't YAML"),
        ("[]", r"is \[\]; expected fields"),
        (None, "No such file|needs the file"),
    ],
)
def test_wrong_citation_is_explained(text: str | None, said: str, tmp_path: Path) -> None:
    if text:
        (tmp_path / "CITATION.cff").write_text(text, encoding="utf-8")
    with pytest.raises(ExportError, match=rf"CITATION\.cff|{said}") as caught:
        read_citation(tmp_path, "title", "version", "license")
    assert re.search(said, str(caught.value)) and "\n" not in str(caught.value)


def test_images_that_a_project_names_mnist_are_not_the_hubs_mnist(
    replicated: str, project: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(replicated)) as writable, writable:
        writable.execute("UPDATE datasets SET homepage = 'https://example.org/digits' WHERE name = 'mnist'")
    card = write_card(replicated, project, tmp_path / "hub")
    assert card.data.datasets is None and not card.data.eval_results
    assert not list((tmp_path / "hub").rglob(".eval_results"))


def test_uncertainty_has_one_source_and_details_has_the_error_between_runs(
    clone: Path, published: str, tmp_path: Path
) -> None:
    with open_results(published)() as session:
        write_records(session, clone, tmp_path / "records", ["nmn-mnist", "ninformer-mnist"])
        values = accuracies(session, "nmn-mnist", "yat-mlp")
    (record,) = records_below(tmp_path / "records").values()
    scores = {score["metric_config"]["metric_id"]: score["score_details"] for score in record["evaluation_results"]}
    accuracy, mean, between = scores["accuracy"], statistics.fmean(values), statistics.stdev(values) / math.sqrt(10)
    assert accuracy["score"] == pytest.approx(mean)
    for score in scores.values():
        uncertainty = score["uncertainty"]
        error, interval = uncertainty["standard_error"], uncertainty["confidence_interval"]
        is_sampling = score is accuracy
        assert uncertainty["num_samples"] == (10_000 if is_sampling else 10)
        assert ("training runs" in error["method"]) == ("training runs" in interval["method"]) == (not is_sampling)
        half = stats.norm.ppf(0.975) if is_sampling else stats.t.ppf(0.975, 9)
        assert interval["upper"] - interval["lower"] == pytest.approx(2 * half * error["value"], rel=1e-3)
        assert score["details"]["run_to_run_interval"].endswith("(95 %, Student's t over 10 training runs)")
    assert accuracy["uncertainty"]["standard_error"]["value"] == pytest.approx(math.sqrt(mean * (1 - mean) / 10_000))
    assert float(accuracy["details"]["run_to_run_standard_error"]) == pytest.approx(between)
    assert float(accuracy["details"]["run_to_run_standard_deviation"]) == pytest.approx(statistics.stdev(values))
    assert (accuracy["details"]["training_runs"], accuracy["details"]["test_samples"]) == ("10", "10000")


def test_export_refuses_what_it_cannot_write(
    clone: Path, published: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone)
    monkeypatch.setenv("TRACKIO_DIR", "")  # restored after the test
    monkeypatch.setitem(sys.modules, "trackio", None)
    with open_results(published)() as session:
        for write in (write_records, write_models):
            with pytest.raises(ExportError, match="exists already; name a new folder"):
                write(session, clone, tmp_path, ["nmn-mnist"])
        with pytest.raises(ExportError, match=r"needs the file CITATION\.cff"):
            write_records(session, tmp_path, tmp_path / "x", ["nmn-mnist"])
        with pytest.raises(ExportError, match="no full-length result on real data"):
            write_records(session, clone, tmp_path / "x", ["ninformer-mnist"])
        with pytest.raises(ExportError, match="`claimcheck release"):
            write_models(session, clone, tmp_path / "x", ["nmn-mnist"])
    for words, code, said in (
        (["crate", "x", "nmn-mnist"], 2, "leave their names out"),
        (["trackoi", "x"], 2, "did you mean trackio?"),
        (["trackio", "x"], 1, "pip install trackio"),
        (["trackio", "x", "nmn-minst"], 1, "did you mean nmn-mnist"),
    ):
        assert (main(["export", *words]), said in capsys.readouterr().err) == (code, True), words
    assert not (clone / "x").exists()
    assert not (tmp_path / "x").exists(), "nothing is half written"


@pytest.mark.needs(network=True)
@pytest.mark.timeout(300)
def test_every_eval_ever_accepts_each_record(clone: Path, owners: Path, published: str, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    with open_results(published)() as session:
        write_records(session, clone, folder, load_params(clone).experiments)
    validate = ["-m", "every_eval_ever.validator.cli", "--format", "json", "data/*/*/*/*.json"]
    done = by_owner(owners, folder, *validate)
    reports = json.loads(done.stdout)
    assert done.returncode == 0 and len(reports) == len(records_below(folder)) > 50, done.stdout[-2000:]
    assert {(report["valid"], len(report["warnings"])) for report in reports} == {(True, 0)}
    broken = next(folder.rglob("*.json"))
    broken.write_text(broken.read_text(encoding="utf-8").replace('"lower_is_better"', '"lower"'), encoding="utf-8")
    assert by_owner(owners, folder, *validate).returncode == 1, "it can fail"


@pytest.mark.needs(network=True)
@pytest.mark.timeout(300)
def test_trackio_reads_every_curve_and_page(clone: Path, owners: Path, published: str, tmp_path: Path) -> None:
    folder = tmp_path / "book"
    variables = os.environ | {"PYTHONPATH": f"{owners}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-m", "stages.cli", "export", "trackio", str(folder), "nmn-mnist"]
    done = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = by_owner(owners, folder, "-c", READ_BACK)
    assert read.returncode == 0, read.stderr
    curves, pages = json.loads(read.stdout)
    with open_results(published)() as session:
        rows = session.execute(
            select(Result.run_key, Epoch.epoch, Epoch.train_loss, Epoch.test_accuracy)
            .join(Epoch, Epoch.result_id == Result.id)
            .where(Result.experiment == "nmn-mnist", Result.is_selected)
        ).all()
    logged = {(key, log["step"], log["train_loss"], log["test_accuracy"]) for key in curves for log in curves[key]}
    assert logged == {tuple(row) for row in rows} and len(curves) == 10
    claims = [
        line.split(",")[0] for line in (REPOSITORY / "data" / "claims.csv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    texts = [cell["body"] for page in pages for cell in page["cells"]]
    assert [claim for claim in claims if not any(f"| {claim} |" in text for text in texts)] == []
    assert sum("dashboard" in text for text in texts) == 1


def test_citation_file_is_valid_and_names_this_version() -> None:
    words = ("check-jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff")
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.run([program, *words[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    about = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert f'\nversion = "{about["version"]}"\n' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_archive_of_a_release_exports_without_git(published: str, tmp_path: Path) -> None:
    """As from Zenodo: files in git alone, with their own code."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=REPOSITORY, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip("not a git clone")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "data" / "results.db").symlink_to(published)
    variables = os.environ | {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    command = [sys.executable, "-m", "stages.cli", "export", "every-eval-ever", "records"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(records_below(tmp_path / "records")) > 50

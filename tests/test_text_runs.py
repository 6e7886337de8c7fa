"""A text experiment from params to database: small language models trained on the placeholder grammar."""

import json
import math
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml

from stages.datasets.manifest import Manifest
from stages.datasets.packed import read_tokens
from stages.datasets.prepare import prepare
from stages.evaluate import main as evaluate
from stages.params.experiment import describe_cut, load_params, plan_runs
from stages.recording.builder import record
from stages.runs.evidence import CostLine, ResultLine, read_lines
from tests.project import REPOSITORY, train_here

EXPERIMENT = "nmn-gpt"
WINDOW, WIDTH, DEPTH, VOCABULARY = 32, 16, 2, 300


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment of params/ with small networks, trained and evaluated on placeholder data."""
    folder = tmp_path_factory.mktemp("text")
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    index["experiments"] = {EXPERIMENT: index["experiments"][EXPERIMENT]}
    index["profile"] = "smoke"
    index["profiles"]["smoke"]["roles"] = None
    index["profiles"]["smoke"]["overrides"] |= {
        "epochs": 2,
        "steps_per_epoch": 30,
        "batch_size": 4,
        "observe_test": True,
    }
    experiment = yaml.safe_load((REPOSITORY / "params" / f"{EXPERIMENT}.yaml").read_text(encoding="utf-8"))
    experiment["protocol"]["optimizer"]["lr"] = 0.01
    experiment["protocol"]["schedule"] = {"name": "constant"}
    for arm in ("gpt2", "aether-gpt"):
        experiment["arms"][arm]["model"] |= {
            "vocabulary_size": VOCABULARY,
            "width": WIDTH,
            "depth": DEPTH,
            "num_heads": 2,
        }
    (folder / "params").mkdir()
    (folder / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    (folder / "params" / f"{EXPERIMENT}.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    (folder / "data").mkdir()
    for name in ("claims.csv", "claims-history.jsonl"):
        shutil.copy(REPOSITORY / "data" / name, folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CLAIMCHECK_DEVICE", "cpu")
        params = load_params()
        name = params.experiments[EXPERIMENT].dataset
        prepare(params.datasets[name], Manifest(dataset=name, source="embedded"), folder, Path("data/processed") / name)
        assert train_here(EXPERIMENT) and evaluate([EXPERIMENT]) == 0
        record(Path(), "data/results.db")
    return folder


@pytest.fixture(scope="module")
def results(project: Path) -> dict[str, ResultLine]:
    lines = read_lines(project / "data/results" / f"{EXPERIMENT}.jsonl", ResultLine)
    return {line.arm: line for line in lines}


def test_text_metrics_cover_all_test_windows(project: Path, results: dict[str, ResultLine]) -> None:
    tokens = read_tokens(project / "data/processed/openwebtext", "test")
    windows = (len(tokens) - 1) // WINDOW
    assert sorted(results) == ["aether-gpt", "aether-gpt-dot-attention", "gpt2"]
    for line in results.values():
        metrics = {row.metric: row for row in line.metrics}
        assert metrics["loss"].n == windows * WINDOW
        assert metrics["loss"].value == metrics["validation_loss"].value
        assert metrics["loss"].value == pytest.approx(line.curves[-1].test_loss, rel=1e-5)
        assert metrics["perplexity"].value == pytest.approx(math.exp(metrics["loss"].value))
        assert (line.correct, line.confusion, line.curves[-1].train_accuracy) == (None, None, None)


def test_models_learn_more_than_letter_frequencies(project: Path, results: dict[str, ResultLine]) -> None:
    tokens = read_tokens(project / "data/processed/openwebtext", "test").tokens
    shares = [int((tokens == token).sum()) / len(tokens) for token in set(tokens.tolist())]
    entropy = -sum(share * math.log(share) for share in shares)
    for line in results.values():
        loss = next(row.value for row in line.metrics if row.metric == "validation_loss")
        assert loss < entropy, line.arm


def test_flops_per_token_equal_a_hand_calculation(results: dict[str, ResultLine]) -> None:
    """2 × multiply-accumulates: 12 width² per block, the logits, and over a whole window QKᵀ and its product with V."""
    expected = 2 * (DEPTH * 12 * WIDTH**2 + VOCABULARY * WIDTH) + DEPTH * 4 * WINDOW * WIDTH
    flops = {row.metric: row.value for row in results["gpt2"].metrics}["flops_per_token"]
    assert flops == expected


def test_tokens_per_second_are_windows_times_window_length(project: Path) -> None:
    for line in read_lines(project / "data/results" / f"{EXPERIMENT}.cost.jsonl", CostLine):
        assert line.train_tokens_per_second == WINDOW * line.samples_per_second > 0
        assert line.latency_batch_size == 1


def test_database_has_losses_and_tokens_per_second_but_no_verdicts(project: Path) -> None:
    with sqlite3.connect(project / "data/results.db") as database:
        rates = database.execute("SELECT count(*) FROM costs WHERE train_tokens_per_second > 0").fetchone()
        losses = database.execute("SELECT count(*) FROM metrics WHERE metric = 'validation_loss'").fetchone()
        verdicts = dict(
            database.execute("SELECT claim, status FROM verdicts WHERE claim LIKE 'nmn.gpt.valloss%'").fetchall()
        )
    assert (rates, losses) == ((3,), (3,))
    assert len(verdicts) == 3 and set(verdicts.values()) == {"not tested"}


def test_published_spec_has_the_context_length_and_text_code(project: Path) -> None:
    runs = json.loads((project / "data/runs" / EXPERIMENT / "runs.json").read_text(encoding="utf-8"))["runs"]
    spec = json.loads(
        (project / "data/runs" / EXPERIMENT / runs[0]["run_key"] / "spec.json").read_text(encoding="utf-8")
    )
    assert spec["model"]["arguments"]["context"] == 1024
    assert "stages.training.tokens" in spec["code"] and "stages.training.images" not in spec["code"]


def test_networks_have_their_printed_size_in_every_profile() -> None:
    """124 million parameters, as GPT-2 small; only the placeholder rows are shorter."""
    params = load_params(REPOSITORY)
    experiment = params.experiments[EXPERIMENT]
    source = params.datasets[experiment.dataset]
    printed = {"vocabulary_size": 50_257, "context": 1024, "width": 768, "depth": 12, "num_heads": 12}
    for profile in params.profiles.values():
        for run in plan_runs(experiment, profile, source):
            assert printed.items() <= run.spec.model.arguments.items(), run.name


def test_tokens_seen_equal_those_on_the_authors_pages() -> None:
    params = load_params(REPOSITORY)
    experiment = params.experiments[EXPERIMENT]
    source = params.datasets[experiment.dataset]
    steps = experiment.printed.epochs * math.ceil((source.train - 1) // 1024 / experiment.printed.batch_size)
    assert 2.4e9 <= steps * experiment.printed.batch_size * 1024 <= 2.5e9
    cut = describe_cut(experiment, params.profiles["quick"], source)
    assert cut.startswith("12,500 of 791,015 training windows of 1,024 tokens")

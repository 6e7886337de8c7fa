"""Evaluation: lines are deterministic, the observer and the Predictor agree, and mixed-up data are rejected.

Evaluation is incremental by run and holds one network at a time.  A run that can't be evaluated doesn't block others.
"""

import dataclasses
import gc
import hashlib
import json
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.checkpoint.predictor import Predictor, load_predictor
from stages.datasets.packed import ImageSet, TableSet, TokenSet, read_images
from stages.evaluate import INCOMPLETE, main, metrics_document
from stages.evaluation import experiment as trained_runs
from stages.evaluation.experiment import evaluate_experiment
from stages.evaluation.scores import cut_info, cut_rows
from stages.params.experiment import load_params
from stages.recording.builder import record
from stages.results import open_results
from stages.run import environment_digest
from stages.runs.consistency import find_contradictions
from stages.runs.evidence import CostLine, Measurement, ResultLine, read_lines, unpack_confusion, unpack_correct
from stages.runs.store import seal as seal_outcome
from stages.upkeep.verifying import compare, find_trails, recompute, spot_check
from tests.packed_table import describe
from tests.project import EXPERIMENT, REPOSITORY, edit, make_project, pack_stand_in, train_here

RESULTS = Path("data/results") / f"{EXPERIMENT}.jsonl"
COSTS = Path("data/results") / f"{EXPERIMENT}.cost.jsonl"


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Create a project with trained runs, and a copy in which they are also evaluated."""
    root = tmp_path_factory.mktemp("evaluate")
    make_project(root / "trained", epochs=2)
    with pytest.MonkeyPatch.context() as patch:
        on_cpu(patch, root / "trained")
        assert train_here()
        subprocess.run(["cp", "-a", str(root / "trained"), str(root / "evaluated")], check=True)
        on_cpu(patch, root / "evaluated")
        assert main([EXPERIMENT]) == 0
    return {name: root / name for name in ("trained", "evaluated")}


def on_cpu(patch: pytest.MonkeyPatch, project: Path) -> None:
    patch.chdir(project)
    patch.delenv("CLAIMCHECK_HOME", raising=False)
    patch.setenv("CLAIMCHECK_DEVICE", "cpu")


def copied(project: Path, tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    """Copy the project with its hard links and make the copy the current folder."""
    subprocess.run(["cp", "-a", f"{project}/.", str(tmp_path)], check=True)
    on_cpu(patch, tmp_path)
    return tmp_path


@pytest.fixture
def trained(projects: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return copied(projects["trained"], tmp_path, monkeypatch)


@pytest.fixture
def evaluated(projects: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return copied(projects["evaluated"], tmp_path, monkeypatch)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the run keys of loaded networks, and check that only one is in memory at a time."""
    found: list[str] = []
    networks: list[weakref.ref[Any]] = []

    def load(weights: Path, **options: Any) -> Predictor:
        gc.collect()
        assert not [network for network in networks if network() is not None], "another network is in memory"
        predictor = load_predictor(weights, **options)
        networks.append(weakref.ref(predictor.network))
        found.append(weights.parent.name)
        return predictor

    monkeypatch.setattr(trained_runs, "load_predictor", load)
    return found


def keys() -> dict[str, str]:
    """Run keys by label."""
    return {f"{line.arm}.{line.replicate}": line.run_key for line in read_lines(RESULTS, ResultLine)}


def edit_profile(change: Callable[[Any], None]) -> None:
    edit(Path("params.yaml"), lambda index: change(index["profiles"]["smoke"]))


def test_result_lines_hold_the_measurements_and_are_reproducible(evaluated: Path) -> None:
    first = RESULTS.read_bytes()
    assert main([EXPERIMENT]) == 0
    assert RESULTS.read_bytes() == first
    lines = read_lines(RESULTS, ResultLine)
    labels = read_images(Path("data/processed/mnist"), "test").labels
    assert sorted(line.arm for line in lines) == ["ninformer", "vit"]
    for line in lines:
        metrics = {m.metric: m for m in line.metrics}
        assert line.correct is not None and line.confusion is not None
        correct, confusion = unpack_correct(line.correct, len(labels)), unpack_confusion(line.confusion, 10)
        assert metrics["accuracy"].n == len(labels) == 16
        assert metrics["accuracy"].value == correct.mean() == np.trace(confusion) / len(labels)
        assert (confusion.sum(axis=1) == np.bincount(labels, minlength=10)).all()
        assert metrics["accuracy"].value == line.curves[-1].test_accuracy
        assert metrics["loss"].value == pytest.approx(line.curves[-1].test_loss, rel=1e-5)
        best = max(row.test_accuracy for row in line.curves if row.test_accuracy is not None)
        assert metrics["best_epoch_accuracy"].value == best
        assert line.data.provenance == "embedded"
    costs = read_lines(COSTS, CostLine)
    assert all(line.train_seconds > 0 and line.peak_memory_bytes > 1e7 for line in costs)
    assert all((line.latency_batch_size, line.latency_repeats) == (2, 1) for line in costs)
    assert all(line.latency_seconds_per_sample and line.latency_seconds_per_sample > 0 for line in costs)
    shown = json.loads((Path("data/metrics") / f"{EXPERIMENT}.json").read_text(encoding="utf-8"))
    accuracy = {line.arm: next(m.value for m in line.metrics if m.metric == "accuracy") for line in lines}
    best = {"baseline": accuracy["vit"], "proposed": accuracy["ninformer"]}
    assert shown == {"runs": 2, "metric": "accuracy", **best}
    assert len((Path("data/plots") / f"{EXPERIMENT}.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2 * 2


def test_summary_has_the_best_arm_of_each_role(evaluated: Path) -> None:
    (line, *_) = read_lines(RESULTS, ResultLine)
    errors = {"a": (0.5, 0.3), "b": (0.1, 0.2), "c": (0.3, 0.5), "d": (0.01, 0.01)}
    lines = [
        dataclasses.replace(line, arm=arm, metrics=(Measurement(metric="mse", split="test", value=value, n=9),))
        for arm, values in errors.items()
        for value in values
    ]
    roles = {"a": "baseline", "b": "baseline", "c": "proposed", "d": "ablation"}
    summary = json.loads(metrics_document(lines, roles))
    assert summary == {"runs": 8, "metric": "mse", "baseline": pytest.approx(0.15), "proposed": pytest.approx(0.4)}
    diverged = dataclasses.replace(line, metrics=())
    assert json.loads(metrics_document([diverged], roles)) == {"runs": 1}


def test_changed_test_data_are_rejected(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_stand_in(Path("data/processed/mnist"), "cifar10")
    assert main([EXPERIMENT]) == 1
    stderr = capsys.readouterr().err.splitlines()
    assert len(stderr) == 1, "one line for both runs"
    assert "ninformer.0, vit.0: data/processed/cifar10 has digest" in stderr[0]
    assert f"run `dvc repro train@{EXPERIMENT}` first" in stderr[0]
    assert not RESULTS.exists()


def test_missing_runs_name_the_command_that_trains_them(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lost"]) == 1
    assert "run `dvc repro train@lost` first" in capsys.readouterr().err


def test_cached_measurements_are_reused(trained: Path, loads: list[str]) -> None:
    assert main([EXPERIMENT]) == 0
    first = RESULTS.read_bytes(), COSTS.read_bytes()
    assert sorted(loads) == sorted(keys().values())
    loads.clear()
    RESULTS.unlink()
    assert main([EXPERIMENT]) == 0
    assert loads == []
    assert (RESULTS.read_bytes(), COSTS.read_bytes()) == first, "times are taken from the cache"
    assert main([EXPERIMENT, "--anew"]) == 0
    assert len(loads) == 2
    assert RESULTS.read_bytes() == first[0] and COSTS.read_bytes() != first[1]


def test_only_the_new_replicate_is_evaluated(evaluated: Path, loads: list[str]) -> None:
    before = keys()
    times = {line.run_key: line for line in read_lines(COSTS, CostLine)}
    edit_profile(lambda profile: profile.update(replicates=2))
    assert train_here()
    loads.clear()
    assert main([EXPERIMENT]) == 0
    assert sorted(loads) == sorted(set(keys().values()) - set(before.values()))
    after = {line.run_key: line for line in read_lines(COSTS, CostLine)}
    assert {key: after[key] for key in times} == times
    assert len(after) == 4 and sum(line.latency_repeats is not None for line in after.values()) == 2


def test_new_network_of_one_arm_retimes_all_arms(trained: Path, loads: list[str]) -> None:
    edit_profile(lambda profile: profile["latency"].update(repeats=6))
    assert main([EXPERIMENT]) == 0
    before, line_of_ninformer = keys(), RESULTS.read_text(encoding="utf-8").splitlines()[0]
    times = {line.arm: line.latency_seconds_per_sample for line in read_lines(COSTS, CostLine)}
    edit(
        Path("params") / f"{EXPERIMENT}.yaml", lambda experiment: experiment["arms"]["vit"]["model"].update(mlp_dim=24)
    )
    assert train_here()
    loads.clear()
    assert main([EXPERIMENT]) == 0
    after = keys()
    assert after["vit.0"] != before["vit.0"] and after["ninformer.0"] == before["ninformer.0"]
    assert loads == [after["ninformer.0"], after["vit.0"]] * 3, "three rounds of timing; vit is evaluated in the first"
    assert RESULTS.read_text(encoding="utf-8").splitlines()[0] == line_of_ninformer
    assert all(line.latency_seconds_per_sample != times[line.arm] for line in read_lines(COSTS, CostLine))


def test_changed_timing_settings_retake_only_times(evaluated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = RESULTS.read_bytes()
    edit_profile(lambda profile: profile["latency"].update(repeats=3))
    monkeypatch.setattr("stages.evaluation.experiment.score", None)  # fails if called
    assert main([EXPERIMENT]) == 0
    assert RESULTS.read_bytes() == results
    assert {line.latency_repeats for line in read_lines(COSTS, CostLine)} == {3}


def test_changed_evaluation_code_invalidates_measurements(trained: Path, loads: list[str]) -> None:
    profile = load_params().profile
    for version, expected in (("1", 2), ("1", 0), ("2", 2), ("2", 0)):
        loads.clear()
        found = evaluate_experiment(
            EXPERIMENT, Path("data"), profile, "cpu", lambda model, version=version: {"scores": version}
        )
        assert (len(loads), len(found.kept)) == (expected, 2 if expected == 0 else 0)
        assert not found.faults


def test_changed_test_data_under_the_same_digest_invalidate_measurements(evaluated: Path, loads: list[str]) -> None:
    first = RESULTS.read_bytes()
    path = Path("data/processed/mnist/test.safetensors")
    content = bytearray(path.read_bytes())
    content[-200] ^= 255
    path.write_bytes(content)
    loads.clear()
    assert main([EXPERIMENT]) == 0
    assert len(loads) == 2 and RESULTS.read_bytes() != first


@pytest.mark.parametrize("fault", ["flipped", "cut", "edited", "not JSON"])
def test_damaged_measurement_is_repeated(evaluated: Path, fault: str, loads: list[str]) -> None:
    first = RESULTS.read_bytes()
    kept = Path("data/store/evaluated") / f"{keys()['vit.0']}.json"
    text = kept.read_text(encoding="utf-8")
    value = json.loads(text)["measured"]["metrics"][0]["value"]
    damaged = {
        "flipped": text.replace('"accuracy"', '"accuracx"', 1),
        "cut": text[: len(text) // 2],
        "edited": text.replace(f'"value": {value}', '"value": 0.9999', 1),
        "not JSON": "",
    }[fault]
    assert damaged != text
    kept.write_text(damaged, encoding="utf-8")
    loads.clear()
    assert main([EXPERIMENT]) == 0
    assert loads == [keys()["vit.0"]]
    assert RESULTS.read_bytes() == first and kept.read_text(encoding="utf-8") == text


def test_damaged_run_does_not_block_others_and_is_evaluated_next_time(
    evaluated: Path, loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = RESULTS.read_bytes()
    damaged = keys()["vit.0"]
    weights = Path("data/runs") / EXPERIMENT / damaged / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    capsys.readouterr()
    assert main([EXPERIMENT]) == INCOMPLETE
    stderr = capsys.readouterr().err.splitlines()
    assert stderr[0].startswith(
        f"evaluate@{EXPERIMENT}: vit.0: data/runs/{EXPERIMENT}/{damaged}: weights.safetensors is"
    )
    assert stderr[0].endswith(f"; `dvc repro train@{EXPERIMENT}` trains it again")
    assert len(stderr) == 2 and "1 of 2 runs are in data/results" in stderr[1]
    assert [line.arm for line in read_lines(RESULTS, ResultLine)] == ["ninformer"]
    assert [line.arm for line in read_lines(COSTS, CostLine)] == ["ninformer"]
    assert train_here()
    assert main([EXPERIMENT]) == 0
    assert RESULTS.read_bytes() == whole


def test_failed_training_does_not_block_other_runs(
    evaluated: Path, loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arm = Path("params") / f"{EXPERIMENT}.yaml"
    edit(arm, lambda experiment: experiment["arms"]["vit"]["model"].update(num_heads=3))  # 3 doesn't divide 16
    assert not train_here()
    loads.clear()
    capsys.readouterr()
    assert main([EXPERIMENT]) == INCOMPLETE
    stderr = capsys.readouterr().err
    assert f"vit.0: has no outcome; `dvc repro train@{EXPERIMENT}` trains it" in stderr
    assert list(keys()) == ["ninformer.0"] and loads == [keys()["ninformer.0"]], "ninformer is timed without vit"
    edit(arm, lambda experiment: experiment["arms"]["vit"]["model"].update(num_heads=4))
    assert train_here()
    loads.clear()
    assert main([EXPERIMENT]) == 0
    assert list(keys()) == ["ninformer.0", "vit.0"]


def test_network_that_fails_on_test_data_does_not_block_others(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probabilities = Predictor.probabilities

    def run_out_of_memory(predictor: Predictor, *arguments: Any, **options: Any) -> np.ndarray:
        if predictor.contract.model.path.endswith(":ViT"):
            raise RuntimeError("CUDA out of memory.\nTried to allocate 20 GiB")
        return probabilities(predictor, *arguments, **options)

    monkeypatch.setattr(Predictor, "probabilities", run_out_of_memory)
    assert main([EXPERIMENT]) == INCOMPLETE
    assert f"evaluate@{EXPERIMENT}: vit.0: CUDA out of memory." in capsys.readouterr().err.splitlines()
    assert list(keys()) == ["ninformer.0"]
    monkeypatch.setattr(Predictor, "probabilities", probabilities)
    assert main([EXPERIMENT]) == 0
    assert list(keys()) == ["ninformer.0", "vit.0"]


def test_contradictory_result_is_not_written(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outcomes of older versions have no digest of all files, so only a contradiction shows the change."""
    folder = next(
        path.parent
        for path in (Path("data/runs") / EXPERIMENT).glob("*/spec.json")
        if json.loads(path.read_text(encoding="utf-8"))["model"]["path"].endswith(":ViT")
    )
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    del result["outcome_sha256"]
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    rows[-1]["test_accuracy"] = 1.5
    for name, text in (("result.json", json.dumps(result)), ("history.jsonl", "\n".join(map(json.dumps, rows)) + "\n")):
        (folder / name).unlink()
        (folder / name).write_text(text, encoding="utf-8")
    assert main([EXPERIMENT]) == INCOMPLETE
    stderr = capsys.readouterr().err
    assert f"evaluate@{EXPERIMENT}: vit.0: contradicts itself: test_accuracy of epoch 2 isn't a share" in stderr
    assert list(keys()) == ["ninformer.0"]


def test_result_of_a_partial_test_set_is_labelled(trained: Path) -> None:
    edit_profile(lambda profile: profile["overrides"].update(observe_test=False))
    assert train_here() and main([EXPERIMENT]) == 0
    whole = {line.arm: line for line in read_lines(RESULTS, ResultLine)}
    edit_profile(lambda profile: profile.update(test_rows=6))
    assert train_here() and main([EXPERIMENT]) == 0
    chosen = np.linspace(0, 15, 6).astype(int)
    for line in read_lines(RESULTS, ResultLine):
        before = whole[line.arm]
        assert line.run_key == before.run_key, "the training is the same"
        assert line.cut.endswith("6 of 10,000 test images, 1 of 5 replicates") and line.cut != before.cut
        assert (line.data.test_images, line.data.excluded_test_images) == (6, 10)
        metrics = {metric.metric: metric for metric in line.metrics}
        assert line.correct is not None and before.correct is not None and metrics["accuracy"].n == 6
        correct = unpack_correct(before.correct, 16)[chosen]
        assert (unpack_correct(line.correct, 6) == correct).all() and metrics["accuracy"].value == correct.mean()
        assert find_contradictions(line) == []
        weights = Path("data/runs") / EXPERIMENT / line.run_key / "weights.safetensors"
        assert list(compare(line, recompute(weights, Path("data/processed/mnist"), line))) == []
        assert list(spot_check(weights, Path("data/processed/mnist"), line)) == []


def test_verify_finds_changed_costs_and_weights(trained: Path) -> None:
    for name in ("claims.csv", "claims-history.jsonl"):
        shutil.copy(REPOSITORY / "data" / name, trained / "data")
    assert main([EXPERIMENT]) == 0

    def verified() -> list[str]:
        record(trained, "data/results.db")
        with open_results("data/results.db")() as session:
            return [trail.links[-1].detail for trail in find_trails(trained, session)]

    assert verified() == ["from bitmap and curves, and from the weights on 16 test samples"] * 2
    honest, costs = COSTS.read_bytes(), [json.loads(text) for text in COSTS.read_bytes().splitlines()]
    for cost in costs:
        cost["epoch_seconds"] = [round(seconds / 10, 4) for seconds in cost["epoch_seconds"]]
        cost["train_seconds"] = sum(cost["epoch_seconds"])
    COSTS.write_text("".join(f"{json.dumps(cost)}\n" for cost in costs), encoding="utf-8")
    assert [detail.split(" not those of ")[0] for detail in verified()] == ["its train_seconds"] * 2
    COSTS.write_bytes(honest)
    results = RESULTS.read_bytes()
    files = {path: [json.loads(text) for text in path.read_bytes().splitlines()] for path in (RESULTS, COSTS)}
    for line, cost in zip(*files.values(), strict=True):
        line["environment"]["threads"] = 77
        line["environment_digest"] = cost["environment_digest"] = environment_digest(line["environment"])
    for path, lines in files.items():
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert [detail.split(" data/")[0] for detail in verified()] == ["its environment is not that of"] * 2
    COSTS.write_bytes(honest)
    RESULTS.write_bytes(results)
    for line in read_lines(RESULTS, ResultLine):  # a forger reseals them
        folder = Path("data/runs") / EXPERIMENT / line.run_key
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        weights = files["weights.safetensors"]
        header = 8 + int.from_bytes(weights[:8], "little")
        weights = weights[:header] + (-np.frombuffer(weights[header:], np.float32)).tobytes()
        digest = hashlib.sha256(weights).hexdigest()
        result = json.loads(files["result.json"]) | {"weights_sha256": digest}
        files |= {"weights.safetensors": weights, "result.json": json.dumps(result).encode()}
        for name, content in seal_outcome(files).items():
            (folder / name).chmod(0o644)
            (folder / name).write_bytes(content)
        text = RESULTS.read_text(encoding="utf-8").replace(str(line.weights_sha256), digest)
        RESULTS.write_text(text, encoding="utf-8")
    assert all("images are right in the bitmap and wrong by the weights" in detail for detail in verified())


@pytest.mark.parametrize("kind", ["images", "table", "text"])
def test_part_of_real_data_is_a_subset(kind: str) -> None:
    rows, shape = {
        "images": (ImageSet(np.zeros((100, 1, 2, 2), np.uint8), np.arange(100)), (1, 2, 2)),
        "table": (TableSet(np.zeros((100, 3), np.float32), np.arange(100, dtype=np.float32)), (3,)),
        "text": (TokenSet(np.arange(100, dtype=np.uint16)), (8,)),
    }[kind]
    real = {"provenance": "full", "source": "official", "test_images": 100, "excluded_test_images": 3}
    info = describe("d", kind=kind, shape=shape, **real)
    assert cut_info(info, None) == cut_info(info, 100) == info
    cut = cut_info(info, 5)
    kept = 41 if kind == "text" else 5  # five windows of eight tokens, plus the token that the last one predicts
    assert (cut.test_images, cut.excluded_test_images, cut.provenance) == (kept, 103 - kept, "subset")
    part = cut_rows(rows, kept)
    last = {"images": "labels", "table": "targets", "text": "tokens"}[kind]
    expected = np.arange(41) if kind == "text" else [0, 24, 49, 74, 99]
    assert getattr(part, last).tolist() == list(expected) and len(part) == kept


GUEST = """
import os, sys
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))

    def forward(self, images):
        if fault := os.environ.get("FAULT"):
            raise {"KeyError": KeyError("lost"), "SystemExit": SystemExit(0), "OSError": OSError("lost")}[fault]
        os.chdir("/")
        os.environ["CLAIMCHECK_HOME"] = "/elsewhere"
        sys.stdout.close()
        sys.stderr.close()
        return self.layers(images)
"""


def test_what_a_network_does_to_the_process_is_undone_and_its_faults_are_its_own(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (trained / "guest_net.py").write_text(GUEST, encoding="utf-8")
    monkeypatch.syspath_prepend(trained)
    arm = {"role": "proposed", "title": "guest", "model": {"name": "guest_net:Net"}}
    edit(Path("params") / f"{EXPERIMENT}.yaml", lambda experiment: experiment["arms"].update(guest=arm))
    variables = dict(os.environ)
    assert train_here() and main([EXPERIMENT]) == 0
    assert (Path.cwd(), dict(os.environ)) == (trained, variables)
    assert "guest.0: accuracy" in capfd.readouterr().out
    faults = {"KeyError": "KeyError: 'lost'", "SystemExit": "SystemExit: 0", "OSError": "OSError: lost"}
    for fault, words in faults.items():
        monkeypatch.setenv("FAULT", fault)
        assert main([EXPERIMENT, "--anew"]) == INCOMPLETE
        assert f"guest.0: its network fails: {words}; guest_net.py, line" in capfd.readouterr().err
        assert {line.arm for line in read_lines(RESULTS, ResultLine)} == {"vit", "ninformer"}

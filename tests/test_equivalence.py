"""A refactoring keeps its evidence only if it is shown to change no number."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.ops.fast import cpp, dropout
from stages.params.experiment import load_params, plan_runs
from stages.run import AugmentationSpec, ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, canonical_json
from stages.runs.equivalence import PATH, Equivalences, read_equivalences
from stages.runs.evidence import EvidenceError, seal
from stages.runs.fingerprint import kind_of, source_digest
from stages.scheduling.runner import cached_keys
from stages.upkeep import driver
from tests.preloaded import python
from tests.project import EXPERIMENT, REPOSITORY, copy_stages, environment, git, make_project, shown_same

IGNORED = (
    "data/store/\ndata/runs/\ndata/processed/\ndata/results*\ndata/flops*\ndata/metrics/\ndata/plots/\n__pycache__/\n"
)


def ask(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m …` with the project's own code, in forks that both sides of a comparison use as well."""
    return python("-m", *arguments, cwd=project, env=environment() | {"PYTHONPATH": str(project)}, forks_too=True)


def commit(project: Path, what: str) -> str:
    git(project, "add", "-A")
    git(project, "commit", "-qm", what)
    return git(project, "rev-parse", "HEAD")


def rewrite(project: Path, *files: tuple[str, str, str]) -> None:
    for name, old, new in files:
        path = project / "stages" / name
        source = path.read_text(encoding="utf-8")
        assert old in source, f"{name} lacks {old!r}"
        path.write_text(source.replace(old, new), encoding="utf-8")


def rename_a_module(project: Path) -> None:
    """Rename `stages.training.tf32` to `rounding`, including its imports."""
    folder = project / "stages" / "training"
    (folder / "tf32.py").rename(folder / "rounding.py")
    for name in ("training/loop.py", "training/stacked.py", "worker.py"):
        rewrite(project, (name, "stages.training.tf32", "stages.training.rounding"))


def rename_a_function(project: Path) -> None:
    for name in ("training/protocol.py", "training/loop.py", "training/stacked.py"):
        rewrite(project, (name, "learning_rate", "rate_of_step"))


def change_a_number(project: Path) -> None:
    rewrite(project, ("training/protocol.py", "spec.weight_decay", "(spec.weight_decay + 1e-6)"))


def change_a_fast_path(project: Path) -> None:
    """Make the fast dropout keep fewer values without failing its own check."""
    name = "ops/fast/dropout.py"
    rewrite(project, (name, "* 2**53)", "* 2**52)"), (name, "return agrees_here(", "return True or agrees_here("))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git project with its own code and two trained runs."""
    project = make_project(tmp_path_factory.mktemp("trained") / "project", epochs=1, steps_per_epoch=2)
    copy_stages(project)
    (project / ".gitignore").write_text(IGNORED, encoding="utf-8")
    git(project, "init", "-q")
    commit(project, "old")
    done = ask(project, "stages.train", EXPERIMENT)
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture(scope="module")
def renamed(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The project with a module renamed and shown equivalent, and the command's output."""
    project = copy(trained, tmp_path_factory.mktemp("renamed"))
    rename_a_module(project)
    commit(project, "a better name")
    done = ask(project, "stages.cli", "equivalent", "HEAD~1", "--steps", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    return project, done.stdout


def in_store(project: Path) -> int:
    """Count the experiment's runs that `claimcheck plan` reports as done."""
    (line,) = json.loads(ask(project, "stages.cli", "plan", "--json").stdout)["experiments"]
    assert line["experiment"] == EXPERIMENT
    return line["in_store"]


def copy(project: Path, folder: Path) -> Path:
    shutil.copytree(project, folder / "project", symlinks=True)
    return folder / "project"


@pytest.mark.slow
def test_renamed_module_keeps_its_outcomes_once_shown_equivalent(renamed: tuple[Path, str], tmp_path: Path) -> None:
    project, said = renamed
    (line,) = read_equivalences(project).lines
    (vit, ninformer) = sorted((one for proof in line.proofs for one in proof.compared), key=lambda one: one.model)[::-1]
    assert (vit.model, vit.kind, vit.precision) == ("stages.papers.ninformer.vit:ViT", "images", "float32")
    assert vit.steps == ninformer.steps == {"4": 4, "16": 2} and sorted(vit.state) == ["1", "2"], "two steps per epoch"
    modules = line.proofs[0].modules
    assert modules["stages.training.tf32"][1] is None and modules["stages.training.rounding"][0] is None
    before, after = modules["stages.training.loop"]
    assert before != after and None not in (before, after)
    assert (line.before, line.after) == (git(project, "rev-parse", "HEAD~1"), git(project, "rev-parse", "HEAD"))
    assert "a line with 2 paths; commit it" in said
    project = copy(project, tmp_path)
    assert "nothing to compare" in ask(project, "stages.cli", "equivalent", "HEAD~1").stdout
    again = ask(project, "stages.cli", "equivalent", "HEAD~1", "--steps", "2", "--again")
    assert "2 paths give the same; nothing is written" in again.stdout and len(read_equivalences(project).lines) == 1
    done = ask(project, "stages.train", EXPERIMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of older code that gives the same by line 1 of equivalences.jsonl") == 2, done.stdout
    assert "2 runs, 2 from the store, 0 to train" in done.stdout
    done = ask(project, "stages.evaluate", EXPERIMENT)
    assert done.returncode == 0, done.stderr
    lines = [
        json.loads(text)
        for text in (project / f"data/results/{EXPERIMENT}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert all("stages.training.protocol" in line["spec"]["code"] for line in lines), "the training's environment"
    assert in_store(project) == 2
    (project / PATH).unlink()
    assert in_store(project) == 0, "no line, no equivalence"
    refused = ask(project, "stages.evaluate", EXPERIMENT)
    assert refused.returncode == 1 and "was trained by code that differs from the code here" in refused.stderr


@pytest.mark.slow
@pytest.mark.skipif(cpp.load_library(dropout._SOURCE) is None, reason="no C++ compiler here")
def test_changed_fast_path_is_excluded_only_on_request(trained: Path, tmp_path: Path) -> None:
    project = copy(trained, tmp_path)
    shutil.rmtree(next((project / "data/store/runs").iterdir()))  # one path is compared in half the time
    change_a_fast_path(project)
    rename_a_function(project)
    assert "nothing to compare" in ask(project, "stages.cli", "equivalent", "HEAD").stdout, "only commits count"
    commit(project, "a better name, and another fast path")
    refused = ask(project, "stages.cli", "equivalent", "HEAD~1", "--steps", "4")
    assert refused.returncode == 1 and "is another run with the code of" in refused.stderr, refused.stderr
    assert "nothing is written" in refused.stderr and not (project / PATH).exists()
    done = ask(project, "stages.cli", "equivalent", "HEAD~1", "--steps", "4", "--plain")
    assert done.returncode == 0, done.stderr
    (line,) = read_equivalences(project).lines
    assert all(compared.is_plain for proof in line.proofs for compared in proof.compared)


@pytest.mark.slow
def test_forged_line_is_refused_and_has_no_effect_if_resealed(renamed: tuple[Path, str], tmp_path: Path) -> None:
    project = copy(renamed[0], tmp_path)
    line = json.loads((project / PATH).read_text(encoding="utf-8"))
    (project / PATH).write_text(canonical_json(line | {"made": "2020-01-01T00:00:00Z"}) + "\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"equivalences\.jsonl, line 1: its digest is .* it was changed after"):
        read_equivalences(project)
    refused = ask(project, "stages.train", EXPERIMENT)
    assert refused.returncode == 1 and "equivalences.jsonl, line 1: its digest is" in refused.stderr
    assert "Traceback" not in refused.stderr
    for proof in line["proofs"]:  # the chain no longer starts at the code that trained the outcome
        proof["modules"]["stages.training.loop"][0] = "0" * 16
    (project / PATH).write_text(canonical_json(seal(line)) + "\n", encoding="utf-8")
    assert in_store(project) == 0


COMPARE_AGAIN = """
import json
from pathlib import Path
from stages.params.experiment import load_params
from stages.upkeep.proving import compare_again
print(json.dumps([*compare_again(Path(), load_params())]))
"""


@pytest.mark.slow
def test_hand_written_line_is_refuted_by_retraining_with_spec_step_and_tensor(
    renamed: tuple[Path, str], tmp_path: Path
) -> None:
    project = copy(renamed[0], tmp_path)
    line = json.loads((project / PATH).read_text(encoding="utf-8"))
    change_a_number(project)
    commit(project, "a number")
    changed = source_digest((project / "stages/training/protocol.py").read_text(encoding="utf-8"))
    for proof in line["proofs"]:
        modules = {name: [after, after] for name, (_, after) in proof["modules"].items() if after}
        modules["stages.training.protocol"][1] = changed
        proof["modules"] = modules
    line |= {"before": git(project, "rev-parse", "HEAD~1"), "after": git(project, "rev-parse", "HEAD")}
    with (project / PATH).open("a", encoding="utf-8") as file:
        file.write(canonical_json(seal(line)) + "\n")
    assert read_equivalences(project).hold([1, 2]), "git has both sides of the line"
    done = python("-c", COMPARE_AGAIN, cwd=project, env=environment() | {"PYTHONPATH": str(project)}, forks_too=True)
    assert done.returncode == 0, done.stderr
    (first, _), (second, detail) = json.loads(done.stdout)
    assert (first, second) == (True, False)
    is_named = r"line 2: .*\((ViT|NiNformer), images, float32, adam\), with 1 thread and batches of 4, is another run"
    assert re.search(is_named, detail) and re.search(r": step 1: tensor [a-z_.0-9]+\.(weight|bias)", detail), detail


SPEC = RunSpec(
    model=ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"depth": 2, "dropout": 0.1}),
    protocol=Protocol(
        optimizer=OptimizerSpec(name="adam", lr=0.001), batch_size=128, epochs=3, mean=(0.5,), std=(0.5,)
    ),
    data_digest="d",
    replicate=Replicate(seed=0),
    code={"a": "1", "b": "1"},
)
CPU = {"device": "cpu", "threads": 1}


def proven(*steps: dict[str, tuple[str | None, str | None]]) -> Equivalences:
    """One line per change, each proven on the path of `SPEC`."""
    return Equivalences([shown_same(SPEC.run_key, SPEC.to_dict(), step) for step in steps])


def test_tree_older_than_fingerprints_fails_instead_of_lacking_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.fingerprint("images", "stages.papers.none.no:Model", "adam") is None
    monkeypatch.setitem(sys.modules, "stages.runs.fingerprint", None)
    with pytest.raises(ModuleNotFoundError):
        driver.fingerprint("images", "stages.papers.ninformer.vit:ViT", "adam")


def test_chains_compare_whole_fingerprints() -> None:
    lines = proven({"a": ("1", "2"), "b": ("1", "1")}, {"a": ("2", None), "b": ("1", "1"), "c": (None, "1")})
    spec = SPEC.to_dict()
    assert lines.chain(spec, CPU, {"a": "1", "b": "1"}) == ()
    assert lines.chain(spec, CPU, {"a": "2", "b": "1"}) == (1,)
    assert lines.chain(spec, CPU, {"b": "1", "c": "1"}) == (1, 2)
    assert lines.chain(spec, CPU, {"b": "2", "c": "1"}) is None, "another module changed as well"
    assert lines.chain(spec | {"code": {"a": "1", "b": "0"}}, CPU, {"a": "2", "b": "1"}) is None
    assert proven().chain(spec, CPU, {"b": "1", "c": "1"}) is None
    today = dataclasses.replace(SPEC, code={"b": "1", "c": "1"})
    assert [cached.run_key for cached in cached_keys(today, lines)] == [
        today.run_key,
        dataclasses.replace(SPEC, code={"a": "2", "b": "1"}).run_key,
        SPEC.run_key,
    ]
    assert [cached.run_key for cached in cached_keys(today, proven())] == [today.run_key]


@pytest.mark.parametrize(
    ("change", "is_covered"),
    [
        ({"replicate": Replicate(seed=7)}, True),
        ({"data_digest": "other"}, True),
        ({"protocol": dataclasses.replace(SPEC.protocol, epochs=300, batch_size=64)}, True),
        ({"protocol": dataclasses.replace(SPEC.protocol, precision="bfloat16")}, False),
        ({"protocol": dataclasses.replace(SPEC.protocol, optimizer=OptimizerSpec(name="sgd", lr=0.1))}, False),
        ({"protocol": dataclasses.replace(SPEC.protocol, augmentation=AugmentationSpec(crop_padding=4))}, False),
        ({"protocol": dataclasses.replace(SPEC.protocol, train_images=100)}, False),
        ({"replicate": Replicate(seed=0, fold=1)}, False),
        ({"model": ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"depth": 4, "dropout": 0.5})}, True),
        ({"model": ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"depth": 2, "dropout": 0.0})}, False),
        ({"model": ModelSpec(path="stages.papers.ninformer.vit:Other", arguments={"depth": 2, "dropout": 0.1})}, False),
    ],
)
def test_line_covers_only_the_paths_that_it_ran(change: dict[str, Any], is_covered: bool) -> None:
    lines, after = proven({"a": ("1", "2"), "b": ("1", "1")}), {"a": "2", "b": "1"}
    spec = dataclasses.replace(SPEC, **change).to_dict()
    assert lines.chain(spec, CPU, after) == ((1,) if is_covered else None)


@pytest.mark.parametrize(
    "environment", [{"device": "cuda"}, CPU | {"stacked": "0" * 12}, CPU | {"data_parallel": {}}, {}]
)
def test_line_proven_on_cpu_covers_only_single_cpu_trainings(environment: dict[str, Any]) -> None:
    lines = proven({"a": ("1", "2"), "b": ("1", "1")})
    assert lines.chain(SPEC.to_dict(), environment, {"a": "2", "b": "1"}) is None


def test_spec_determines_the_kind_of_data() -> None:
    params = load_params(REPOSITORY)
    for experiment in params.experiments.values():
        source = params.datasets[experiment.dataset]
        for planned in plan_runs(experiment, params.profiles["paper"], source, every_role=True):
            assert kind_of(planned.spec.to_dict()) == source.kind, experiment.name

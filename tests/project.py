"""A small project ready to train: one experiment with two tiny arms on packed placeholder data."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from stages import analyse
from stages.datasets.prepare import class_names, compose_stand_in
from stages.papers.finding import Finding
from stages.params.experiment import load_params, merge, read_files
from stages.run import ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec
from stages.runs.equivalence import Compared, EquivalenceLine, Proof, path_of
from stages.runs.store import Attempt, RunStore
from stages.scheduling.leases import Leases
from stages.scheduling.runner import train_experiment
from tests.packed_table import pack_images
from tests.preloaded import python

REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = "tiny-mnist"
MARGINS = load_params(REPOSITORY).verdicts.margins


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a YAML file in place."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def whole_file(experiment: str, root: Path = REPOSITORY) -> dict[str, Any]:
    """Return an experiment's parameters, merged with the file that it inherits from."""
    names = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))["experiments"]
    whole: dict[str, Any] = merge(read_files(root, names), experiment, root / "params" / f"{experiment}.yaml")
    return whole


def make_project(folder: Path, *, epochs: int = 3, steps_per_epoch: int | None = 4, slots: int = 1) -> Path:
    """Write parameters and packed data to `folder`; the code stays in the repository."""
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    index["profiles"]["smoke"]["overrides"] = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "batch_size": 16}
    index["profiles"]["smoke"]["slots"] = slots
    index["experiments"] = {EXPERIMENT: {"paper": "ninformer", "dataset": "mnist"}}
    index["profile"] = "smoke"
    experiment = whole_file("ninformer-mnist")
    tiny = {"patch_size": 7, "dim": 16, "depth": 1, "dropout": 0.5}
    experiment["arms"] = {
        "vit": {"role": "baseline", "title": "ViT", "model": {"name": "ViT", "num_heads": 2, "mlp_dim": 16, **tiny}},
        "ninformer": {
            "role": "proposed",
            "title": "NiNformer",
            "model": {"name": "NiNformer", "mlp_dim": 16, "token_dim": 8, "channel_dim": 16, **tiny},
        },
    }
    (folder / "params").mkdir(parents=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    (folder / "params" / f"{EXPERIMENT}.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    pack_stand_in(folder / "data" / "processed" / "mnist", "mnist")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git with a configured user and return its output."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def copy_stages(project: Path) -> Path:
    """Copy the code into the project."""
    shutil.copytree(REPOSITORY / "stages", project / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    return project


NEVER_TRAINED = Protocol(optimizer=OptimizerSpec(name="sgd", lr=0.1), batch_size=1, epochs=1)


def make_spec(
    path: str = "m:M",
    arguments: Mapping[str, Any] | None = None,
    protocol: Protocol = NEVER_TRAINED,
    *,
    digest: str = "",
    seed: int = 0,
) -> RunSpec:
    """Return the spec of a run, without digests of its code."""
    model = ModelSpec(path=path, arguments=arguments or {})
    return RunSpec(model=model, protocol=protocol, data_digest=digest, replicate=Replicate(seed=seed), code={})


def shown_same(
    run_key: str, spec: Mapping[str, Any], modules: Mapping[str, tuple[str | None, str | None]], **fields: str
) -> EquivalenceLine:
    """Return a line that records the change of these modules as equivalent on this run's path."""
    compared = Compared(
        run="toy.vit.0",
        run_key=run_key,
        path=path_of(spec),
        model=spec["model"]["path"],
        kind="images",
        precision="float32",
        optimizer="adam",
        is_stacked=False,
        data="d",
        steps={"1": 1},
        state={"1": "0"},
    )
    known: dict[str, Any] = {"before": "0" * 40, "after": "1" * 40, "made": "", "machine": {}, "versions": {}}
    return EquivalenceLine(device="cpu", proofs=(Proof(modules=modules, compared=(compared,)),), **known | fields)


def pack_stand_in(folder: Path, dataset: str) -> None:
    """Pack the placeholder data of a data set."""
    source = load_params(REPOSITORY).datasets[dataset]
    train, test = compose_stand_in(dataset, source.shape, source.classes)
    pack_images(folder, dataset, train, test, class_names(source.classes))


def captured(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with its output, and don't check its exit code."""
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", check=False)


def environment() -> dict[str, str]:
    """Return this process's environment plus our code and one thread, so that results don't depend on load."""
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "CLAIMCHECK_DEVICE": "cpu"}


def start_training(project: Path, *options: str) -> subprocess.Popen[str]:
    return start_module(project, environment(), "stages.train", EXPERIMENT, *options)


def start_module(folder: Path, variables: dict[str, str], *command: str) -> subprocess.Popen[str]:
    """Start `python -m …` in its own process group with captured output."""
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def train(project: Path, *options: str) -> str:
    """Train to the end and return the output."""
    done = python("-m", "stages.train", EXPERIMENT, *options, cwd=project, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train_here(experiment: str = EXPERIMENT, **options: Any) -> bool:
    """Train to the end in this process, in the current folder and on its CPU unless `options` differ."""
    usual: dict[str, Any] = {"devices": ["cpu"], "report": lambda event: None, "stop": threading.Event()}
    return train_experiment(experiment, load_params(), **usual | options)


def outcomes(project: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return (history, weights) of each published run by key; interruptions must not change these."""
    return {
        folder.name: ((folder / "history.jsonl").read_bytes(), (folder / "weights.safetensors").read_bytes())
        for folder in sorted((project / "data" / "store" / "runs").iterdir())
    }


def saved_states(project: Path) -> list[Path]:
    """List the states of unfinished trainings."""
    return list((project / "data" / "store" / "work").glob("*/resume.pt"))


def attempts(project: Path) -> dict[str, list[Attempt]]:
    """Return the attempts to train each run that was ever claimed, by key."""
    store = RunStore(project / "data" / "store")
    return {path.stem: Leases(store).attempts(path.stem) for path in store.root.glob("leases/*.json")}


def ends(project: Path) -> list[list[tuple[str | None, str]]]:
    """Return how and why the attempts of each run ended."""
    return sorted([(one.end, one.reason) for one in of_run] for of_run in attempts(project).values())


@cache
def computed_findings() -> dict[str, Finding]:
    """Findings of the five papers by claim; computing them takes seconds, so each process does it once."""
    found = (import_module(f"stages.papers.{paper}.findings").findings(MARGINS) for paper in analyse.papers())
    return {finding.claim: finding for findings in found for finding in findings}

"""Influences on a run's numbers that its key doesn't cover are recorded in the result's environment."""

import base64
import hashlib
import importlib
import json
import re
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from stages import LOADED
from stages.datasets.prepare import class_names
from stages.params.experiment import load_params, plan_runs
from stages.results import Result
from stages.runs.consistency import compare_canaries
from stages.training import process
from stages.training.canary import VARIES, Canary, canary_of
from stages.upkeep.verifying import check_environment
from tests.packed_table import describe
from tests.project import EXPERIMENT, REPOSITORY, captured, edit, environment, make_project, whole_file

HYPERBF = "tiny-hyperbf"
HALVED = "import torch.nn.functional as F\nplain = F.gelu\nF.gelu = lambda x, **options: plain(x, **options) / 2\n"


class Trained(NamedTuple):
    key: str
    weights: bytes
    environment: Mapping[str, Any]
    digest: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose ViT has a GELU and whose HyperBF uses attention in C++."""
    folder = make_project(tmp_path_factory.mktemp("ran") / "project", epochs=3, steps_per_epoch=8)
    experiment = whole_file("hyperbf-cifar10")
    tiny = {"patch_size": 7, "dim": 16, "depth": 1, "num_heads": 2, "num_centers": 8}
    arm = experiment["arms"]["hyperbf"]
    experiment["arms"] = {"hyperbf": arm | {"role": "baseline", "model": arm["model"] | tiny}}
    experiment["protocol"] |= {"mean": [0.5], "std": [0.5]}
    (folder / "params" / f"{HYPERBF}.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    about = {"paper": "hyperbf", "dataset": "mnist"}
    edit(folder / "params.yaml", lambda index: index["experiments"].update({HYPERBF: about}))
    edit(folder / "params" / f"{EXPERIMENT}.yaml", lambda content: content["arms"].pop("ninformer"))
    return folder


def train(project: Path, experiment: str, store: Path, **variables: str) -> Trained:
    """Train the experiment's first run in a new process with an empty store."""
    shutil.rmtree(project / "data" / "runs", ignore_errors=True)
    done = captured(
        [sys.executable, "-m", "stages.train", experiment],
        cwd=project,
        env=environment() | {"CLAIMCHECK_STORE": str(store), "XDG_CACHE_HOME": str(project / "cache")} | variables,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (path.parent for path in store.glob("runs/*/result.json"))
    result = json.loads((folder / "result.json").read_bytes())
    weights = (folder / "weights.safetensors").read_bytes()
    return Trained(folder.name, weights, result["environment"], result["environment_digest"])


@pytest.fixture(scope="module")
def usual(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trained]:
    return {name: train(project, name, tmp_path_factory.mktemp("store")) for name in (EXPERIMENT, HYPERBF)}


def change_library(project: Path, folder: Path) -> dict[str, str]:
    """Change one constant of e^x in a copy of the compiled attention."""
    cache = Path(shutil.copytree(project / "cache", folder / "cache"))
    (library,) = cache.glob("claimcheck/attention-*.so")
    constant = struct.pack("<f", 1.6666665459e-1)
    content = library.read_bytes()
    assert constant in content
    library.write_bytes(content.replace(constant, struct.pack("<f", 1.6e-1)))
    return {"XDG_CACHE_HOME": str(cache)}


def change_source(project: Path, folder: Path) -> dict[str, str]:
    """Change the fast path's module, which no key includes, in a copy of the code."""
    shutil.copytree(REPOSITORY / "stages", folder / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "stages" / "ops" / "fast" / "attention.py"
    source = module.read_text(encoding="utf-8")
    assert source.count("    return out, kept\n") == 1
    module.write_text(source.replace("    return out, kept\n", "    return out.mul_(1.01), kept\n"), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def halve_gelu(project: Path, folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(HALVED, encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{REPOSITORY}"}


ATTENTION = {f"fast_paths.attention.{part}" for part in ("module", "source", "library")}
Change = Callable[[Path, Path], dict[str, str]]
ROWS: dict[str, tuple[str, Change, set[str]]] = {
    "no compiler": (
        HYPERBF,
        lambda project, folder: {"CXX": "/bin/false"},
        ATTENTION,
    ),
    "source": (HYPERBF, change_source, {"fast_paths.attention.module"}),
    "library": (HYPERBF, change_library, {"fast_paths.attention.library"}),
    "sitecustomize": (EXPERIMENT, halve_gelu, {"modules.sitecustomize"}),
} | {
    name: (HYPERBF, lambda project, folder, own={name: value}: own, {f"variables.{name}"})
    for name, value in {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    }.items()
}


@pytest.mark.slow(hours=True)
@pytest.mark.parametrize("row", ROWS)
def test_influences_on_weights_appear_in_the_environment_and_the_canary(
    project: Path, usual: Mapping[str, Trained], row: str, tmp_path: Path
) -> None:
    experiment, change, named = ROWS[row]
    before, after = usual[experiment], train(project, experiment, tmp_path / "store", **change(project, tmp_path))
    assert (after.key, after.weights != before.weights) == (before.key, True)
    assert after.digest != before.digest
    ours, theirs = leaves(before.environment), leaves(after.environment)
    differing = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    assert differing == {f"process.{name}" for name in {"canary.digest", *named}}
    link = check_environment(Result(environment=after.environment, environment_digest=after.digest))
    assert link.status == ("broken" if row == "sitecustomize" else "holds")
    assert ("sitecustomize (" in link.detail) == (row == "sitecustomize")


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    inner = [leaves(item, f"{name}.{key}".lstrip(".")) for key, item in value.items()]
    return {key: item for found in inner for key, item in found.items()}


def test_start_hook_without_a_package_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "import os\n"
    (tmp_path / "mine.pth").write_text(own, encoding="utf-8")
    (tmp_path / "folder.pth").write_text("/a/folder\n", encoding="utf-8")
    monkeypatch.setattr(process.site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(process.site, "ENABLE_USER_SITE", False)
    assert process._start_hooks.__wrapped__() == {"mine.pth": process.digest(own.encode())}
    packaged = tmp_path / "mine-1.dist-info"
    packaged.mkdir()
    hashed = base64.urlsafe_b64encode(hashlib.sha256(own.encode()).digest()).decode().rstrip("=")
    (packaged / "RECORD").write_text(f"mine.pth,sha256={hashed},{len(own)}\n", encoding="utf-8")
    assert process._start_hooks.__wrapped__() == {}


def test_environment_has_digests_of_paths_and_modules_with_unusual_loaders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/a/lib.so")
    for name in ("LD_AUDIT", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"):
        monkeypatch.setenv(name, "1")
    shadows = {"random": "random.py", "torch.own": "torch/own.py", "shadow": "site-packages/shadow.py"}
    for name, file in shadows.items():  # on PYTHONPATH they precede installed packages
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=str(tmp_path / file)))
    monkeypatch.delitem(LOADED, "stages.training.loop")
    found = process.describe_process({})
    assert found["variables"]["LD_PRELOAD"] == process.digest(b"/a/lib.so")
    assert found["variables"].keys() >= {"LD_AUDIT", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"}
    assert found["variables"]["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "1"
    assert found["modules"]["stages.training.loop"] == "loaded by _RecordingLoader"
    assert found["modules"].keys() >= {"tests", "random", "torch", "shadow"} and "numpy" not in found["modules"]


def test_package_that_an_earlier_run_loaded_does_not_count_as_unknown() -> None:
    assert "yaml" not in process.describe_process({"yaml": "PyYAML==6"})["modules"]


def canaries() -> Iterator[tuple[str, Canary, float]]:
    """Yield name, canary and CPU seconds of one arm per model and optimiser; networks of tables also in a stack."""
    params, seen = load_params(REPOSITORY), set()
    for experiment in params.experiments.values():
        source = params.datasets[experiment.dataset]
        names = class_names(source.classes)
        info = describe(experiment.dataset, kind=source.kind, shape=source.shape, classes=names)
        for run in plan_runs(experiment, params.profiles["paper"], source, every_role=True):
            for is_stacked in (False, True) if source.kind == "table" else (False,):
                kind = run.spec.model.path, run.spec.protocol.optimizer.name, is_stacked
                if kind not in seen:
                    seen.add(kind)
                    began = time.process_time()
                    canary = canary_of(run.spec, info, torch.device("cpu"), is_stacked=is_stacked)
                    name = f"{experiment.name}.{run.name.arm}{' in a stack' if is_stacked else ''}"
                    yield name, canary, time.process_time() - began


@pytest.mark.slow(hours=True)
def test_every_arm_has_a_canary_that_takes_at_most_a_second() -> None:
    importlib.import_module("torch._dynamo")  # loaded by the first optimiser step
    taken: set[str] = set()
    for name, found, seconds in canaries():
        assert re.fullmatch("[0-9a-f]{12}", found.digest) and seconds < 1, (name, found, seconds)
        taken |= found.taken
    assert {"attention", "dac", "dense_stack", "dropout"} <= taken


def test_canaries_are_compared_within_equal_environments() -> None:
    def result(replicate: int, digest: str, **other: str) -> SimpleNamespace:
        environment = {"process": {"canary": {"of": "a", "digest": digest}}, **other}
        return SimpleNamespace(experiment="e", arm="vit", replicate=replicate, environment=environment)

    one, same, unlike = result(0, "0" * 12), result(1, "0" * 12), result(2, "1" * 12)
    elsewhere, varying = result(3, "2" * 12, device="another"), result(4, VARIES)
    earlier = SimpleNamespace(experiment="e", arm="vit", replicate=5, environment={"device": "cpu"})
    assert compare_canaries([one, same, elsewhere, varying, earlier]) == []
    (fault,) = compare_canaries([one, same, unlike, elsewhere, varying, earlier])
    assert fault.startswith(f"CANARIES DIFFER: {'0' * 12} for e.vit.0, e.vit.1 but {'1' * 12} for e.vit.2. ")

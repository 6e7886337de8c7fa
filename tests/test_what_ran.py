"""What changes a run's numbers without changing its key is named in the environment of its result."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.project import EXPERIMENT, REPOSITORY, edit, environment, make_project, whole_file

HYPERBF = "tiny-hyperbf"
HALVED = "import torch.nn.functional as F\nplain = F.gelu\nF.gelu = lambda x, **options: plain(x, **options) / 2\n"


class Trained(NamedTuple):
    key: str
    weights: bytes
    environment: Mapping[str, Any]
    digest: str
    told: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its ViT has a GELU, its HyperBF attention in C++."""
    folder = make_project(tmp_path_factory.mktemp("ran") / "project", epochs=1, steps_per_epoch=2)
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
    """Train the experiment's first run in a new process and an empty store."""
    shutil.rmtree(project / "data" / "runs", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "stages.train", experiment],
        cwd=project,
        env=environment() | {"CLAIMCHECK_STORE": str(store), "XDG_CACHE_HOME": str(project / "cache")} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (path.parent for path in store.glob("runs/*/result.json"))
    result = json.loads((folder / "result.json").read_bytes())
    weights = (folder / "weights.safetensors").read_bytes()
    return Trained(folder.name, weights, result["environment"], result["environment_digest"], done.stderr)


@pytest.fixture(scope="module")
def usual(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trained]:
    return {name: train(project, name, tmp_path_factory.mktemp("store")) for name in (EXPERIMENT, HYPERBF)}


def change_library(project: Path, folder: Path) -> dict[str, str]:
    """One constant of e^x in a copy of the compiled attention."""
    cache = Path(shutil.copytree(project / "cache", folder / "cache"))
    (library,) = cache.glob("claimcheck/attention-*.so")
    constant = struct.pack("<f", 1.6666665459e-1)
    content = library.read_bytes()
    assert constant in content
    library.write_bytes(content.replace(constant, struct.pack("<f", 1.6e-1)))
    return {"XDG_CACHE_HOME": str(cache)}


def change_source(project: Path, folder: Path) -> dict[str, str]:
    """The fast path's module, which is in no key, in a copy of the code."""
    shutil.copytree(REPOSITORY / "stages", folder / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "stages" / "ops" / "fast" / "attention.py"
    source = module.read_text(encoding="utf-8")
    assert source.count("    return out, kept\n") == 1
    module.write_text(source.replace("    return out, kept\n", "    return out.mul_(1.01), kept\n"), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def halve_gelu(project: Path, folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(HALVED, encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{REPOSITORY}"}


ROWS = {
    "no compiler": (HYPERBF, lambda project, folder: {"CXX": "/bin/false"}),
    "source": (HYPERBF, change_source),
    "library": (HYPERBF, change_library),
    "oneDNN": (HYPERBF, lambda project, folder: {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "MKL's results": (HYPERBF, lambda project, folder: {"MKL_CBWR": "COMPATIBLE"}),
    "MKL's instructions": (HYPERBF, lambda project, folder: {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    "sitecustomize": (EXPERIMENT, halve_gelu),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_what_changes_weights_changes_the_environment(
    project: Path, usual: Mapping[str, Trained], row: str, tmp_path: Path
) -> None:
    experiment, change = ROWS[row]
    before, after = usual[experiment], train(project, experiment, tmp_path / "store", **change(project, tmp_path))
    assert (after.key, after.weights != before.weights) == (before.key, True)
    assert after.digest != before.digest

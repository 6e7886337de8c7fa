"""A group brings models of other packages and a folder of pictures: one test, from params to verdicts."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.project import REPOSITORY, environment

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
# Use this environment instead of one that make creates.
MAKE = ["make", "--no-print-directory", f"BIN={BIN}", "READY="]
RESULTS = re.compile(r"data/(evidence/.*jsonl|models/.*safetensors|registrations/.*json)")


def run(folder: Path, *command: str) -> str:
    """Run a command in the copy with the copy's code."""
    env = environment() | {"PYTHONPATH": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_project(folder: Path) -> Path:
    """A commit of every tracked file but the other papers' results."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git clone: which files belong to the project is not known")
    for name in filter(None, listing.stdout.split("\0")):
        if (REPOSITORY / name).is_file() and not RESULTS.fullmatch(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    counted = Path("data", "flops.json")  # uncommitted; counting operations again takes most of a minute
    if (REPOSITORY / counted).is_file():
        shutil.copy(REPOSITORY / counted, folder / counted)
    run(folder, "git", "init", "-q")
    run(folder, "git", "add", "-A")
    run(folder, "git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "x")
    return folder


PETS = """
title: Pets, Table 1
protocol:
  optimizer: {name: adamw, lr: 0.003, clip_norm: 1.0}
  recipe: {label_smoothing: 0.1, transforms: [{name: ColorJitter, brightness: 0.1}]}
  batch_size: 16
  epochs: 2
  mean: [0.5, 0.5, 0.5]
  std: [0.25, 0.25, 0.25]
  seeds: [0, 1, 2, 3, 4]
arms:
  linear:
    role: baseline
    title: linear
    model: {name: "my_nets:Linear"}
  mixer:
    role: baseline
    title: MLP-Mixer
    model: {name: "timm.models.mlp_mixer:MlpMixer", patch_size: 4, num_blocks: 1, embed_dim: 16}
  vit:
    role: proposed
    title: ViT
    model:
      {name: "timm.models.vision_transformer:VisionTransformer", patch_size: 4, embed_dim: 32, depth: 2, num_heads: 2}
"""
PETS_DATA = """
  pets:
    title: Pets
    reader: folder
    shape: [3, 16, 16]
    classes: 3
    train: 90
    test: 30
    licence: ours
    homepage: http://127.0.0.1/
    urls: []
    files: [{name: pictures/, sha256: DIGEST}]
"""
PETS_CLAIMS = """\
pets.vit,pets,Table 1,pets-table1,vit,accuracy,value,0.95,,,fraction,,0.01,0.01,3,,higher,,,,,
pets.mixer,pets,Table 1,pets-table1,mixer,accuracy,value,0.90,,,fraction,,0.01,,3,,higher,,,,,
pets.linear,pets,Table 1,pets-table1,linear,accuracy,value,0.85,,,fraction,,0.01,,3,,higher,,,,,
pets.vit.mixer,pets,Table 1,pets-table1,vit,accuracy,order,0.05,,,fraction,,0.02,,3,mixer,higher,,,,,
pets.vit.linear,pets,Table 1,pets-table1,vit,accuracy,order,0.10,,,fraction,,0.02,,3,linear,higher,,,,,
"""
MY_NETS = """
from torch import nn

class Linear(nn.Sequential):
    def __init__(self, image_size, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(3 * image_size**2, num_classes))
"""


@pytest.mark.timeout(900)
def test_a_group_brings_timm_models_and_a_folder_of_pictures(tmp_path: Path) -> None:
    """Two baselines to an arm, an error on one arm only: from params to verdicts on data that params declare."""
    project, draw = copy_project(tmp_path / "seventh"), np.random.default_rng(0)
    lines = []
    for number in range(120):
        name = f"pictures/{['cat', 'dog', 'eel'][number % 3]}/{number:03d}.png"
        pixels = draw.integers(0, 120, (16, 16, 3), dtype=np.uint8)
        pixels[..., number % 3] += 20
        path = project / "data/downloads/pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n")
    digest = hashlib.sha256("".join(sorted(lines, key=lambda line: line[66:])).encode()).hexdigest()
    (project / "my_nets.py").write_text(MY_NETS)
    (project / "params/pets-table1.yaml").write_text(PETS)
    index = (project / "params.yaml").read_text().replace("\ndatasets:\n", f"\ndatasets:{PETS_DATA}", 1)
    index = index.replace("DIGEST", digest).replace(
        "\nexperiments:\n", "\nexperiments:\n  pets-table1: {paper: pets, dataset: pets}\n", 1
    )
    (project / "params.yaml").write_text(index)
    (project / "stages/papers/pets").mkdir()
    (project / "stages/papers/pets/__init__.py").write_text(
        '"""Pets, a paper with nets of others.\n\nClaim: a ViT."""\n'
    )
    with (project / "data/claims.csv").open("a", encoding="utf-8") as file:
        file.write(PETS_CLAIMS)
    run(project, str(BIN / "claimcheck"), "history", "--why", "the claims of pets, as printed")
    run(project, *MAKE, "repro", "PROFILE=paper", "EXPERIMENTS=pets-table1")
    results = [json.loads(line) for line in (project / "data/results/pets-table1.jsonl").read_text().splitlines()]
    assert len(results) == 15 and {line["data"]["provenance"] for line in results} == {"full"}
    keyed = {line["arm"]: {name for name in line["spec"]["code"] if not name.startswith("stages")} for line in results}
    assert keyed == {
        "linear": {"my_nets", "torchvision"},
        "mixer": {"timm", "torchvision"},
        "vit": {"timm", "torchvision"},
    }
    assert all("timm" in line["environment"]["packages"] for line in results if line["arm"] != "linear")
    for claim, verdicts in (("pets.vit", VALUES), ("pets.vit.mixer", ORDERS), ("pets.vit.linear", ORDERS)):
        verdict = json.loads(run(project, str(BIN / "claimcheck"), "show", claim, "--json"))[0]["verdict"]
        assert verdict["status"] in verdicts and verdict["n"] == 5, verdict
    run(project, str(BIN / "pytest"), "-q", *FOR_EVERY_PAPER)


VALUES, ORDERS = ("reproduced", "not reproduced", "inconclusive"), ("supported", "reversed", "unresolved")
FOR_EVERY_PAPER = (
    "tests/test_claims.py",
    "tests/test_architecture.py",
    "tests/test_analyse.py",
    "tests/claims/test_kinds.py",
    "tests/claims/test_power.py",
)

"""The tests of every paper also pass with a sixth one, on a table, and a seventh, on pictures with timm's models."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.project import REPOSITORY, environment

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
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


PARAMS = """
flats-table1:
  title: Flats, Table 1
  protocol:
    optimizer: {name: adam, lr: 0.01}
    batch_size: 64
    epochs: 2
    split: {kind: fraction, fraction: 0.1, seed: 0}
    seeds: [0, 1, 2, 3, 4]
  arms:
    narrow: {role: baseline, title: 8 units, model: {name: Network, width: 8}}
    wide: {role: proposed, title: 32 units, model: {name: Network, width: 32}}
pets-table1:
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
DATA = """
  flats:
    title: Flats
    kind: table
    reader: csv
    target: price
    shape: [4]
    classes: 0
    train: 300
    test: 100
    licence: ours
    homepage: http://127.0.0.1/
    urls: []
    files: [{name: flats.csv, sha256: DIGEST}]
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
""".replace("DIGEST", "ab" * 32)
# Only the proposed models have a printed error.
CLAIMS = """\
flats.wide,flats,Table 1,flats-table1,wide,selected_log_mse,value,-3.5,,,nats,,0.1,0.1,3,,lower,,,,,
flats.narrow,flats,Table 1,flats-table1,narrow,selected_log_mse,value,-3.0,,,nats,,0.1,,3,,lower,,,,,
flats.wide.narrow,flats,Table 1,flats-table1,wide,selected_log_mse,order,0.5,,,nats,,0.2,,3,narrow,lower,,,,,
pets.vit,pets,Table 1,pets-table1,vit,accuracy,value,0.95,,,fraction,,0.01,0.01,3,,higher,,,,,
pets.mixer,pets,Table 1,pets-table1,mixer,accuracy,value,0.90,,,fraction,,0.01,,3,,higher,,,,,
pets.vit.mixer,pets,Table 1,pets-table1,vit,accuracy,order,0.05,,,fraction,,0.02,,3,mixer,higher,,,,,
"""
PACKAGES = {
    "flats/__init__.py": """
\"\"\"Flats, a paper on a table.

Claim: width lowers the error.\"\"\"

from stages.papers.flats.network import Network

__all__ = ["Network"]
""",
    "flats/network.py": """
\"\"\"A network with one hidden layer.\"\"\"

from torch import Tensor, nn


class Network(nn.Module):
    \"\"\"Standardised features [B, F] -> predictions [B, 1].\"\"\"

    def __init__(self, *, in_features: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)
""",
    "pets/__init__.py": """
\"\"\"Pets, a paper with nets of others.

Claim: a ViT.\"\"\"
""",
}


def add_papers(project: Path) -> None:
    """A sixth paper, on a table, and a seventh, on pictures with other packages' networks."""
    index = (project / "params.yaml").read_text(encoding="utf-8").replace("\ndatasets:\n", f"\ndatasets:{DATA}", 1)
    for name, experiment in yaml.safe_load(PARAMS).items():
        paper = name.partition("-")[0]
        (project / "params" / f"{name}.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False), encoding="utf-8")
        index = index.replace(
            "\nexperiments:\n", f"\nexperiments:\n  {name}: {{paper: {paper}, dataset: {paper}}}\n", 1
        )
    (project / "params.yaml").write_text(index, encoding="utf-8")
    for name, text in PACKAGES.items():
        path = project / "stages/papers" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.lstrip(), encoding="utf-8")
    with (project / "data/claims.csv").open("a", encoding="utf-8") as file:
        file.write(CLAIMS)
    run(project, str(BIN / "claimcheck"), "history", "--why", "the claims of two more papers, as printed")


@pytest.mark.timeout(900)
def test_papers_can_be_added_without_changing_a_test(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "seven")
    add_papers(project)
    run(project, str(BIN / "pytest"), "-q", *FOR_EVERY_PAPER)


FOR_EVERY_PAPER = (
    "tests/test_claims.py",
    "tests/test_architecture.py",
    "tests/test_analyse.py",
    "tests/claims/test_kinds.py",
    "tests/claims/test_power.py",
    "tests/claims/test_all_trained.py",
    "tests/claims/test_deviations.py",
    "tests/test_experiment.py",
)

"""A sixth and a seventh paper: a table, a folder of pictures, models of other packages, from params to verdicts."""

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
import yaml
from PIL import Image

from stages.results import ClaimFilter, list_judged, open_results
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
    linear: {role: baseline, title: linear, model: {name: "my_nets:Line"}}
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
    linear: {role: baseline, title: linear, model: {name: "my_nets:Linear"}}
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
    files: [{name: flats.csv, sha256: TABLE}]
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
    files: [{name: pictures/, sha256: PICTURES}]
"""
# Two baselines to a proposed model, whose error alone is printed.
CLAIMS = """\
flats.wide,flats,Table 1,flats-table1,wide,selected_log_mse,value,-3.5,,,nats,,0.1,0.1,3,,lower,,,,,
flats.narrow,flats,Table 1,flats-table1,narrow,selected_log_mse,value,-3.0,,,nats,,0.1,,3,,lower,,,,,
flats.linear,flats,Table 1,flats-table1,linear,selected_log_mse,value,-2.0,,,nats,,0.1,,3,,lower,,,,,
flats.wide.narrow,flats,Table 1,flats-table1,wide,selected_log_mse,order,0.5,,,nats,,0.2,,3,narrow,lower,,,,,
flats.wide.linear,flats,Table 1,flats-table1,wide,selected_log_mse,order,1.5,,,nats,,0.2,,3,linear,lower,,,,,
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

class Line(nn.Linear):
    def __init__(self, in_features):
        super().__init__(in_features, 1)
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


def draw_pictures(folder: Path) -> str:
    """Write a folder of pictures per class, and return its digest."""
    lines, draw = [], np.random.default_rng(0)
    for number in range(120):
        name = f"pictures/{['cat', 'dog', 'eel'][number % 3]}/{number:03d}.png"
        pixels = draw.integers(0, 120, (16, 16, 3), dtype=np.uint8)
        pixels[..., number % 3] += 20
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
        lines.append(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n")
    return hashlib.sha256("".join(sorted(lines, key=lambda line: line[66:])).encode()).hexdigest()


def draw_table(path: Path) -> str:
    """Write a table with a column of text, and return its digest."""
    draw = np.random.default_rng(0)
    rows = [
        f"{area:.1f},{floor},{['Bern', 'Chur'][floor % 2]},{area / 50 + floor / 8:.3f}\n"
        for area, floor in zip(draw.uniform(20, 200, 400), draw.integers(0, 9, 400), strict=True)
    ]
    path.parent.mkdir(parents=True)
    path.write_text("".join(["area,floor,town,price\n", *rows]), encoding="utf-8")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def add_papers(project: Path) -> None:
    """A sixth paper, on a table, and a seventh, on pictures with other packages' networks."""
    digests = {
        "TABLE": draw_table(project / "data/downloads/flats/flats.csv"),
        "PICTURES": draw_pictures(project / "data/downloads/pets"),
    }
    (project / "my_nets.py").write_text(MY_NETS, encoding="utf-8")
    index, data = (project / "params.yaml").read_text(encoding="utf-8"), DATA
    for name, digest in digests.items():
        data = data.replace(name, digest)
    index = index.replace("\ndatasets:\n", f"\ndatasets:{data}", 1)
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
def test_a_group_brings_a_table_timm_models_and_a_folder_of_pictures(tmp_path: Path) -> None:
    """Two baselines to a model, an error on one model only: from params to verdicts on data that params declare."""
    project = copy_project(tmp_path / "seven")
    add_papers(project)
    run(project, *MAKE, "repro", "PROFILE=paper", "EXPERIMENTS=flats-table1 pets-table1")
    results = [
        json.loads(line)
        for name in ("flats-table1", "pets-table1")
        for line in (project / f"data/results/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(results) == 30 and {line["data"]["provenance"] for line in results} == {"full"}
    keyed = {
        (line["experiment"], line["arm"]): {name for name in line["spec"]["code"] if not name.startswith("stages")}
        for line in results
    }
    assert keyed == {
        ("flats-table1", "linear"): {"my_nets"},
        ("flats-table1", "narrow"): set(),
        ("flats-table1", "wide"): set(),
        ("pets-table1", "linear"): {"my_nets", "torchvision"},
        ("pets-table1", "mixer"): {"timm", "torchvision"},
        ("pets-table1", "vit"): {"timm", "torchvision"},
    }
    used = {line["arm"] for line in results if "timm" in line["environment"].get("packages", ())}
    assert used == {"mixer", "vit"}
    with open_results(str(project / "data/results.db"))() as session:
        judged = [row for paper in ("flats", "pets") for row in list_judged(session, ClaimFilter(paper=paper))]
    assert len(judged) == 10 and {row.verdict.n for row in judged} == {5}
    assert all(row.verdict.status in (ORDERS if row.claim.kind == "order" else VALUES) for row in judged), judged
    run(project, str(BIN / "pytest"), "-q", *FOR_EVERY_PAPER)


VALUES = ("reproduced", "not reproduced", "inconclusive", "undecidable at this margin")
ORDERS = ("supported", "reversed", "unresolved")
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

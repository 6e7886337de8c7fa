"""Follow docs/add-a-paper.md in a copy of the project: its steps suffice and give the printed answers."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.server import free_port
from tests.doc_examples import Block, differences, is_printed, read_examples
from tests.polling import wait_until
from tests.project import REPOSITORY, environment

pytestmark = pytest.mark.slow

EXAMPLES = read_examples(REPOSITORY / "docs" / "add-a-paper.md")
BIN = Path(sys.executable).parent
# Use this environment instead of one that make creates.
MAKE = ["make", "--no-print-directory", f"BIN={BIN}", "READY="]
PRINTED_PLACE = "127.0.0.1:8000"
RESULTS = re.compile(r"data/(evidence/.*jsonl|models/.*safetensors|registrations/.*json)")


def environment_of(folder: Path) -> dict[str, str]:
    """Return this process's environment with the copy's code."""
    return environment() | {"PYTHONPATH": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def run(folder: Path, *command: str) -> str:
    """Run a command in the copy with the copy's code."""
    env = environment_of(folder)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def add_to(folder: Path, block: Block) -> None:
    """Follow the page's instruction for a file: write it, or add the block where the heading says."""
    assert block.file is not None
    path = folder / block.file
    if block.file == "params.yaml":
        before, heading, after = path.read_text().partition("\nexperiments:\n")
        entries = re.match(r"(?:  .*\n)*", after)
        assert heading and entries
        path.write_text(before + heading + entries[0] + block.text + after[entries.end() :])
    elif block.file == "data/claims.csv":
        header, _, rows = block.text.partition("\n")
        assert path.read_text().startswith(header + "\n"), "the page shows the current header"
        path.write_text(path.read_text() + rows)
    else:
        assert not path.exists(), f"{block.file} exists already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)


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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with the page's files added and not committed."""
    folder = copy_project(tmp_path_factory.mktemp("sixth") / "claimcheck")
    for block in EXAMPLES:
        if block.file:
            add_to(folder, block)
    return folder


def test_paper_needs_one_package_one_params_file_claims_and_a_page(project: Path) -> None:
    changed = run(project, "git", "status", "--porcelain", "--untracked-files=all").splitlines()
    folder = "stages/papers/toy"
    names = ("__init__", "findings", "perceptron", "softmax_regression")
    assert sorted(changed) == sorted(
        [" M data/claims.csv", " M params.yaml", "?? params/toy-mnist.yaml"]
        + [f"?? {folder}/{name}.py" for name in names]
        + [f"?? {folder}/deviations.yaml", "?? docs/papers/toy.md"]
    )
    assert run(project, "git", "diff", "--shortstat").split(",")[1:] == [" 5 insertions(+)\n"]


def test_files_on_the_page_pass_ruff(project: Path) -> None:
    run(project, "ruff", "format", "--check", "stages/papers/toy")
    run(project, "ruff", "check", "stages/papers/toy")


@pytest.fixture(scope="module")
def served(project: Path) -> Iterator[str]:
    """Host and port of the copy's service, started like `make serve` does."""
    place = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [*MAKE, "serve", f"PORT={place.rpartition(':')[2]}"],
        cwd=project,
        env=environment_of(project),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: answers(place), 120)
        yield place
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def answers(place: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{place}/health/ready"):
            return True
    except OSError:
        return False


@pytest.mark.timeout(900)
def test_commands_print_what_the_page_shows(project: Path, request: pytest.FixtureRequest) -> None:
    """Run every command in order with real make, DVC and service."""
    output, ran = "", []
    for block in EXAMPLES:
        if block.language == "sh":
            ran.append(block.text.strip())
            words = shlex.split(block.text)
            if words == ["make", "serve"]:
                request.getfixturevalue("served")
            elif words[0] == "curl":
                output = run(
                    project, "curl", "-fsS", words[1].replace(PRINTED_PLACE, request.getfixturevalue("served"))
                )
            elif words[0] == "make":
                output = run(project, *MAKE, *words[1:])
            else:
                output = run(project, words[0].replace(".venv/bin", str(BIN)), *words[1:])
        elif block.language == "text":
            assert is_printed(block.text, output) == [], output
        elif block.language == "json":
            assert list(differences(json.loads(block.text), json.loads(output))) == []
    assert len(ran) == 8


def test_changed_answer_would_be_noticed() -> None:
    shown = {"arms": [{"arm": "a", "mean": "…"}], "n": 1}
    assert list(differences(shown, {"n": 1, "more": 0, "arms": [{"arm": "b"}, {"arm": "a", "mean": 3}]})) == []
    assert list(differences(shown, {"n": 2, "arms": []})) == ["answer.arms is empty", "answer.n is 2, shown is 1"]
    assert is_printed("run … took 3 s", "x\nrun 12 took 3 s\n") == []
    assert is_printed("run … took 3 s", "run 12 took 4 s") == ["run … took 3 s"]


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

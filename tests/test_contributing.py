"""A second clone trains and contributes; the first accepts that, and refuses each forgery for its own reason."""

import base64
import copy
import hashlib
import json
import random
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.params.experiment import load_params
from stages.recording.sources import find_results, lab_seeds
from stages.run import canonical_json, environment_digest
from stages.runs.evidence import seal
from stages.upkeep import contributing
from stages.upkeep.contributing import ContributionError, accept, chance_of_passing
from stages.upkeep.verifying import LAB_FILES, Trail, check_evidence
from tests.doc_examples import is_printed, read_examples
from tests.packed_table import pack_images
from tests.preloaded import python
from tests.project import (
    EXPERIMENT,
    REPOSITORY,
    class_names,
    compose_stand_in,
    copy_stages,
    edit,
    environment,
    git,
    make_project,
)

pytestmark = pytest.mark.slow

LAB = "uni-oslo"
EXAMPLES = read_examples(REPOSITORY / "docs" / "contribute.md")
SEEDS = f"params/{EXPERIMENT}.yaml"
Lines = list[dict[str, Any]]
Forge = Callable[[Lines], object]


def run(project: Path, command: str) -> str:
    """A command of the page, in a clone with its own code; `repro` without DVC."""
    words = shlex.split(command.replace("ninformer-mnist", EXPERIMENT).replace("~/.ssh/id_ed25519", "../key"))
    stages = [["stages.cli", *words[1:]]]
    if words[1] == "repro":
        stages = [["stages.train", EXPERIMENT], ["stages.evaluate", EXPERIMENT]]
    variables = environment() | {"PYTHONPATH": str(project), "CLAIMCHECK_KEEP_STATES": "data/states"}
    for arguments in stages:
        done = python("-m", *arguments, cwd=project, env=variables, forks_too=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_key(folder: Path, name: str) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
    subprocess.run(command, check=True)
    return folder / name


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The clone that accepts, and that of the lab, which has trained with seeds of its own and contributed."""
    folder = tmp_path_factory.mktemp("clones")
    ours, theirs = make_project(folder / "ours", epochs=3, steps_per_epoch=2), folder / "theirs"
    copy_stages(ours)
    edit(ours / "params.yaml", lambda index: index["profiles"]["smoke"].update(data="real", replicates=2))
    source = load_params(REPOSITORY).datasets["mnist"]
    train, test = compose_stand_in("mnist", source.shape, source.classes)
    pack_images(ours / "data/processed/mnist", "mnist", train, test, class_names(source.classes), provenance="full")
    (ours / ".gitignore").write_text("data/\n*.zip\n__pycache__/\n")
    git(ours, "init", "-q")
    git(ours, "add", "-A")
    git(ours, "commit", "-qm", "one")
    git(folder, "clone", "-q", str(ours), str(theirs))
    shutil.copytree(ours / "data", theirs / "data")
    make_key(folder, "key")
    _, _, commands, printed, _, _ = [block.text for block in EXAMPLES]
    seeds = json.loads(run(theirs, f"{EXAMPLES[0].text} --json".replace("\n", "")))
    edit(theirs / SEEDS, lambda experiment: experiment["protocol"].update(seeds=seeds[EXPERIMENT]))
    export, *steps = commands.splitlines()
    assert export == "export CLAIMCHECK_KEEP_STATES=data/states"
    said = [run(theirs, step) for step in steps]
    assert is_printed(printed, said[-1]) == []
    return ours, theirs


@pytest.fixture
def ours(clones: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the first clone, which has accepted nothing."""
    shutil.copytree(clones[0], tmp_path / "ours", symlinks=True)
    monkeypatch.chdir(tmp_path / "ours")
    return tmp_path / "ours"


def give(
    ours: Path, file: Path, *, lab: str = LAB, key: Path | None = None, epochs: int = 0
) -> tuple[int, int, list[Trail], str]:
    return accept(ours, load_params(ours), file, lab, key=key, epochs=epochs, device="cpu")


def forged(file: Path, target: Path, change: Forge, *, key: Path | None, deposits: bool = True) -> Path:
    """The contribution with changed lines, sealed and signed again by an attacker who knows the format."""
    with zipfile.ZipFile(file) as packed, zipfile.ZipFile(target, "w") as written:
        lines = [json.loads(text) for text in packed.read("evidence.jsonl").splitlines()]
        change(lines)
        for line in lines:
            result, cost = line["result"], line["cost"]
            result["run_key"] = hashlib.sha256(canonical_json(result["spec"]).encode()).hexdigest()
            result["environment_digest"] = environment_digest(result["environment"])
            for name in ("experiment", "arm", "replicate", "run_key", "environment_digest"):
                cost[name] = result[name]
        content = "".join(f"{text}\n" for text in sorted(canonical_json(seal(line)) for line in lines)).encode()
        written.writestr("evidence.jsonl", content)
        if key:
            written.writestr("evidence.jsonl.sig", contributing.ssh_keygen("sign", "-f", str(key), given=content))
        for name in packed.namelist():
            if deposits and "/" in name:
                written.writestr(name, packed.read(name))
    return target


def test_contribution_is_checked_retrained_and_shown_with_its_lab(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path
) -> None:
    oslo, key = clones[1] / "uni-oslo.zip", clones[0].parent / "key"
    assert lab_seeds(LAB, [0, 1])[0] == load_params(clones[1]).experiments[EXPERIMENT].seeds[0] > 1_000
    shutil.copy(oslo, ours)
    shutil.copy(f"{key}.pub", ours / "uni-oslo.pub")
    said = run(ours, EXAMPLES[4].text)
    assert is_printed(EXAMPLES[5].text, said) == [], said
    assert re.search(r"retrained +12 +0 +0\n", said) and re.search(r"weights +4 +0 +0\n", said), said
    assert is_printed(EXAMPLES[1].text.replace("ninformer-mnist", EXPERIMENT), run(ours, EXAMPLES[0].text)) == []
    found, notes = find_results(ours, load_params(ours), evidence_only=True)
    assert [(trial.lab, trial.follows_plan) for trial in found] == [(LAB, True)] * 4 and notes == []
    assert len({trial.conditions for trial in found}) == 1
    assert not any(trail.broken for trail in check_evidence(ours))
    assert give(ours, oslo, key=Path(f"{key}.pub"))[:2] == (4, 0)
    part = forged(oslo, tmp_path / "part.zip", lambda lines: lines.pop(), key=key)
    with pytest.raises(ContributionError, match="lacks or changes 1 lines of uni-oslo that were accepted earlier"):
        give(ours, part)
    path = ours / LAB_FILES / f"{LAB}.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]) + b"\n")
    (broken,) = [trail for trail in check_evidence(ours) if trail.broken]
    assert broken.checkpoint == f"the file of {LAB}" and "changed after it was signed" in broken.links[0].detail


def line_of(lines: Lines, arm: str = "vit", replicate: int = 0) -> dict[str, Any]:
    found = (line for line in lines if (line["result"]["arm"], line["result"]["replicate"]) == (arm, replicate))
    return next(found)


def sell_one_training_twice(lines: Lines) -> None:
    one, other = (line_of(lines, replicate=number) for number in (0, 1))
    spec = other["result"]["spec"]
    other["result"] = copy.deepcopy(one["result"]) | {"spec": spec, "replicate": 1}
    other["cost"] = copy.deepcopy(one["cost"])


def sell_it_with_other_weights(lines: Lines) -> None:
    sell_one_training_twice(lines)
    line_of(lines, replicate=1)["result"]["weights_sha256"] = "0" * 64


def use_other_data(lines: Lines) -> None:
    result = line_of(lines)["result"]
    result["data"]["digest"] = result["spec"]["data_digest"] = "0" * 64


def use_other_code(lines: Lines) -> None:
    line_of(lines)["result"]["spec"]["code"]["stages.training.loop"] = "0" * 16


def hide_code(lines: Lines) -> None:
    del line_of(lines)["result"]["spec"]["code"]["stages.training.loop"]


def train_twice(lines: Lines) -> None:
    other = copy.deepcopy(line_of(lines))
    other["result"]["spec"]["replicate"]["seed"] = 0  # which is planned, too
    other["result"]["weights_sha256"] = "0" * 64
    other["result"]["curves"]["train_loss"][0] += 0.01
    lines.append(other)


def invent_a_revision(lines: Lines) -> None:
    line_of(lines)["origin"]["revision"] = "1" * 40


def raise_the_accuracy(lines: Lines) -> None:
    next(row for row in line_of(lines)["result"]["metrics"] if row["metric"] == "accuracy")["value"] = 1.0


def invent_everything(lines: Lines) -> None:
    """Let accuracy, bitmap and curve tell the same story."""
    result = line_of(lines)["result"]
    del result["confusion"]
    result["correct"] = base64.b64encode(b"\xff\xff").decode()
    result["curves"]["test_accuracy"] = [1.0] * 3
    for row in result["metrics"]:
        row["value"] = 1.0 if "accuracy" in row["metric"] else row["value"]


def be_too_fast(lines: Lines) -> None:
    line_of(lines)["cost"] |= {"epoch_seconds": [0.0] * 3, "train_seconds": 1e-6}


def choose_a_seed(lines: Lines) -> None:
    line_of(lines)["result"]["spec"]["replicate"]["seed"] = 7


def change_an_epoch(lines: Lines) -> None:
    line_of(lines)["result"]["curves"]["train_loss"][0] -= 0.01


FORGERIES: dict[str, tuple[Forge, str]] = {
    "one training as two seeds": (sell_one_training_twice, "the weights of .* one training can't be two replicates"),
    "the same without its weights": (sell_it_with_other_weights, "the learning curve of .* can't be two replicates"),
    "other data": (use_other_data, r"its data are 000000000000, those of tiny-mnist\.\w+\.\d of uni-oslo"),
    "other code": (use_other_code, "code: stages.training.loop differs at revision"),
    "code that leaves out a module": (
        hide_code,
        "code: stages.training.loop changed since, or is missing from its code",
    ),
    "two results of a replicate": (train_twice, "repeat: its lab has another result of this replicate"),
    "a revision that doesn't exist": (invent_a_revision, "code: there is no revision 111111111111 in this repository"),
    "accuracy without its images": (raise_the_accuracy, r"accuracy is 1, its bitmap has \d+ correct of 16 images"),
    "a time that no device reaches": (be_too_fast, "cost: its training took 1e-06 s, its forward passes alone are"),
    "a chosen seed": (choose_a_seed, "plans another model, protocol, data set or seed; own seeds: "),
    "results of this project": (lambda lines: line_of(lines)["origin"].pop("lab"), "it has results of this project"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_is_refused_for_its_own_reason(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path, name: str
) -> None:
    change, reason = FORGERIES[name]
    key = clones[0].parent / "key"
    file = forged(clones[1] / "uni-oslo.zip", tmp_path / "forged.zip", change, key=key, deposits=False)
    with pytest.raises(ContributionError, match=reason):
        give(ours, file, key=Path(f"{key}.pub"))
    assert not (ours / "data" / "evidence").exists()


def test_invention_passes_until_an_epoch_is_trained_again(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path
) -> None:
    oslo, key = clones[1] / "uni-oslo.zip", clones[0].parent / "key"
    public = Path(f"{key}.pub")
    with pytest.raises(ContributionError, match="weights: accuracy is recorded as 1, the weights give"):
        give(ours, forged(oslo, tmp_path / "weights.zip", invent_everything, key=key), key=public)
    file = forged(oslo, tmp_path / "invented.zip", invent_everything, key=key, deposits=False)
    with pytest.raises(ContributionError, match=r"vit\.0 of uni-oslo: retrained: epoch 1: .* \(bit for bit\)"):
        give(ours, file, key=public, epochs=4)
    small = forged(oslo, tmp_path / "epoch.zip", change_an_epoch, key=key)
    with pytest.raises(ContributionError, match=r"retrained: epoch [123]: "):
        give(ours, small, key=public, epochs=12)

    def elsewhere(lines: Lines) -> None:
        for line in lines:
            line["result"]["environment"]["device_name"] = "another processor"

    def elsewhere_and_lower(lines: Lines) -> None:
        elsewhere(lines)
        line_of(lines)["result"]["curves"]["train_loss"][0] *= 0.9

    with pytest.raises(ContributionError, match=r"epoch 1: .* \(within 5%, on another kind of device\)"):
        give(
            ours,
            forged(oslo, tmp_path / "lower.zip", elsewhere_and_lower, key=key, deposits=False),
            epochs=4,
            key=public,
        )
    far = forged(oslo, tmp_path / "far.zip", elsewhere, key=key)
    details = [link.detail for trail in give(ours, far, key=public, epochs=12)[2] for link in trail.links]
    assert sum("within 5%, on another kind of device" in detail for detail in details) == 12


def test_deposit_of_another_run_is_refused(clones: tuple[Path, Path], ours: Path, tmp_path: Path) -> None:
    oslo, key = clones[1] / "uni-oslo.zip", clones[0].parent / "key"

    def swap_states(lines: Lines) -> None:
        one, other = (line_of(lines, replicate=number) for number in (0, 1))
        one["states"], other["states"] = other["states"], one["states"]

    def swap_weights(lines: Lines) -> None:
        one, other = (line_of(lines, replicate=number)["result"] for number in (0, 1))
        one["weights_sha256"], other["weights_sha256"] = other["weights_sha256"], one["weights_sha256"]

    with pytest.raises(ContributionError, match=r"state after epoch \d is another one"):
        give(ours, forged(oslo, tmp_path / "s.zip", swap_states, key=key), key=Path(f"{key}.pub"), epochs=12)
    with pytest.raises(ContributionError, match="the deposited weights belong to another run"):
        give(ours, forged(oslo, tmp_path / "w.zip", swap_weights, key=key), key=Path(f"{key}.pub"))


def test_signature_is_the_lab_s_own_and_of_these_lines(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oslo, key, stranger = clones[1] / "uni-oslo.zip", clones[0].parent / "key", make_key(tmp_path, "stranger")
    public = Path(f"{key}.pub")
    with pytest.raises(ContributionError, match="no key of uni-oslo is known"):
        give(ours, oslo)
    damaged = bytearray(oslo.read_bytes())
    with zipfile.ZipFile(oslo) as packed:
        begins = packed.getinfo("evidence.jsonl").header_offset + 60
    damaged[begins : begins + 8] = bytes(8)
    (tmp_path / "damaged.zip").write_bytes(damaged)
    with pytest.raises(ContributionError, match="can't be read"):
        give(ours, tmp_path / "damaged.zip", key=public)
    monkeypatch.setattr(contributing, "MOST_BYTES", 100)
    with pytest.raises(ContributionError, match="is larger than 100 bytes"):
        give(ours, oslo, key=public)
    monkeypatch.undo()
    with pytest.raises(ContributionError, match="signed with another key than that of uni-oslo"):
        give(ours, forged(oslo, tmp_path / "stranger.zip", lambda lines: None, key=stranger), key=public)
    with pytest.raises(ContributionError, match="not signed; a lab that has a key signs"):
        give(ours, forged(oslo, tmp_path / "unsigned.zip", lambda lines: None, key=None), key=public)
    edited = tmp_path / "edited.zip"
    with zipfile.ZipFile(oslo) as packed, zipfile.ZipFile(edited, "w") as written:
        for name in packed.namelist():
            content = packed.read(name)
            written.writestr(name, content.replace(b"test_loss", b"TEST_loss") if name == "evidence.jsonl" else content)
    with pytest.raises(ContributionError, match="changed after it was signed, or the signature is damaged"):
        give(ours, edited, key=public)
    give(ours, oslo, key=public)
    with pytest.raises(ContributionError, match="uni-oslo signs with another key"):
        give(ours, oslo, key=Path(f"{stranger}.pub"))


def test_lab_can_not_contribute_another_lab_s_results(clones: tuple[Path, Path], ours: Path, tmp_path: Path) -> None:
    oslo = clones[1] / "uni-oslo.zip"
    give(ours, oslo, key=Path(f"{clones[0].parent / 'key'}.pub"))

    def rename(lines: Lines) -> None:
        for line in lines:
            line["origin"]["lab"] = "uni-bergen"

    def disguise(lines: Lines) -> None:
        rename(lines)
        for line in lines:
            line["result"]["environment"]["device_name"] = "Abacus"
            line["result"]["spec"]["replicate"]["seed"] = lab_seeds("uni-bergen", [line["result"]["replicate"]])[0]

    with pytest.raises(ContributionError, match=r"occurs twice: it is also in .*uni-oslo\.jsonl"):
        give(ours, forged(oslo, tmp_path / "b.zip", rename, key=None), lab="uni-bergen")
    with pytest.raises(ContributionError, match="a repeat with the same bits is no second result"):
        give(ours, forged(oslo, tmp_path / "c.zip", disguise, key=None), lab="uni-bergen")


def refuse() -> None:
    raise contributing._Differs("invented")


def test_chance_that_false_epochs_are_not_drawn_is_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [SimpleNamespace()] * 10
    trial = SimpleNamespace(result=SimpleNamespace(curves=curves), states={str(n): f"{n}" for n in range(10)}, name="a")
    packed = SimpleNamespace(namelist=lambda: [f"states/{n}" for n in range(10)])
    for false, drawn in ((1, 3), (3, 3), (9, 1)):
        chosen = set(random.Random(false).sample(range(10), false))
        monkeypatch.setattr(
            contributing,
            "_compare_epoch",
            lambda root, trial, epoch, *rest, chosen=chosen: refuse() if epoch in chosen else "",
        )
        tries = [contributing._train_again(Path(), [trial], packed, drawn, "cpu") for _ in range(4000)]  # type: ignore[arg-type,list-item]
        passed = sum(not any(trail.broken for trail in trails) for trails, _ in tries) / len(tries)
        assert passed == pytest.approx(chance_of_passing(10, false, drawn), abs=0.03)
    assert tries[0][1].endswith("a file passes, by the number of false ones among them: 1 with 90%, 10 with 0%")

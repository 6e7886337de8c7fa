"""A second clone trains and contributes; the first accepts that, and refuses each forgery for its own reason."""

import base64
import copy
import dataclasses
import hashlib
import io
import json
import random
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stages.params.experiment import load_params
from stages.recording.sources import find_results, lab_seeds
from stages.run import canonical_json, environment_digest
from stages.runs.consistency import find_repeats
from stages.runs.evidence import COLUMNS, Curves, EpochRow, EvidenceLine, read_lines, seal
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
    (ours / ".gitignore").write_text("data/\n*.zip\n__pycache__/\n", encoding="utf-8")
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


def forged(
    file: Path, target: Path, change: Forge, *, key: Path | None, deposits: str = "/", extra: bytes | None = None
) -> Path:
    """The contribution with changed lines, sealed and signed again by an attacker who knows the format.

    Deposits are kept if their name contains `deposits`; `extra` is one more state.
    """
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
            if deposits in name and "/" in name:
                written.writestr(name, packed.read(name))
        if extra:
            written.writestr(f"states/{hashlib.sha256(extra).hexdigest()}", extra)
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
    """Make accuracy, bitmap and curve agree."""
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


def add_noise(lines: Lines) -> None:
    sell_it_with_other_weights(lines)
    curves = line_of(lines, replicate=1)["result"]["curves"]
    curves["train_loss"] = [loss * (1 + 2e-8) for loss in curves["train_loss"]]


def diverge(lines: Lines, step: int = 1, last_finite_step: int = 0, loss: float | None = None, epochs: int = 0) -> None:
    line = line_of(lines)
    result, seconds = line["result"], line["cost"]["epoch_seconds"][:epochs]
    for name in ("weights_sha256", "correct", "confusion", "observed"):
        result.pop(name, None)
    result |= {"status": "diverged", "metrics": []}
    result["curves"] = {name: column[:epochs] for name, column in result["curves"].items()}
    result["divergence"] = {"step": step, "last_finite_step": last_finite_step, "last_finite_loss": loss}
    line["cost"] |= {"epoch_seconds": seconds, "train_seconds": sum(seconds) or 0.1}


def raise_the_calibration_error(lines: Lines) -> None:
    next(row for row in line_of(lines)["result"]["metrics"] if row["metric"] == "calibration_error")["value"] = 0.3


def add_an_observation(lines: Lines) -> None:
    metrics = line_of(lines)["result"]["metrics"]
    metrics.append({"metric": "accuracy_after_inversion", "split": "test", "value": 0.03, "n": 16})


def claim_another_device(lines: Lines) -> None:
    for line in lines:
        line["result"]["environment"]["device_name"] = "another processor"


def shift_on_another_device(lines: Lines, epochs: Sequence[int] = (0, 1, 2)) -> None:
    claim_another_device(lines)
    for line in lines:
        for epoch in epochs:
            line["result"]["curves"]["test_loss"][epoch] *= 1.02


NONE, WEIGHTS, STATES, BOTH = "nothing", "weights/", "states/", "/"
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
    "no lines": (lambda lines: lines.clear(), "it has no lines"),
    "one training as two seeds, with noise": (add_noise, "the learning curve of .* can't be two replicates"),
    "a divergence after the plan": (
        lambda lines: diverge(lines, 10**9),
        r"diverges at step 1,000,000,000 after step 0",
    ),
    "a divergence in the curves": (lambda lines: diverge(lines, 2, 1, 0.5, epochs=1), "its curves end at step 2, and"),
    "a negative loss": (lambda lines: diverge(lines, 2, 1, -3.0), "its last finite loss is -3.0, after 1 steps"),
    "a loss before the first step": (lambda lines: diverge(lines, 1, 0, 1.0), "its last finite loss is 1.0, after 0"),
    "a divergence that isn't trained again": (
        diverge,
        r"epochs that check the diverged trainings \(1\): 1; give --retrain 1",
    ),
}
OF_DEPOSITS: dict[str, tuple[Forge, str, str, int]] = {
    "a divergence that didn't happen": (diverge, "doesn't diverge in that epoch", BOTH, 12),
    "a metric that no curve has": (
        *(raise_the_calibration_error, r"calibration_error is recorded as 0\.3, the weights give"),
        *(WEIGHTS, 0),
    ),
    "a metric that weights don't give": (
        *(add_an_observation, "it has accuracy_after_inversion of split test, which the weights don't give"),
        *(WEIGHTS, 0),
    ),
    "a metric that no curve has, without its weights": (
        *(raise_the_calibration_error, r"retrained: epoch 3: calibration_error is recorded as 0\.3, the weights give"),
        *(STATES, 12),
    ),
    "all states but one": (
        *(lambda lines: line_of(lines)["states"].pop("2"), r"1 of 8 states are missing, first that of \S+\.vit\.0 of"),
        *(STATES, 0),
    ),
    "a shift in each epoch on another device": (
        *(shift_on_another_device, r"test_loss differs by \+2\.00% on average of 4 epochs"),
        *(NONE, 12),
    ),
    "a better last epoch on another device": (
        *(lambda lines: shift_on_another_device(lines, [2]), "the scores of the deposited weights after it differ"),
        *(BOTH, 12),
    ),
}


@pytest.mark.parametrize("name", [*FORGERIES, *OF_DEPOSITS])
def test_forgery_is_refused_for_its_own_reason(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, reason, deposits, epochs = OF_DEPOSITS.get(name) or (*FORGERIES[name], NONE, 0)
    monkeypatch.setattr(contributing, "CHANCE", 2 / 2**4)  # four first epochs can have a common sign
    key = clones[0].parent / "key"
    file = forged(clones[1] / "uni-oslo.zip", tmp_path / "forged.zip", change, key=key, deposits=deposits)
    with pytest.raises(ContributionError, match=reason):
        give(ours, file, key=Path(f"{key}.pub"), epochs=epochs)
    assert not (ours / "data" / "evidence").exists()


def test_invention_passes_until_an_epoch_is_trained_again(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path
) -> None:
    oslo, key = clones[1] / "uni-oslo.zip", clones[0].parent / "key"
    public = Path(f"{key}.pub")
    with pytest.raises(ContributionError, match="weights: accuracy is recorded as 1, the weights give"):
        give(ours, forged(oslo, tmp_path / "weights.zip", invent_everything, key=key), key=public)
    file = forged(oslo, tmp_path / "invented.zip", invent_everything, key=key, deposits=NONE)
    with pytest.raises(ContributionError, match=r"vit\.0 of uni-oslo: retrained: epoch 1: .* \(bit for bit\)"):
        give(ours, file, key=public, epochs=4)
    small = forged(oslo, tmp_path / "epoch.zip", change_an_epoch, key=key)
    with pytest.raises(ContributionError, match=r"retrained: epoch [123]: "):
        give(ours, small, key=public, epochs=12)

    def elsewhere_and_lower(lines: Lines) -> None:
        claim_another_device(lines)
        line_of(lines)["result"]["curves"]["train_loss"][0] *= 0.9

    with pytest.raises(ContributionError, match=r"epoch 1: .* \(on another kind of device\)"):
        give(
            ours,
            forged(oslo, tmp_path / "lower.zip", elsewhere_and_lower, key=key, deposits=NONE),
            epochs=4,
            key=public,
        )
    far = forged(oslo, tmp_path / "far.zip", claim_another_device, key=key, deposits=STATES)
    *_, note = give(ours, far, key=public, epochs=12)
    assert "12 of 12 epochs trained again, 0 compared bit by bit" in note
    assert "\n12 were compared only nearly, because their lines name another kind of device: unless most" in note
    unseen = note.splitlines()[-1]
    assert "no weights here give its auroc, calibration_error" in unseen and "vit.1 of uni-oslo" in unseen


def test_divergence_is_trained_again_from_the_start_if_affordable(
    clones: tuple[Path, Path], ours: Path, tmp_path: Path
) -> None:
    """An invented state from which the loss diverges passes only as what is printed, a state that may be false."""
    oslo, key = clones[1] / "uni-oslo.zip", clones[0].parent / "key"
    with zipfile.ZipFile(oslo) as packed:
        lines = [json.loads(text) for text in packed.read("evidence.jsonl").splitlines()]
        saved = torch.load(io.BytesIO(packed.read(f"states/{line_of(lines)['states']['2']}")[32:]), weights_only=True)
    for weights in saved["state"]["model"].values():
        weights.mul_(1e30)
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    state = bytes(32) + buffer.getvalue()

    def explode(lines: Lines) -> None:
        diverge(lines, 5, 4, saved["state"]["last_loss"], epochs=2)
        line_of(lines)["states"]["2"] = hashlib.sha256(state).hexdigest()

    file, public = forged(oslo, tmp_path / "f.zip", explode, key=key, extra=state), Path(f"{key}.pub")
    with pytest.raises(ContributionError, match="its loss doesn't diverge in that epoch"):
        give(ours, file, key=public, epochs=3)
    *_, note = give(ours, file, key=public, epochs=1)
    assert "trained from the state after epoch 2, which may be false, its loss diverges at the same step" in note
    assert "\n0 of 11 epochs trained again" in note and "1 with 100%" in note


def test_rounding_has_no_common_sign() -> None:
    draw, row = np.random.default_rng(0), EpochRow(epoch=1, steps=1, lr=0.1, train_loss=1.0, test_accuracy=0.5)

    def common(shift: float) -> int:
        noise = [draw.normal(shift, 0.01) for _ in range(12)]
        again = [contributing._Again(row, {"train_loss": 1.0, "test_accuracy": 0.5 + one}, False) for one in noise]
        return len([*contributing._common_signs(again)])

    assert sum(common(0.0) for _ in range(100)) <= 2
    assert [common(0.02) for _ in range(5)] == [1] * 5


def test_deposit_of_another_run_is_refused(clones: tuple[Path, Path], ours: Path, tmp_path: Path) -> None:
    oslo, key = clones[1] / "uni-oslo.zip", clones[0].parent / "key"

    def swap_states(lines: Lines) -> None:
        one, other = (line_of(lines, replicate=number) for number in (0, 1))
        one["states"], other["states"] = other["states"], one["states"]

    def swap_weights(lines: Lines) -> None:
        one, other = (line_of(lines, replicate=number)["result"] for number in (0, 1))
        one["weights_sha256"], other["weights_sha256"] = other["weights_sha256"], one["weights_sha256"]

    with pytest.raises(ContributionError, match=r"state after epoch \d isn't the one that the line names"):
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
    with pytest.raises(ContributionError, match="wasn't signed with the key of uni-oslo"):
        give(ours, forged(oslo, tmp_path / "stranger.zip", lambda lines: None, key=stranger), key=public)
    with pytest.raises(ContributionError, match="not signed; its key identifies a lab: claimcheck contribute"):
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
    oslo, key = clones[1] / "uni-oslo.zip", make_key(tmp_path, "bergen")
    give(ours, oslo, key=Path(f"{clones[0].parent / 'key'}.pub"))
    public = Path(f"{key}.pub")

    def rename(lines: Lines) -> None:
        for line in lines:
            line["origin"]["lab"] = "uni-bergen"

    def disguise(lines: Lines) -> None:
        rename(lines)
        for line in lines:
            line["result"]["environment"]["device_name"] = "Abacus"
            line["result"]["spec"]["replicate"]["seed"] = lab_seeds("uni-bergen", [line["result"]["replicate"]])[0]

    with pytest.raises(ContributionError, match=r"occurs twice: it is also in .*uni-oslo\.jsonl"):
        give(ours, forged(oslo, tmp_path / "b.zip", rename, key=key), lab="uni-bergen", key=public)
    with pytest.raises(ContributionError, match="a repeat with the same bits isn't a second result"):
        give(ours, forged(oslo, tmp_path / "c.zip", disguise, key=key), lab="uni-bergen", key=public)
    same = clones[0].parent / "key"
    with pytest.raises(ContributionError, match="uni-oslo signs with this key; each lab needs its own"):
        give(ours, forged(oslo, tmp_path / "d.zip", rename, key=same), lab="uni-bergen", key=Path(f"{same}.pub"))


def test_lab_needs_its_own_seeds() -> None:
    published = load_params(REPOSITORY)
    found, _ = find_results(REPOSITORY, published, evidence_only=True, rivals_only=True)
    ours = next(trial for trial in found if trial.result.experiment == "nmn-mnist")
    assert ours.origin is not None
    curves = Curves({name: [1 + 0.1 * epoch for epoch in range(3)] for name in COLUMNS})
    result = dataclasses.replace(ours.result, curves=curves, weights_sha256="0" * 64)
    theirs = dataclasses.replace(ours, result=result, origin=dataclasses.replace(ours.origin, lab=LAB))
    ((_, reason),) = find_repeats([ours, theirs])
    assert reason == f"it has the seed of {ours.name}, and only new seeds make a result of another lab"


def test_training_must_not_stop_earlier_than_its_rule_says() -> None:
    lines = read_lines(REPOSITORY / "data" / "evidence" / "dac-sgemm.jsonl", EvidenceLine)[:10]
    for line in (line.result for line in lines):
        assert contributing._check_end(line).status == "holds"
        shorter = dataclasses.replace(line, curves=line.curves[:-1])
        assert contributing._check_end(shorter).status == "broken"
        unknown = Curves({name: [1.0] * len(line.curves) for name in COLUMNS if name != "val_loss"})
        assert "val_loss can't be read" in contributing._check_end(dataclasses.replace(line, curves=unknown)).detail


def compare(row: EpochRow, *, is_false: bool) -> contributing._Again:
    if is_false:
        raise contributing._Differs("invented")
    return contributing._Again(row, {}, is_alike=True)


def test_chance_that_false_epochs_are_not_drawn_is_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [EpochRow(epoch=1, steps=1, lr=0.1, train_loss=1.0)] * 10
    trial = SimpleNamespace(result=SimpleNamespace(curves=curves), states={str(n): f"{n}" for n in range(10)}, name="a")
    packed = SimpleNamespace(namelist=lambda: [f"states/{n}" for n in range(10)])
    for false, drawn in ((1, 3), (3, 3), (9, 1)):
        chosen = set(random.Random(false).sample(range(10), false))
        monkeypatch.setattr(
            contributing.Retraining,
            "_compare_epoch",
            lambda self, trial, epoch, chosen=chosen: compare(curves[0], is_false=epoch in chosen),
        )
        again: Any = contributing.Retraining(Path(), None, packed, torch.device("cpu"))  # type: ignore[arg-type]
        tries = [again.train_again([trial], drawn) for _ in range(4000)]
        passed = sum(not any(trail.broken for trail in trails) for trails, _ in tries) / len(tries)
        assert passed == pytest.approx(chance_of_passing(10, false, drawn), abs=0.03)
    assert tries[0][1].endswith("a file passes, by the number of false ones among them: 1 with 90%, 10 with 0%")

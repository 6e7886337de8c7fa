"""`benchmarks.gpu_campaign`, rehearsed on the CPU with processes that act as short-lived machines with only torch."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import campaign_parcels
from benchmarks.campaign_parcels import DamagedParcel, cut, join, pack_back, take_in, unpack_back
from benchmarks.campaign_prepare import wanted_groups
from stages.params.experiment import load_params
from stages.runs.store import RunStore
from tests.minimal_machine import hide_other_packages, hide_other_packages_and_interrupt
from tests.preloaded import python
from tests.project import EXPERIMENT, REPOSITORY, edit, environment, make_project, outcomes

pytestmark = pytest.mark.slow

LIMIT_MIB, EPOCHS = 0.12, 3


class Machine:
    """A machine with the code and the files of earlier commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("stages", "benchmarks"):
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def python(
        self, *arguments: str, before: Callable[[], None] = hide_other_packages
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m …` on this machine; the repository comes second on the path, for `before`."""
        env = environment() | {"PYTHONPATH": f"{self.folder}:{REPOSITORY}"}
        return python("-m", *arguments, cwd=self.folder, env=env, before=before)

    def run(self, carry: Path, back: Path, *, is_ended: bool) -> subprocess.CompletedProcess[str]:
        """Run the carried command; if `is_ended`, stop the first training halfway."""
        shutil.rmtree(self.folder / "carry", ignore_errors=True)
        shutil.copytree(carry, self.folder / "carry")
        assert sum(path.stat().st_size for path in carry.rglob("*") if path.is_file()) <= LIMIT_MIB * 2**20
        options = ["--work", "work", "--out", str(back), "--seconds", "60", "--device", "cpu"]
        before = hide_other_packages_and_interrupt if is_ended else hide_other_packages
        done = self.python("benchmarks.gpu_campaign", "run", "carry", *options, before=before)
        files = [path for path in back.rglob("*") if path.is_file()]
        assert len(files) <= 8 and all(path.stat().st_size <= 16 * 2**20 for path in files)
        return done


def prepare(project: Path, *options: str) -> str:
    command = ["-m", "benchmarks.gpu_campaign", "prepare", "--rate", "cpu", *options]
    command += ["--limit", str(LIMIT_MIB), "--part", str(LIMIT_MIB / 4)]
    done = python(*command, cwd=project, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(project: Path) -> str:
    done = python("-m", "stages.train", EXPERIMENT, cwd=project, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path / "here", epochs=EPOCHS)
    shutil.copy(REPOSITORY / "data" / "claims.csv", project / "data")
    return project


@pytest.mark.timeout(300)
def test_campaign_on_two_machines_equals_an_uninterrupted_training(project: Path, tmp_path: Path) -> None:
    """Data arrive in parts, a training gets SIGTERM, and another machine replaces its machine."""
    machine, said, lacking, is_begun = Machine(tmp_path / "there"), prepare(project, "--budget", "600"), 0, False
    seconds: list[float] = []
    for number in range(10):
        if "nothing is left" in said:
            break
        back = tmp_path / f"back-{number}"
        done = machine.run(project / "data/campaign/carry", back, is_ended=not is_begun)
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((back / "report.json").read_text())
        lacking += bool(report["lacking"])
        seconds.append(report["seconds"])
        options = ["--back", str(back)]
        if not is_begun and "stopped after" in done.stdout:  # this machine is lost, including its files
            is_begun = True
            shutil.rmtree(machine.folder)
            machine = Machine(tmp_path / "there-too")
            options.append("--fresh")
        said = prepare(project, "--budget", "600", *options)
        if options[-1] == "--fresh":
            assert [*(project / "data/campaign/carry/resume").glob("*/resume.pt")]
    assert "nothing is left" in said, said
    assert is_begun and lacking >= 2, "each machine needs the data in several parts"
    state = json.loads((project / "data/campaign/state.json").read_text())
    assert state["spent"] == pytest.approx(sum(seconds)) and min(seconds) > 0 and not state["failed"]

    straight = make_project(tmp_path / "straight", epochs=EPOCHS)
    train(straight)
    assert outcomes(project) == outcomes(straight)
    assert "2 from the store, 0 to train" in train(project), "resumed runs end like any other"


def test_failing_training_is_reported_and_does_not_block_others(project: Path, tmp_path: Path) -> None:
    prepare(project, "--budget", "600")
    carry, machine = project / "data/campaign/carry", Machine(tmp_path / "there")
    queue = json.loads((carry / "queue.json").read_text())
    queue["groups"][0]["specs"][0]["model"]["arguments"]["patch_size"] = 5
    for group in queue["groups"]:
        for spec in group["specs"]:
            spec["protocol"]["epochs"] = 1
    (carry / "queue.json").write_text(json.dumps(queue))
    for name in json.loads(next((project / "data/campaign/parts").glob("*.json")).read_text()):
        shutil.copy(project / "data/campaign/parts" / name["name"], carry / "parts")
    shutil.copytree(carry, machine.folder / "carry")
    options = ["--work", "work", "--out", "back", "--device", "cpu"]
    done = machine.python("benchmarks.gpu_campaign", "run", "carry", *options)
    report = json.loads((machine.folder / "back/report.json").read_text())
    assert done.returncode == 1 and len(report["failed"]) == 1 and "ValueError" in done.stderr
    assert len(report["results"]) == 1 and report["results"][0]["status"] == "finished"


def test_spent_budget_ends_the_campaign(project: Path) -> None:
    prepare(project, "--budget", "600")
    path = project / "data/campaign/state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spent": 600.0}))
    assert prepare(project, "--budget", "600") == "the budget is spent; 2 groups are left\n"


def test_trainings_are_ordered_by_analyses_completed_per_second(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm that claims need comes first, with the replicates of its next analysis; the other two arms come last."""
    lines = (project / "data/claims.csv").read_text().splitlines()
    names = lines[0].split(",")
    row = dict.fromkeys(names, "") | {"paper": "ninformer", "place": "x", "metric": "accuracy", "kind": "value"}
    row |= {"experiment": EXPERIMENT, "arm": "ninformer", "value": "0.9", "unit": "fraction", "precision": "0.01"}
    row |= {"better": "higher"}
    rows = [",".join((row | {"id": f"ninformer.x{number}"})[name] for name in names) for number in range(3)]
    (project / "data/claims.csv").write_text("\n".join([lines[0], *rows]) + "\n")
    experiment = yaml.safe_load((project / "params" / f"{EXPERIMENT}.yaml").read_text())
    experiment["arms"] = {"twin": {**experiment["arms"]["ninformer"], "title": "twin"}, **experiment["arms"]}
    experiment["arms"]["twin"]["model"] = {**experiment["arms"]["twin"]["model"], "dropout": 0.25}
    (project / "params" / f"{EXPERIMENT}.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False))
    monkeypatch.chdir(project)
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    edit(project / "params.yaml", lambda p: p.update(profile="paper"))
    edit(project / "params.yaml", lambda p: p["profiles"]["paper"].update(data="embedded"))
    groups = wanted_groups([EXPERIMENT], load_params(), Path("data/processed"), "cpu", set())
    needed = load_params().verdicts.minimum
    assert [group.label for group in groups[:needed]] == [f"{EXPERIMENT}.ninformer.{n}" for n in range(needed)]
    assert sum(group.verdicts for group in groups) == pytest.approx(3), "each claim counts once"
    assert {group.verdicts for group in groups[needed:]} == {0.0} and len(groups) == 3 * needed
    assert [group.rank for group in groups] == sorted(group.rank for group in groups)
    skipped = {groups[0].specs[0].run_key}
    rest = wanted_groups([EXPERIMENT], load_params(), Path("data/processed"), "cpu", skipped)
    assert [group.label for group in rest] == [group.label for group in groups[1:]]


def filled(folder: Path, **sizes: int) -> Path:
    folder.mkdir(parents=True)
    for number, (name, size) in enumerate(sizes.items()):
        (folder / name.replace("_", ".")).write_bytes(bytes([number + 1]) * size)
    return folder


def test_parts_are_joined_once_complete_and_damaged_ones_refused(tmp_path: Path) -> None:
    data = filled(tmp_path / "mnist", dataset_json=10, train_safetensors=30_000)
    parts = cut(data, "mnist.abc", tmp_path / "parts", 16_384)
    assert [part["name"] for part in parts] == ["mnist.abc.000", "mnist.abc.001", "mnist.abc.002"]
    held, listed = tmp_path / "held", {"mnist": parts}
    shutil.copytree(tmp_path / "parts", tmp_path / "carried")
    (tmp_path / "carried" / parts[0]["name"]).unlink()
    take_in(tmp_path / "carried", held, listed)
    assert not join(parts, held, tmp_path / "there")
    (tmp_path / "carried" / parts[0]["name"]).write_bytes(b"other")
    with pytest.raises(DamagedParcel, match=r"mnist\.abc\.000: not the part that was sent"):
        take_in(tmp_path / "carried", held, listed)
    take_in(tmp_path / "parts", held, listed)
    assert join(parts, held, tmp_path / "there")
    assert {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()} == {
        path.name: path.read_bytes() for path in data.iterdir()
    }


def test_returned_files_respect_the_size_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_parcels, "BACK_FILE_BYTES", 100_000)
    monkeypatch.setattr(campaign_parcels, "BACK_BYTES", 250_000)
    keys = [f"{number:064x}" for number in range(6)]
    folders = [filled(tmp_path / "runs" / key, result_json=100, weights_safetensors=60_000) for key in keys[:5]]
    folders.append(filled(tmp_path / "runs" / keys[5], result_json=100, weights_safetensors=100_001))
    (out := tmp_path / "out").mkdir()
    archives, waiting, too_large = pack_back(folders, out)
    assert [folder.name for folder in waiting] == keys[3:5], "the small rest of the last one still fits"
    assert too_large == [f"{keys[5][:12]}/weights.safetensors"]
    assert all(path.stat().st_size < 120_000 for path in out.iterdir())
    came = {key: sorted(files) for _, key, files in unpack_back(out, archives)}
    assert came[keys[0]] == ["result.json", "weights.safetensors"] and came[keys[5]] == ["result.json"]
    (out / archives[0]["name"]).write_bytes(b"")
    with pytest.raises(DamagedParcel, match=r"outcomes-0\.tar: missing, or not the archive"):
        list(unpack_back(out, archives))


def test_unexpected_archive_member_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    folder = filled(tmp_path / "work" / ("0" * 63), result_json=3)
    archives, _, _ = pack_back([folder], tmp_path)
    with pytest.raises(DamagedParcel, match="is no file of an outcome"):
        list(unpack_back(tmp_path, archives))


def test_large_weights_stay_behind_and_the_rest_is_stored_separately(project: Path, tmp_path: Path) -> None:
    train(project)
    keys: list[Any] = sorted(path.name for path in (project / "data/store/runs").iterdir())
    away = RunStore(tmp_path / "away")
    for key in keys:
        files = {path.name: path.read_bytes() for path in (project / "data/store/runs" / key).iterdir()}
        away.publish(key, {name: content for name, content in files.items() if not name.startswith("weights")})
    shutil.rmtree(project / "data/store")
    (back := tmp_path / "back").mkdir()
    archives, _, _ = pack_back([away.root / "runs" / key for key in keys], back)
    report = {"slice": 1, "failed": {}, "waiting": [], "held": [], "seconds": 5.0, "archives": archives}
    (back / "report.json").write_text(json.dumps(report))
    for _ in range(2):  # accepted twice, counted once
        assert prepare(project, "--budget", "600", "--back", str(back)).endswith(
            "nothing is left to train with the data here\n"
        )
    state = json.loads((project / "data/campaign/state.json").read_text())
    assert sorted(state["without_weights"]) == keys and state["spent"] == 5.0
    assert (project / "data/campaign/without_weights" / keys[0] / "history.jsonl").is_file()

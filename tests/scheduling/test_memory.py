"""Runs that share a machine: out-of-memory runs are retried alone, and several processes take turns."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from stages.evaluation.flops import FlopCounts
from stages.params.experiment import load_params
from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore
from stages.scheduling.leases import describe_failure, is_out_of_memory
from stages.scheduling.planning import longest_first
from stages.scheduling.runner import line_up
from tests.commands.waiting import claimcheck, claimcheck_alone
from tests.preloaded import python
from tests.project import EXPERIMENT, copy_stages, edit, ends, environment, make_project, outcomes

pytestmark = pytest.mark.slow

# Raised like torch's, the first `SHORT` times, in any process.
HUNGRY = """
        import os
        for number in range(int(os.environ["SHORT"])):
            try:
                Path(f"short-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
"""
REASON = "out of memory (CUDA out of memory. Tried to allocate 20.00 GiB)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose worker, which isn't in any run key, runs out of memory."""
    folder = make_project(tmp_path / "project", epochs=1)
    copy_stages(folder)
    worker = folder / "stages" / "worker.py"
    source, line = worker.read_text(encoding="utf-8"), "        self.job = job\n"
    assert source.count(line) == 1
    worker.write_text(source.replace(line, HUNGRY + line), encoding="utf-8")
    return folder


def train(project: Path, short: int, devices: str) -> subprocess.CompletedProcess[str]:
    env = environment() | {"PYTHONPATH": str(project), "SHORT": str(short)}
    return python("-m", "stages.train", EXPERIMENT, "--device", devices, cwd=project, env=env)


def test_out_of_memory_run_is_retried_once_alone(project: Path, tmp_path: Path) -> None:
    done = train(project, 1, "cpu,cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{REASON}; it will train once more, alone on its device") == 1
    assert ends(project) == [[("memory", REASON), ("published", "")], [("published", "")]]
    plenty = make_project(tmp_path / "plenty", epochs=1)
    assert python("-m", "stages.train", EXPERIMENT, cwd=plenty, env=environment()).returncode == 0
    assert outcomes(project) == outcomes(plenty), "with the same batches"


@pytest.mark.slow(hours=True)
@pytest.mark.parametrize(("devices", "tries"), [("cpu,cpu", 2), ("cpu", 1)])
def test_run_out_of_memory_when_alone_fails_with_the_reason(project: Path, devices: str, tries: int) -> None:
    done = train(project, 99, devices)
    assert done.returncode == 1
    assert done.stdout.count(f": failed\n{REASON}") == 2 and "Traceback" not in done.stdout + done.stderr
    assert ends(project) == [[("memory", REASON)] * tries] * 2


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("the paper says: out of memory"), False),
    ],
)
def test_out_of_memory_is_distinguished_from_other_errors(error: Exception, is_short: bool) -> None:
    assert is_out_of_memory(error) is is_short
    assert (describe_failure(error)[0] == "memory") is is_short


@pytest.mark.slow(hours=True)
def test_failing_run_is_tried_by_one_slot_only(project: Path) -> None:
    """The other slot waited for it and must not retry it."""
    worker = project / "stages" / "worker.py"
    worker.write_text(
        worker.read_text(encoding="utf-8").replace("torch.OutOfMemoryError(", "ValueError("), encoding="utf-8"
    )
    done = train(project, 99, "cpu,cpu")
    assert done.returncode == 1
    assert [len(attempts) for attempts in ends(project)] == [1, 1]


OTHER = "tiny-other"


@pytest.fixture
def three_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments that share one training; the second experiment's other arm is wide."""
    folder = make_project(tmp_path / "project", epochs=1)
    content = yaml.safe_load((folder / "params" / f"{EXPERIMENT}.yaml").read_text(encoding="utf-8"))
    content["arms"]["ninformer"]["model"]["dim"] = 1024
    (folder / "params" / f"{OTHER}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    edit(
        folder / "params.yaml",
        lambda index: index["experiments"].update({OTHER: {"paper": "ninformer", "dataset": "mnist"}}),
    )
    monkeypatch.chdir(folder)
    return folder


def test_longest_run_comes_first_and_shared_training_once(three_arms: Path) -> None:
    params, store = load_params(), RunStore(Path("data/store"))
    order = longest_first(params, "cpu", FlopCounts().count)
    queue = line_up({EXPERIMENT: None, OTHER: None}, params, Path("data"), store, order)
    labels = [group.label for group in queue.groups]
    assert labels[0] == f"{OTHER} ninformer.0"
    assert sorted(labels[1:]) == [f"{EXPERIMENT} ninformer.0", f"{EXPERIMENT} vit.0"]
    assert sorted(queue.names.values()) == [f"{EXPERIMENT}.ninformer.0", f"{EXPERIMENT}.vit.0", f"{OTHER}.ninformer.0"]
    assert queue.held == {EXPERIMENT: 0, OTHER: 0}


def test_chosen_runs_start_in_the_requested_order(
    three_arms: Path, object_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, store = load_params(), ObjectStore(object_url, three_arms / "read")
    ask, asked = store.bucket._call, list[object]()
    monkeypatch.setattr(store.bucket, "_call", lambda request: asked.append(request) or ask(request))
    places = {f"{EXPERIMENT}.vit": 1.0, f"{OTHER}.ninformer": 0.0}
    queue = line_up(
        {EXPERIMENT: ["vit.0"], OTHER: ["ninformer.0"]},
        params,
        Path("data"),
        store,
        lambda runs, together: places[runs[0].name.label.removesuffix(".0")],
    )
    assert [group.label for group in queue.groups] == [f"{OTHER} ninformer.0", f"{EXPERIMENT} vit.0"]
    assert len(asked) == 3, "one listing of all outcomes, and one of states per experiment"


def test_runs_trained_together_are_taken_from_the_store(three_arms: Path) -> None:
    done = claimcheck_alone(three_arms, "run", "--all", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("3 of 3 missing runs trained; `make repro` evaluates and records them\n")
    again = claimcheck(three_arms, "run", EXPERIMENT, "--device", "cpu")
    assert again.stdout.count("taken from the store") == 2
    assert again.stdout.endswith("0 of 0 missing runs trained; `make repro` evaluates and records them\n")


def test_unpacked_data_are_reported_with_the_command_that_packs_them(three_arms: Path) -> None:
    shutil.rmtree(three_arms / "data" / "processed")
    done = claimcheck(three_arms, "run", EXPERIMENT, "--device", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "claimcheck run: mnist: not packed in data/processed as the profile smoke wants them (embedded data); "
        "`dvc repro preprocess` packs them\n"
    )

"""Want of memory on a device: noted with its reason, tried once more alone there, and never with another batch."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runs.store import RunStore
from stages.scheduling.engine.lease import LeaseTable
from stages.scheduling.engine.leases import describe_failure, is_out_of_memory
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project, outcomes

pytestmark = pytest.mark.long

# As torch raises it, the first `SHORT` times, in whichever process.
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
    """Its worker, which is in no run key, runs out of memory."""
    folder = make_project(tmp_path / "project", epochs=1)
    shutil.copytree(REPOSITORY / "stages", folder / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    worker = folder / "stages" / "worker.py"
    source, line = worker.read_text(), "    run_key = job.spec.run_key\n"
    assert source.count(line) == 1
    worker.write_text(source.replace(line, HUNGRY + line))
    return folder


def train(project: Path, short: int, devices: str) -> subprocess.CompletedProcess[str]:
    env = environment() | {"PYTHONPATH": str(project), "SHORT": str(short)}
    command = [sys.executable, "-m", "stages.train", EXPERIMENT, "--device", devices]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)


def ends(project: Path) -> list[list[tuple[str | None, str]]]:
    """How the attempts of each run ended, and why."""
    store = RunStore(project / "data" / "store")
    leases = LeaseTable(store.root / "leases.db")
    with leases._transaction() as connection:
        keys = [key for (key,) in connection.execute("SELECT DISTINCT run_key FROM attempts")]
    return sorted([(one.end, one.reason) for one in leases.attempts(key)] for key in keys)


def test_a_run_that_was_short_of_memory_is_tried_once_more_alone(project: Path, tmp_path: Path) -> None:
    done = train(project, 1, "cpu,cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{REASON}; it is tried once more, alone on its device") == 1
    assert ends(project) == [[("memory", REASON), ("published", "")], [("published", "")]]
    plenty = make_project(tmp_path / "plenty", epochs=1)
    command = [sys.executable, "-m", "stages.train", EXPERIMENT, "--device", "cpu,cpu"]
    subprocess.run(command, cwd=plenty, env=environment(), check=True, capture_output=True)
    assert outcomes(project) == outcomes(plenty), "by the same batches"


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "tries"), [("cpu,cpu", 2), ("cpu", 1)])
def test_a_run_that_is_short_of_memory_alone_fails_with_the_reason(project: Path, devices: str, tries: int) -> None:
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
def test_want_of_memory_is_told_from_other_errors(error: Exception, is_short: bool) -> None:
    assert is_out_of_memory(error) is is_short
    assert (describe_failure(error)[0] == "memory") is is_short


@pytest.mark.slow
def test_a_failing_run_is_tried_by_one_slot_only(project: Path) -> None:
    """The other one, which waited for it, doesn't try it again."""
    worker = project / "stages" / "worker.py"
    worker.write_text(worker.read_text().replace("torch.OutOfMemoryError(", "ValueError("))
    done = train(project, 99, "cpu,cpu")
    assert done.returncode == 1
    assert [len(attempts) for attempts in ends(project)] == [1, 1]

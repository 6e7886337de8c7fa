"""A stage forked from the preloaded process behaves like one of its own: output, exit code and shutdown."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stages.commands import preloaded
from stages.commands.preloaded import ADDRESS, LIBRARIES, ask
from tests.polling import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
CALL = f"""
import os, sys
from stages.stage import run_preloaded
sys.exit(run_preloaded(os.environ["{ADDRESS}"], sys.argv[1], sys.argv[2:]))
"""
VERB = """
import os, sys, time
what = sys.argv[1]
print(os.getpid(), "torch" in sys.modules, any(name.startswith("stages") for name in sys.modules), flush=True)
print("said on stderr", file=sys.stderr)
if what == "sleep":
    time.sleep(60)
if what == "die":
    os.kill(os.getpid(), 9)
sys.exit(int(what))
"""
LITTLE = ("json", "numpy")
"""A short list of libraries; importing the whole list takes seconds."""


@contextmanager
def server(
    folder: Path, environment: dict[str, str], libraries: tuple[str, ...] = LITTLE, verbs: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    script = folder / "server.py"
    text = Path(preloaded.__file__).read_text(encoding="utf-8")
    before, after = text.index("LIBRARIES = ("), text.index("VERBS = (")
    script.write_text(f"{text[:before]}LIBRARIES = {libraries}\n{text[after:]}", encoding="utf-8")
    command = [sys.executable, "-P", str(script), environment[ADDRESS], *verbs]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE)
    with process:
        wait_until(lambda: Path(environment[ADDRESS]).exists(), 60)
        try:
            yield process
        finally:
            process.kill()


def catches(number: signal.Signals, process: subprocess.Popen[str]) -> bool:
    status = dict(
        line.split(":\t") for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    )
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


def has_received_pid(caller: subprocess.Popen[str]) -> bool:
    """Return True once the caller forwards SIGTERM, which it does as soon as it knows the stage's pid."""
    return catches(signal.SIGTERM, caller)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "verb.py").write_text(VERB, encoding="utf-8")
    return os.environ | {ADDRESS: str(tmp_path / "s"), "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}


@contextmanager
def call(folder: Path, environment: dict[str, str], what: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CALL, "verb", what]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True) as caller:
        yield caller


@pytest.mark.parametrize(("what", "code"), [("0", 0), ("3", 3), ("die", 256 - 9)])
def test_forked_stage_has_the_same_output_and_exit_code(
    tmp_path: Path, environment: dict[str, str], what: str, code: int
) -> None:
    with server(tmp_path, environment) as process, call(tmp_path, environment, what) as caller:
        output, errors = caller.communicate(timeout=30)
        pid = int(output.split()[0])
        assert pid not in (caller.pid, process.pid) and errors == "said on stderr\n"
        assert output.split()[2] == "False", "this server was asked to load none of our code"
        assert caller.returncode == code
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0 and not Path(environment[ADDRESS]).exists(), "it exits when its stdin closes"


@pytest.mark.parametrize("killed", ["caller", "server"])
def test_stage_ends_with_its_caller_or_the_server(tmp_path: Path, environment: dict[str, str], killed: str) -> None:
    with server(tmp_path, environment) as process, call(tmp_path, environment, "sleep") as caller:
        assert caller.stdout is not None and caller.stderr is not None
        pid = int(caller.stdout.readline().split()[0])
        wait_until(lambda: has_received_pid(caller))
        (caller if killed == "caller" else process).kill()
        wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        if killed == "server":
            assert caller.wait(20) == os.EX_TEMPFAIL
            assert "had loaded the libraries is gone, and this stage with it" in caller.stderr.read()


def test_sigterm_is_forwarded_to_the_stage(tmp_path: Path, environment: dict[str, str]) -> None:
    with server(tmp_path, environment), call(tmp_path, environment, "sleep") as caller:
        assert caller.stdout is not None
        caller.stdout.readline()
        wait_until(lambda: has_received_pid(caller))
        caller.send_signal(signal.SIGTERM)
        assert caller.wait(20) == 256 - signal.SIGTERM


def test_stage_runs_the_code_that_the_server_loaded_in_its_folder(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "__init__.py").touch()
    part = tmp_path / "stages" / "part.py"
    part.write_text("number = 1\n", encoding="utf-8")
    verb = "import pathlib, stages.part\npathlib.Path('said').write_text(str(stages.part.number))\n"
    (tmp_path / "stages" / "fetch.py").write_text(verb, encoding="utf-8")

    def fetch(folder: Path) -> list[bytes]:
        monkeypatch.chdir(folder)
        with open(os.devnull, "r+b") as null:
            files = [null.fileno()] * 3
            with ask(environment[ADDRESS], "stages.fetch", [], environment, files) as call, call.makefile("rb") as said:
                return said.read().split()[1:]

    with server(tmp_path, environment, verbs=("fetch",)):
        assert fetch(tmp_path) == [b"0"]
        part.write_text("number = 22\n", encoding="utf-8")
        (tmp_path / "said").unlink()
        assert fetch(tmp_path) == [b"0"] and (tmp_path / "said").read_text(encoding="utf-8") == "1"
        assert fetch(tmp_path / "stages") == [], "declined"


def test_setting_read_at_startup_needs_a_new_process(tmp_path: Path, environment: dict[str, str]) -> None:
    with server(tmp_path, environment), call(tmp_path, environment | {"OMP_NUM_THREADS": "7"}, "0") as caller:
        assert (caller.communicate(timeout=30)[0], caller.returncode) == ("", 0), "None declines the call"


def test_stage_runs_in_this_process_if_no_server_is_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stages.stage", "train", "--help"]
    environment = os.environ | {ADDRESS: str(tmp_path / "none")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("usage: train.py")


def test_caller_that_quits_early_does_not_affect_the_next(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(2)\n", encoding="utf-8")
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    with server(tmp_path, environment, ("slow",)):
        with call(tmp_path, environment, "sleep") as gone:
            wait_until(lambda: catches(signal.SIGINT, gone))  # Python has started
            wait_until(lambda: not catches(signal.SIGINT, gone))
            time.sleep(0.2)  # the request is sent but unanswered
            gone.send_signal(signal.SIGINT)
            assert gone.wait(10) == -signal.SIGINT
        with call(tmp_path, environment, "0") as caller:
            output, errors = caller.communicate(timeout=30)
    assert (caller.returncode, errors) == (0, "said on stderr\n") and output


COMPUTES = """
import os, sys
assert "torch._dynamo" in sys.modules, "it was loaded before"
assert len(os.listdir("/proc/self/task")) == 1
if os.fork():  # as a stage forks its slots
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
import numpy, torch
numpy.ones((500, 500)) @ numpy.ones((500, 500))
torch.ones(500, 500) @ torch.ones(500, 500)
torch.ones(500, 500, requires_grad=True).sum().backward()
os._exit(7)
"""


@pytest.mark.timeout(120)
def test_stage_has_all_libraries_one_thread_and_computes(tmp_path: Path, environment: dict[str, str]) -> None:
    """Environment variables that a library sets on import (Inductor does) must not block a call."""
    (tmp_path / "verb.py").write_text(COMPUTES, encoding="utf-8")
    for name in ("OMP_WAIT_POLICY", "TORCHINDUCTOR_CACHE_DIR"):
        environment.pop(name, None)
    with server(tmp_path, environment, LIBRARIES), call(tmp_path, environment, "") as caller:
        output, errors = caller.communicate(timeout=60)
    assert (caller.returncode, output, errors) == (7, "", "")

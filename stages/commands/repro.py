"""`dvc repro`, or what some experiments need of it: one at a time in a folder, its stages forks of one process.

What it writes goes to a log that this process only reads (`following.py`): whatever happens to it, dvc and its stages
go on or end as they would without it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import yaml

from stages import preloaded
from stages.commands.ahead import Ahead
from stages.commands.command import Answer
from stages.commands.following import LogView
from stages.interruption import on_signal
from stages.params.budget import plan_runs
from stages.params.experiment import Params, load_params
from stages.params.stage_inputs import stage_inputs
from stages.preloaded import ADDRESS
from stages.runs.revisions import refusal, without_git_variables
from stages.scheduling.counting import COUNT_FILE
from stages.scheduling.runner import find_experiment

LOGS = Path("data/logs")
_KEPT_LOGS = 10
_END_SECONDS = 10
_POLL_SECONDS = 0.1


class BrokenLock(ValueError):
    """DVC couldn't read its lock file; the message says what to do."""


def refuse_broken_lock(path: Path) -> None:
    """Say what is wrong with `dvc.lock` and what to do, where DVC would quote its parser.

    Raises:
        BrokenLock: it is empty, cut short, or holds both sides of a merge.
    """
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    if re.search(r"(?m)^(<{7}|={7}|>{7})", text):
        fault = "holds both sides of a merge"
    else:
        try:
            content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            fault = "" if isinstance(content, dict) and "stages" in content else "is empty or cut short"
        except yaml.YAMLError as error:
            fault = f"is damaged or cut short ({' '.join(str(error).split())[:80]})"
    if fault:
        raise BrokenLock(
            f"{path} {fault}; `git checkout {path}` brings back the committed one, `rm {path}` starts a new one: "
            "either way what was trained and evaluated is in data/store and isn't done again"
        )


class AnotherRepro(ValueError):
    """Another repro is at work in this folder; the message says which, and what to do."""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold `path` for as long as the block lasts or this process lives: DVC's own locks would fail the second anywhere.

    Raises:
        AnotherRepro: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            pid = held.read().strip()
            raise AnotherRepro(
                f"another repro is at work in this folder, process {pid}; nothing was done. "
                "`claimcheck status --watch` shows how far it is; wait for its end, "
                f"or stop it by `kill {pid}`: what it has trained stays"
            ) from None
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def repro(options: argparse.Namespace) -> Answer:
    """Run the pipeline, or the part of it that the named experiments need."""
    refuse_broken_lock(Path("dvc.lock"))
    with alone(LOGS / "repro.pid"):
        return _repro(options)


def _repro(options: argparse.Namespace) -> Answer:
    params = load_params()
    experiments = [find_experiment(params, name).name for name in options.experiments]
    targets = ["analyse", *(f"evaluate@{name}" for name in experiments)] if experiments else []
    commands = [["dvc", "repro", *targets]]
    if experiments:  # otherwise DVC would make the results of all first
        commands.append(["dvc", "repro", "--single-item", "record", "report"])
    log = LOGS / f"repro-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
    for old in sorted(LOGS.glob("repro-*.log"))[: 1 - _KEPT_LOGS]:
        old.unlink(missing_ok=True)
    no_git = refusal(Path())
    if no_git:
        print(f"repro: {no_git}; this runs without git, and results name no revision", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="claimcheck-") as folder, log.open("wb") as written:
        count = Path(folder) / "count.json"
        address = str(Path(folder) / "preloaded")
        view = LogView(log, count, _stages(params, experiments))
        own = _environment(Path(folder), has_git=not no_git)
        environment = own | {COUNT_FILE: str(count), ADDRESS: address}
        loaded = _libraries_loaded(environment, written.fileno(), view)
        with loaded, Ahead(address, own, params.profile) as ahead:
            for words in commands:
                code = _run([sys.executable, "-m", *words], environment, written.fileno(), view, ahead)
                if code:
                    return Answer(document=None, shown=view.failure(code), code=code)
    return Answer(document=None, shown=view.success())


def _stages(params: Params, experiments: Sequence[str]) -> dict[str, float]:
    """The stages of dvc.yaml without those of other experiments and their data, each with its number of runs, or 1."""
    names = ["inputs", *stage_inputs(params)]
    wanted = {*experiments, *(params.experiments[name].dataset for name in experiments)}
    kept = [name for name in names if not experiments or "@" not in name or name.partition("@")[2] in wanted]
    return {name: _runs(name, params) for name in kept}


def _runs(stage: str, params: Params) -> float:
    experiment = params.experiments.get(stage.partition("@")[2])
    if experiment is None:
        return 1.0
    return max(1.0, len(plan_runs(experiment, params.profile, params.datasets[experiment.dataset])))


def _environment(folder: Path, *, has_git: bool) -> dict[str, str]:
    """This one, with the `python` of dvc.yaml being ours, every line written at once, and what DVC can't do without."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = without_git_variables() | {"PATH": path, "PYTHONUNBUFFERED": "1"}
    if not has_git:
        (folder / "config").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
        environment["DVC_SYSTEM_CONFIG_DIR"] = str(folder)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # a container's user
        environment = {"USER": str(os.getuid()), "HOME": str(folder)} | environment
    return environment


@contextmanager
def _libraries_loaded(environment: dict[str, str], output: int, view: LogView) -> Iterator[None]:
    """A process that has loaded torch, of which stages are forks; it ends after the last of them.

    Where no stage ran it may still be loading, and nobody waits for that.
    """
    if sys.platform != "linux":
        yield
        return
    command = [sys.executable, "-P", preloaded.__file__, environment[ADDRESS]]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output)
    assert server.stdin is not None, "it was asked for"
    try:
        yield
    finally:
        server.stdin.close()
        if not view.ran:
            server.kill()
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _run(words: Sequence[str], environment: dict[str, str], output: int, view: LogView, ahead: Ahead) -> int:
    """The exit code of a command whose output goes to the file; 128 and its number for a signal, as shells have it.

    Ctrl-C reaches it from the terminal, which sends it to all of the foreground's processes: it ends in its own way.
    """
    process = subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)
    with on_signal(signal.SIGINT, view.interrupt), on_signal(signal.SIGTERM, process.terminate), view.shown():
        while process.poll() is None:
            view.look()
            if not view.is_interrupted:
                ahead.look(view.stage, view.ended)
            time.sleep(_POLL_SECONDS)
        view.look()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode

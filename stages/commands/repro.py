"""`dvc repro`, or what some experiments need of it: one at a time in a folder, its stages forks of one process.

What it writes goes to a log that this process only reads : whatever happens to it, dvc and its stages
go on or end as they would without it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import yaml
from rich.live import Live
from rich.text import Text

from stages import preloaded
from stages.commands.command import Answer, Terminal, in_words
from stages.faults import Mistake, on_signal
from stages.params.experiment import ProfileParams, load_params, plan_runs
from stages.params.schema import describe_yaml
from stages.params.stage_inputs import stage_inputs
from stages.preloaded import ADDRESS, ask
from stages.runs.object_store import open_store
from stages.runs.revisions import refusal, without_git_variables
from stages.scheduling.journal import StageTimes, left_to_train
from stages.scheduling.runner import find_experiment


class Ahead:
    """Context manager.  One evaluation at a time, in a fork of the process at `address`; it ends with this one.

    What it says goes nowhere: the stage, which lists every run, says it again.  On stand-ins alone: elsewhere a network
    is timed while nothing else trains.
    """

    def __init__(self, address: str, environment: Mapping[str, str], profile: ProfileParams) -> None:
        self._address, self._environment = address, environment
        self._is_wanted = profile.data == "embedded"
        self._begun: set[str] = set()
        self._call: socket.socket | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def look(self, stage: str, ended: Sequence[str]) -> None:
        """Begin the next evaluation if none is under way; dvc is at `stage`, and those that `ended` did so well.

        While dvc trains, in the order in which it did; then from the last on, to meet it halfway.
        """
        verb, _, experiment = stage.partition("@")
        if verb == "evaluate":
            self._begun.add(experiment)
        trained = [name.partition("@")[2] for name in ended if name.startswith("train@")]
        waiting = [name for name in trained if name not in self._begun]
        if self._is_wanted and waiting and not self._is_busy():
            chosen = waiting[0 if verb == "train" else -1]
            self._begun.add(chosen)
            with open(os.devnull, "r+b") as nothing, suppress(OSError):  # no process listens: dvc's stage does it
                files = [nothing.fileno()] * 3
                self._call = ask(self._address, "stages.evaluate", [chosen, "--ahead"], self._environment, files)
                self._call.setblocking(False)

    def _is_busy(self) -> bool:
        while self._call is not None:
            try:
                answer = self._call.recv(64)
            except BlockingIOError:
                return True
            except OSError:
                answer = b""
            if not answer:
                self._end()
        return False

    def _end(self) -> None:
        if self._call is not None:
            self._call.close()
        self._call = None


_STARTS = re.compile(rb"Running stage '(.+)':")
_SKIPPED = re.compile(rb"(?:Stage )?'(.+)' (?:didn't change, skipping|is cached - skipping run, checking out outputs)")
_LATE_SECONDS = 5.0
"""How much later than its start a stage may be noticed on a busy machine."""
_LAST_LINES = 20
"""Of a stage that was interrupted."""


class LogView:
    """Reads the log as it grows; `stages` are expected, each with its weight."""

    def __init__(self, log: Path, stages: Mapping[str, float]) -> None:
        self.log, self.stages, self._store = log, stages, open_store()
        self._times = StageTimes(stages)
        self.started = time.monotonic()
        self.stage, self.seen, self.ran = "", 0, 0
        self.is_interrupted = False
        self.ended: list[str] = []
        self._read = self._stage_from = 0
        self._stage_started, self._is_open = self.started, False
        self._counted = 0.0
        self._left: tuple[int, float | None] | None = None
        self._terminal = Terminal()

    def interrupt(self) -> None:
        self.is_interrupted = True

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A live line while this is open, on a terminal."""
        if not self._terminal.is_terminal:
            yield
            return
        line = Live(
            console=self._terminal,
            get_renderable=self._line,
            transient=True,
            refresh_per_second=4,
            redirect_stderr=False,
        )
        with line:
            yield

    def look(self) -> None:
        """Read what has been written since, by whole lines."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._take(line.rstrip(), self._read)
                self._read += len(line)

    def _take(self, line: bytes, place: int) -> None:
        if match := _STARTS.fullmatch(line):
            stage = match[1].decode()
            self._end()
            self._stage_from = place
            self.stage, self._stage_started, self._is_open = stage, time.monotonic(), True
            self._counted, self._left = 0.0, None
            self._times.start(stage)
            self.seen += 1
            self.ran += 1
            if not self._terminal.is_terminal:
                print(self._position(), end="", flush=True)
        elif match := _SKIPPED.fullmatch(line):
            self._end()
            self._times.skip(match[1].decode())
            self.seen += 1
            self._stage_from = place + len(line) + 1
        elif line.startswith(b"Updating lock file"):
            self._end()

    def _end(self, *, is_failed: bool = False) -> None:
        """End the line that the stage's start began: its runs and how long it took."""
        if self._is_open:
            self._times.end(time.monotonic() - self._stage_started)
            self.ended.append(self.stage)
        if self._is_open and not self._terminal.is_terminal:
            runs = self._runs_done(is_over=not is_failed)
            print(f": {f'{runs}, ' if runs else ''}{in_words(time.monotonic() - self._stage_started)}", flush=True)
        self._is_open = False

    def _runs_done(self, *, is_over: bool = False) -> str:
        """Count the trained runs of an experiment; a finished training without a journal had none missing."""
        verb, _, experiment = self.stage.partition("@")
        if verb != "train":
            return ""
        now = time.monotonic()
        if is_over or now >= self._counted:
            self._counted = now + 2 * self._store.poll_seconds
            began = time.time() - (now - self._stage_started) - _LATE_SECONDS
            self._left = left_to_train(self._store, experiment, began)
        if self._left is None and not is_over:
            return ""
        runs = int(self.stages[self.stage])
        return f"{max(0, runs - (self._left[0] if self._left else 0))} of {runs} runs"

    def _position(self) -> str:
        return f"stage {self.seen} of {len(self.stages)}, {self.stage}"

    def _line(self) -> Text:
        if not self.stage:
            words = "looking for what has changed"
        else:
            words = self._position()
            if runs := self._runs_done() if self._is_open else "":
                words += f", {runs}"
            left = self._times.left(time.monotonic() - self._stage_started, self._left[1] if self._left else None)
            if left is not None:
                words += f", about {in_words(left)} left"
        return Text(f"{words} ({in_words(time.monotonic() - self.started)} so far)", no_wrap=True, overflow="ellipsis")

    def success(self) -> list[str]:
        self._end()
        if not self.ran:
            return [f"all {self.seen} stages are up to date"]
        unchanged = f", {self.seen - self.ran} unchanged" if self.seen > self.ran else ""
        took = in_words(time.monotonic() - self.started)
        return [f"{self.ran} stages run{unchanged}, in {took}; full log: {self.log}"]

    def failure(self, code: int) -> list[str]:
        """The output of the stage that failed, whole, and what dvc says of it."""
        self._end(is_failed=True)
        with self.log.open("rb") as file:
            file.seek(self._stage_from)
            lines = file.read().decode(errors="replace").splitlines()
        if self.is_interrupted:
            lines = [line for line in lines if not line.startswith("ERROR: failed to")][-_LAST_LINES:]  # DVC's words
        what = "stopped" if self.is_interrupted else "failed"
        where = f"{self._position()}, {what}" if self.stage else f"dvc {what}"
        return [*lines, f"{where} (exit code {code}); full log: {self.log}; the next `make repro` continues from here"]


LOGS = Path("data/logs")
_KEPT_LOGS = 10
_END_SECONDS = 10
_POLL_SECONDS = 0.1


class BrokenLock(Mistake, ValueError):
    """DVC couldn't read its lock file; the message says what to do."""


def refuse_broken_lock(path: Path) -> None:
    """Say what is wrong with `dvc.lock` and what to do, where DVC would quote its parser."""
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
            fault = f"is damaged or cut short ({describe_yaml(error)})"
    if fault:
        raise BrokenLock(
            f"{path} {fault}; `git checkout {path}` brings back the committed one, `rm {path}` starts a new one: "
            "either way what was trained and evaluated is in data/store and isn't done again"
        )


class AnotherRepro(Mistake, ValueError):
    """Another repro is at work in this folder; the message says which, and what to do."""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold `path` for as long as the block lasts or this process lives; DVC's own locks would fail the second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            pid = held.read().strip()
            raise AnotherRepro(
                f"another repro is running in this folder (process {pid}), so nothing was done. "
                "`claimcheck status --watch` shows how far it is; wait for its end, "
                f"or stop it by `kill {pid}`: its finished trainings are kept"
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
        address = str(Path(folder) / "preloaded")
        names = ["inputs", *stage_inputs(params)]
        wanted = {*experiments, *(params.experiments[name].dataset for name in experiments)}
        kept = [name for name in names if not experiments or "@" not in name or name.partition("@")[2] in wanted]
        weights = dict.fromkeys(kept, 1.0)  # runs of an experiment
        for name in kept:
            if (experiment := params.experiments.get(name.partition("@")[2])) is not None:
                runs = plan_runs(experiment, params.profile, params.datasets[experiment.dataset])
                weights[name] = max(1.0, len(runs))
        view = LogView(log, weights)
        own = _environment(Path(folder), has_git=not no_git)
        environment = own | {ADDRESS: address}
        loaded = _libraries_loaded(environment, written.fileno(), view)
        with loaded, Ahead(address, own, params.profile) as ahead:
            for words in commands:
                code = _run([sys.executable, "-m", *words], environment, written.fileno(), view, ahead)
                if code:
                    return Answer(document=None, shown=view.failure(code), code=code)
    return Answer(document=None, shown=view.success())


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

    If no stage ran it may still be loading; don't wait for that.
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

"""Subcommands `init`, which starts a project, and `repro`, which runs DVC or the stages that some experiments need.

All stages are forked from one process.  Only one repro runs in a folder at a time.  DVC writes to a log that this
process only reads, so that DVC and its stages continue or end as usual, whatever happens to this process.
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

from stages.commands import preloaded
from stages.commands.command import Answer, Terminal, in_words
from stages.commands.preloaded import ADDRESS, ask
from stages.faults import Mistake, on_signal
from stages.params.experiment import ProfileParams, load_params, plan_runs
from stages.params.stage_inputs import stage_inputs
from stages.runs.fingerprint import PACKAGE_ROOT
from stages.runs.object_store import open_store
from stages.runs.revisions import ask_git, prefix_in_git, refusal, without_git_variables
from stages.scheduling.journal import left_to_train
from stages.scheduling.runner import find_experiment
from stages.yaml_reader import describe_yaml


class BackgroundEvaluator:
    """Context manager that evaluates experiments while DVC trains others, so that their stages find the results cached.

    It runs one evaluation at a time, in a fork of the process at `address` that ends with this process.  The output is
    discarded, because the stage lists every run again.  Only placeholder data are evaluated in the background; on real
    data, networks are timed, and nothing else may run during that.
    """

    def __init__(self, address: str, environment: Mapping[str, str], profile: ProfileParams) -> None:
        self._address, self._environment = address, environment
        self._is_wanted = profile.data == "embedded"
        self._started: set[str] = set()
        self._call: socket.socket | None = None

    def __enter__(self) -> BackgroundEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start_next(self, stage: str, succeeded: Sequence[str]) -> None:
        """Start the next evaluation if none is running; DVC is at `stage`, and the stages in `succeeded` are done.

        While DVC trains, experiments are evaluated in the order in which they trained.  Once DVC evaluates, they are
        taken from the end, because DVC takes them from the start.
        """
        verb, _, experiment = stage.partition("@")
        if verb == "evaluate":
            self._started.add(experiment)
        trained = [name.partition("@")[2] for name in succeeded if name.startswith("train@")]
        waiting = [name for name in trained if name not in self._started]
        while self._call is not None:
            try:
                answer = self._call.recv(64)
            except BlockingIOError:  # it is running
                return
            except OSError:
                answer = b""
            if not answer:
                self._end()
        if self._is_wanted and waiting:
            chosen = waiting[0 if verb == "train" else -1]
            self._started.add(chosen)
            with open(os.devnull, "r+b") as null, suppress(OSError):  # if no process listens, the stage evaluates
                files = [null.fileno()] * 3
                self._call = ask(self._address, "stages.evaluate", [chosen, "--ahead"], self._environment, files)
                self._call.setblocking(False)

    def _end(self) -> None:
        if self._call is not None:
            self._call.close()
        self._call = None


_STARTS = re.compile(rb"Running stage '(.+)':")
_SKIPPED = re.compile(rb"(?:Stage )?'(.+)' (?:didn't change, skipping|is cached - skipping run, checking out outputs)")
_LATE_SECONDS = 5.0
"""Longest delay with which the start of a stage is noticed on a busy machine."""
_LAST_LINES = 20
"""Number of log lines shown of an interrupted stage."""


class LogView:
    """Follows the log and shows progress; `stages` has the expected stages, each with its number of runs."""

    def __init__(self, log: Path, stages: Mapping[str, int]) -> None:
        self.log, self.stages, self._store = log, stages, open_store()
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
        """Show a live progress line until the block ends, if this is a terminal."""
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

    def update(self) -> None:
        """Read the complete lines that were written since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._process(line.rstrip(), self._read)
                self._read += len(line)

    def _process(self, line: bytes, offset: int) -> None:
        if match := _STARTS.fullmatch(line):
            stage = match[1].decode()
            self._end()
            self._stage_from = offset
            self.stage, self._stage_started, self._is_open = stage, time.monotonic(), True
            self._counted, self._left = 0.0, None
            self.seen += 1
            self.ran += 1
            if not self._terminal.is_terminal:
                print(self._position(), end="", flush=True)
        elif match := _SKIPPED.fullmatch(line):
            self._end()
            self.seen += 1
            self._stage_from = offset + len(line) + 1
        elif line.startswith(b"Updating lock file"):
            self._end()

    def _end(self, *, is_failed: bool = False) -> None:
        """Complete the line printed at the stage's start with its number of runs and its duration."""
        if self._is_open:
            self.ended.append(self.stage)
            if not self._terminal.is_terminal:
                runs = self._runs_done(is_over=not is_failed)
                print(f": {f'{runs}, ' if runs else ''}{in_words(time.monotonic() - self._stage_started)}", flush=True)
        self._is_open = False

    def _runs_done(self, *, is_over: bool = False) -> str:
        """Count an experiment's trained runs; if training ended without a journal, no run was missing."""
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
        runs = self.stages[self.stage]
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
                if self._left and self._left[1]:
                    words += f", trained in about {in_words(self._left[1])}"
        return Text(f"{words} ({in_words(time.monotonic() - self.started)} so far)", no_wrap=True, overflow="ellipsis")

    @property
    def is_idle(self) -> bool:
        """True if no stage ran but `inputs`, which always runs in a project of `init`."""
        return self.ran == 0 or self.ended == ["inputs"]

    def success(self) -> list[str]:
        self._end()
        if self.is_idle:
            return [f"all {self.seen} stages are up to date"]
        unchanged = f", {self.seen - self.ran} unchanged" if self.seen > self.ran else ""
        took = in_words(time.monotonic() - self.started)
        return [f"{self.ran} stages run{unchanged}, in {took}; full log: {self.log}"]

    def failure(self, code: int) -> list[str]:
        """Return all output of the failed stage, including DVC's message."""
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


def refuse_broken_lock(path: Path) -> None:
    """Raise a `Mistake` if `dvc.lock` can't be read; DVC would only quote its parser's error."""
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
        raise Mistake(
            f"{path} {fault}; `git checkout {path}` brings back the committed one, `rm {path}` starts a new one. "
            "Either way, nothing is trained or evaluated again, because all results are in data/store"
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path` until the block or this process ends; with DVC's own locks, a second repro would fail midway."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            pid = held.read().strip()
            raise Mistake(
                f"another repro is running in this folder (process {pid}), so nothing was done. "
                "`claimcheck status --watch` shows how far it is; wait for its end, "
                f"or stop it with `kill {pid}`: its finished trainings are kept"
            ) from None
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def repro(options: argparse.Namespace) -> Answer:
    """Run the pipeline, or the part of it that the named experiments need."""
    refuse_broken_lock(Path("dvc.lock"))
    params = load_params()
    experiments = [find_experiment(params, name).name for name in options.experiments]
    targets = ["analyse", *(f"evaluate@{name}" for name in experiments)] if experiments else []
    commands = [["dvc", "repro", *targets]]
    if experiments:  # without --single-item, DVC would first evaluate all experiments
        commands.append(["dvc", "repro", "--single-item", "record", "report"])
    log = LOGS / f"repro-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
    with (
        locked(LOGS / "repro.pid"),
        tempfile.TemporaryDirectory(prefix="claimcheck-") as folder,
        log.open("wb") as written,
    ):
        for old in sorted(LOGS.glob("repro-*.log"))[:-_KEPT_LOGS]:
            old.unlink(missing_ok=True)
        if no_git := refusal(Path()):
            print(f"repro: {no_git}; this runs without git, and results name no revision", file=sys.stderr)
        address = str(Path(folder) / "preloaded")
        names = ["inputs", *stage_inputs(params)]
        wanted = {*experiments, *(params.experiments[name].dataset for name in experiments)}
        kept = [name for name in names if not experiments or "@" not in name or name.partition("@")[2] in wanted]
        runs = dict.fromkeys(kept, 0)
        for name in kept:
            if (experiment := params.experiments.get(name.partition("@")[2])) is not None:
                runs[name] = len(plan_runs(experiment, params.profile, params.datasets[experiment.dataset]))
        view = LogView(log, runs)
        own = _environment(Path(folder), has_git=not no_git)
        environment = own | {ADDRESS: address}
        server = _preloaded_server(environment, written.fileno(), view)
        with server, BackgroundEvaluator(address, own, params.profile) as evaluator:
            for command in commands:
                code = _run([sys.executable, "-m", *command], environment, written.fileno(), view, evaluator)
                if code:
                    return Answer(document=None, shown=view.failure(code), code=code)
    return Answer(document=None, shown=view.success())


def _environment(folder: Path, *, has_git: bool) -> dict[str, str]:
    """Return this environment, changed so that DVC's stages use our Python, don't buffer lines, and DVC can start."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = without_git_variables() | {"PATH": path, "PYTHONUNBUFFERED": "1"}
    if not has_git:
        (folder / "config").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
        environment["DVC_SYSTEM_CONFIG_DIR"] = str(folder)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # in a container, the user may have no name
        environment = {"USER": str(os.getuid()), "HOME": str(folder)} | environment
    return environment


@contextmanager
def _preloaded_server(environment: dict[str, str], output: int, view: LogView) -> Iterator[None]:
    """Run a process that has loaded torch and forks the stages, until the last of them has ended.

    If no stage needed it, it is killed, because it may still be loading.
    """
    if sys.platform != "linux":
        yield
        return
    command = [sys.executable, "-P", preloaded.__file__, environment[ADDRESS], *preloaded.VERBS]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output)
    assert server.stdin is not None, "it was asked for"
    try:
        yield
    finally:
        server.stdin.close()
        if view.is_idle:
            server.kill()
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _run(
    command: Sequence[str], environment: dict[str, str], output: int, view: LogView, evaluator: BackgroundEvaluator
) -> int:
    """Run a command with its output in a file; return its exit code, or 128 plus the number of a signal, as shells do.

    Ctrl-C isn't forwarded, because the terminal sends it to all foreground processes.
    """
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    with on_signal(signal.SIGINT, view.interrupt), on_signal(signal.SIGTERM, process.terminate), view.shown():
        while process.poll() is None:
            view.update()
            if not view.is_interrupted:
                evaluator.start_next(view.stage, view.ended)
            time.sleep(_POLL_SECONDS)
        view.update()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


_PAGE = "docs/add-a-paper.md"
_FILE = re.compile(r"^`(?P<name>[\w./-]+)`[^\n]*\n\n```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_KEPT = ("evidence", "models", "registrations")
_SECTION = re.compile(r"^(\w+):.*\n(?:(?:[ #].*)?\n)*", re.MULTILINE)


def start(_: argparse.Namespace) -> Answer:
    """Write the files of a project with its example, and make the folder a DVC repository if it isn't in one."""
    found = dict(_files())
    if here := [
        name for name in found if Path(name).exists() and name not in (".gitignore", ".dvcignore", "README.md")
    ]:
        raise Mistake(
            f"{', '.join(here)}: already in this folder, so nothing was written; "
            "in a repository with a pipeline, make a folder for the paper and run claimcheck init there"
        )
    for name, text in found.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        end = b"" if not before or before.endswith(b"\n") else b"\n"  # else its last line would swallow our first one
        path.write_bytes(before + end + text.encode())
    dvc = [sys.executable, "-m", "dvc"]
    if subprocess.run([*dvc, "root"], capture_output=True, check=False).returncode:
        place: dict[str | None, list[str]] = {None: ["--no-scm"], "": []}  # without git, and at a repository's top
        subprocess.run([*dvc, "init", "--quiet", *place.get(prefix_in_git(Path()), ["--subdir"])], check=True)
    root = subprocess.run([*dvc, "root"], capture_output=True, encoding="utf-8", check=True).stdout.strip()
    plots = Path(root, ".dvc", "plots", "arms.json")
    plots.parent.mkdir(exist_ok=True)
    if not plots.exists():
        plots.write_bytes((PACKAGE_ROOT / ".dvc" / "plots" / plots.name).read_bytes())
    shown = [f"wrote {name}" for name in found]
    if ignored := (ask_git(Path(), "check-ignore", *found, ceiling="") or "").splitlines():
        shown.append(f"git ignores {', '.join(ignored)}: commit them with `git add --force`")
    return Answer(document={"files": [*found]}, shown=[*shown, "next: claimcheck repro, then claimcheck status"])


def _files() -> Iterator[tuple[str, str]]:
    """Yield name and text of every file of a new project."""
    for match in _FILE.finditer((PACKAGE_ROOT / _PAGE).read_text(encoding="utf-8")):
        yield match["name"], match["text"]
    text = re.sub(r"^#.*\n", "", (PACKAGE_ROOT / "params.yaml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {match[1]: match[0] for match in _SECTION.finditer(text)}
    mnist = re.search(r"^  mnist:\n(?:   .*\n)+", sections["datasets"], re.MULTILINE)
    assert mnist is not None
    sections["experiments"] = "experiments:\n  toy-mnist: {paper: toy, dataset: mnist}\n\n"
    sections["datasets"] = f"datasets:\n{mnist[0]}"
    sections["verdicts"] = re.sub(r"(?<=\n  families: ).*", "[]", sections["verdicts"])
    yield "params.yaml", "# Profiles, rules, data sets and experiments.\n\n" + "".join(sections.values())
    pipeline = (PACKAGE_ROOT / "dvc.yaml").read_text(encoding="utf-8")
    pipeline = pipeline[pipeline.index("vars:") :].replace("python -m stages.stage", "claimcheck stage")
    pipeline = pipeline.replace("python -m stages.inputs", "claimcheck stage inputs")
    # The installed code isn't in this folder: the stage looks at it each time.
    yield (
        "dvc.yaml",
        pipeline.replace("    deps:\n      - stages\n", "    always_changed: true\n    deps:\n      - papers\n"),
    )
    ignored = (PACKAGE_ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    yield ".gitignore", "\n".join(["__pycache__/", *(line for line in ignored if line.startswith("/data/")), ""])
    yield ".dvcignore", "__pycache__\n*.pyc\n"
    yield "data/claims-history.jsonl", ""
    yield from ((f"data/{name}/.gitkeep", "") for name in _KEPT)

import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import yaml
from PIL import Image

from stages.cli import COMMANDS, main
from stages.commands.command import wrap
from stages.recording.builder import record
from tests.claims.lines import copy_project
from tests.project import REPOSITORY, captured, environment
from tests.terminal import on_terminal

COMMAND = [sys.executable, "-m", "stages.cli"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All params and claims, and a database without results."""
    folder = tmp_path_factory.mktemp("project")
    copy_project(folder)
    record(folder, "data/results.db")
    (folder / "data" / "evidence").mkdir(exist_ok=True)
    (folder / "data" / "flops.json").write_text("{}", encoding="utf-8")
    return folder


def claimcheck(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run the command in this process with piped output; tests of terminals and closed pipes start processes."""
    with (
        chdir(cwd),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(StringIO()) as stdout,
        redirect_stderr(StringIO()) as stderr,
    ):
        patch.setenv("COLUMNS", "80")
        try:
            code: int = main([*arguments])
        except SystemExit as end:  # after --help
            code = int(end.code or 0)
    return subprocess.CompletedProcess(["claimcheck", *arguments], code, stdout.getvalue(), stderr.getvalue())


def test_help_lists_every_command_in_eighty_columns() -> None:
    done = claimcheck("--help")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "") and max(map(len, lines)) <= 80
    assert set(COMMANDS) <= {line.split()[0] for line in lines if line.startswith("    ")}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_has_a_sentence_an_example_and_exit_codes(name: str) -> None:
    done = claimcheck(name, "--help")
    assert (done.returncode, done.stderr) == (0, "") and max(map(len, done.stdout.splitlines())) <= 80
    usage, sentence, *_ = done.stdout.split("\n\n")
    assert usage.startswith(f"usage: claimcheck {name} ")
    assert sentence.endswith(".") and ". " not in sentence.replace("\n", " ")
    example = done.stdout.split("\nexample:\n")[1].splitlines()[0]
    assert f"claimcheck {name}" in example
    codes = done.stdout.split("\nexit codes:\n")[1].splitlines()
    assert [line.split()[0] for line in codes] == ["0", "1", "2"]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_help_examples_are_valid_commands(name: str) -> None:
    from stages.cli import parse

    words = shlex.split(COMMANDS[name].example)
    assert words[:2] == ["claimcheck", name] and parse(words[1:]).command == name


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("statsu", 2, "claimcheck: no command 'statsu'; did you mean status? (see claimcheck --help)"),
        (
            "verify --alll",
            2,
            "claimcheck verify: no option '--alll'; did you mean --all? (see claimcheck verify --help)",
        ),
        ("du all", 2, "claimcheck du: 'all' is an unexpected argument (see claimcheck du --help)"),
        (
            "completion bsh",
            2,
            "claimcheck completion: no shell 'bsh'; did you mean bash? (see claimcheck completion --",
        ),
        ("sample mnist --index x", 2, "claimcheck sample: argument --index: invalid int value: 'x' (see claimcheck "),
        ("", 2, "claimcheck: the following arguments are required: command (see claimcheck --help)"),
        ("run", 2, "claimcheck run: name experiments, or say --all (see claimcheck run --help)"),
        ("run --all mnist", 2, "claimcheck run: name experiments, or say --all (see claimcheck run --help)"),
        ("plan dac-sgem", 1, "claimcheck plan: params.yaml: no experiment 'dac-sgem'; did you mean dac-sgemm?"),
        (
            "show dac.sgem.gain",
            1,
            "claimcheck show: no experiment or claim 'dac.sgem.gain'; did you mean dac.sgemm.gain?",
        ),
        ("show dac.sgem.gain --json", 1, "claimcheck show: no experiment or claim 'dac.sgem.gain'; did you mean "),
        ("status ninfomer", 1, "claimcheck status: no paper 'ninfomer'; did you mean ninformer?"),
        ("status x", 1, "claimcheck status: no paper 'x'; known: ninformer, hyperbf, nmn, brownian, dac"),
        ("profile quik", 1, "claimcheck profile: no profile 'quik'; did you mean quick?"),
        ("sample cifra10", 1, "claimcheck sample: params.yaml: no data set 'cifra10'; did you mean cifar10?"),
        ("sample sgemm", 1, "claimcheck sample: sgemm is of kind table and has no images with one class each"),
        (
            "publish ninformer-mnist foo",
            1,
            "claimcheck publish: params.yaml: no experiment 'foo'; known: ninformer-mnist, ",
        ),
        ("release foo vit", 1, "claimcheck release: params.yaml: no experiment 'foo'; known: ninformer-mnist, "),
        ("verify x", 1, "claimcheck verify: no checkpoint 'x'"),
    ],
)
def test_mistyped_word_gets_the_nearest_name_in_one_line(project: Path, arguments: str, code: int, said: str) -> None:
    done = claimcheck(*arguments.split(), cwd=project)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr


def test_mistyped_arm_or_checkpoint_gets_the_nearest_name(published: str, tmp_path: Path) -> None:
    for part in ("params", "params.yaml"):
        (tmp_path / part).symlink_to(REPOSITORY / part)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "evidence").symlink_to(REPOSITORY / "data" / "evidence")
    shutil.copy(published, tmp_path / "data" / "results.db")
    done = claimcheck("release", "ninformer-mnist", "vti", cwd=tmp_path)
    said = "claimcheck release: data/evidence/ninformer-mnist.jsonl has no evidence of vti; did you mean vit?\n"
    assert (done.returncode, done.stderr) == (1, said)
    done = claimcheck("verify", "ninformer-mnist.ninforme.0", cwd=tmp_path)
    said = "no checkpoint 'ninformer-mnist.ninforme.0'; did you mean ninformer-mnist.ninformer.0?\n"
    assert (done.returncode, done.stderr) == (1, f"claimcheck verify: {said}")


def test_sample_and_release_work_in_an_untrained_clone(tmp_path: Path) -> None:
    for part in ("params", "params.yaml", "data/samples"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).symlink_to(REPOSITORY / part)
    published = ("data/evidence/ninformer-mnist.jsonl", "data/models/ninformer-mnist.ninformer.0.safetensors")
    for name in published:
        (tmp_path / name).parent.mkdir()
        shutil.copy(REPOSITORY / name, tmp_path / name)
    done = claimcheck(*shlex.split(COMMANDS["release"].example)[1:], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(tmp_path / name).read_bytes() for name in published] == [(REPOSITORY / n).read_bytes() for n in published]
    document = json.loads(claimcheck("sample", "mnist", "--index", "7", "--json", cwd=tmp_path).stdout)
    with Image.open(tmp_path / document["path"]) as image:
        assert (document["provenance"], image.size) == ("subset", (28, 28))


SHAPES = {
    "profile smoke": {"profile"},
    "plan ninformer-mnist": {"profile", "experiments", "profiles", "devices", "goals", "as_printed", "measured"},
    "show ninformer-mnist": {"experiment", "like", "params"},
    "show dac.sgemm.gain": {
        *(
            "claim",
            "paper",
            "place",
            "kind",
            "arm",
            "baseline_arm",
            "metric",
            "statement",
            "value",
            "unit",
            "qualifier",
        ),
        *("experiments", "verdict", "labs", "pooled", "runs", "deviations"),
    },
    "status dac": {"papers", "trainings"},
    "next --budget 1min dac-sgemm": {"device", "budget_seconds", "seconds", "usd", "steps", "trained", "left"},
    "why dac-sgemm.mlp-25x5.0": {
        *("run", "run_key", "profile", "model", "replicate", "reason", "outcome", "published", "against", "changed"),
        *("equivalences", "claims", "attempts"),
    },
    "history dac.*": {
        *("date", "subject", "claims", "before", "after", "changed", "after_evidence", "alters", "seen", "why")
    },
    "verify": {"record", "equivalences", "checkpoints", "evidence", "totals"},
    "du": {"bytes"},
    "gc": {"removed"},
}


@pytest.mark.parametrize("arguments", SHAPES)
def test_json_is_one_document_with_the_documented_schema(project: Path, arguments: str) -> None:
    done = claimcheck(*arguments.split(), "--json", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    for part in document if isinstance(document, list) else [document]:
        assert set(part) == SHAPES[arguments]
    documented = COMMANDS[arguments.split()[0]].document
    assert {name for name in SHAPES[arguments] if f"`{name}`" not in documented} == set()


def test_every_command_that_prints_results_supports_json() -> None:
    others = {"completion", "repro", "serve", "stage"}
    assert {name for name, command in COMMANDS.items() if not command.document} == others
    for name in set(COMMANDS) - others:
        assert "--json" in claimcheck(name, "--help").stdout


@pytest.mark.parametrize("arguments", ["plan ninformer-mnist", "verify"])
def test_piped_tables_fit_eighty_columns_without_truncation(project: Path, arguments: str) -> None:
    done = claimcheck(*arguments.split(), cwd=project)
    assert done.returncode == 0 and "…" not in done.stdout
    assert {len(line) > 80 for line in done.stdout.splitlines()} == {False}


@pytest.mark.parametrize("columns", [50, 200])
def test_plan_fits_the_terminal_and_lists_omitted_columns(project: Path, columns: int) -> None:
    code, written = on_terminal([*COMMAND, "plan", "ninformer-mnist"], project, environment(), columns=columns)
    shown = [line.rstrip() for line in written.splitlines()]
    assert code == 0 and max(map(len, shown)) <= columns
    (line,) = (line for line in shown if line.startswith("ninformer-mnist "))
    assert line.split()[1:3] == ["–", "4"]
    is_whole = not any(line.startswith("not in ") for line in shown)
    assert is_whole == (columns == 200)


def test_sentences_wrap_between_words_on_a_terminal_but_not_in_a_pipe(project: Path) -> None:
    arguments = ("history", "dac.sgemm.gain")
    code, written = on_terminal([*COMMAND, *arguments], project, environment(), columns=80)
    shown = written.splitlines()
    assert code == 0 and max(map(len, shown)) <= 80
    piped = claimcheck(*arguments, cwd=project).stdout
    assert max(map(len, piped.splitlines())) > 80
    assert written.split() == piped.split(), "no word is split or lost"


def test_wrapped_sentence_is_indented_below_its_start() -> None:
    assert wrap("verdict   supported: better by 10 % here", 30) == (
        "verdict   supported: better by\n          10 % here"
    )
    assert wrap("one sentence without any label", 20) == "one sentence without\n  any label"


def test_bash_completes_commands_options_and_names(project: Path) -> None:
    script = project / "completion.bash"
    script.write_text(claimcheck("completion", "bash").stdout, encoding="utf-8")

    def completed(*words: str) -> set[str]:
        ask = f"""
            source {script}; COMP_WORDS=({" ".join(f'"{word}"' for word in words)}); COMP_CWORD={len(words) - 1}
            COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
            "$(complete -p claimcheck | sed 's/.*-F \\([^ ]*\\).*/\\1/')" claimcheck "${{COMP_WORDS[COMP_CWORD]}}"
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "--norc", "-c", ask], cwd=project, capture_output=True, text=True, check=True, timeout=30
        )
        return {word.strip() for word in done.stdout.splitlines()}

    assert completed("claimcheck", "stat") == {"status"}
    assert "--weights" in completed("claimcheck", "verify", "--w")
    assert completed("claimcheck", "plan", "dac-vgg") == {"dac-vgg-cifar10", "dac-vgg-cifar100"}
    assert completed("claimcheck", "show", "dac.sgemm.g") == {"dac.sgemm.gain"}
    assert completed("claimcheck", "history", "dac.sgemm.g") == {"dac.sgemm.gain"}
    assert completed("claimcheck", "status", "n") == {"ninformer", "nmn"}
    assert completed("claimcheck", "profile", "q") == {"quick", "quick-bfloat16"}


ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=@''@ ZDOTDIR=$PWD; eval \"\$(<completion.zsh)\"; print rea''dy"
zpty -r shell seen '*ready*@@*'
for typed in "$@"; do
    zpty -n -w shell $typed$'\t\x15'"print do''ne"$'\n'
    zpty -r shell seen '*done*@@*' && print -r -- $seen
done
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine (apt install zsh)")
def test_zsh_completes_commands_options_and_repeated_names(project: Path) -> None:
    """Run zsh on a terminal without prior completion setup."""
    (project / "completion.zsh").write_text(claimcheck("completion", "zsh").stdout, encoding="utf-8")
    typed = {
        "claimcheck stat": "claimcheck status ",
        "claimcheck plan --j": "claimcheck plan --json ",
        "claimcheck plan nmn-g": "claimcheck plan nmn-gpt ",
        "claimcheck plan dac-sgemm nmn-g": "claimcheck plan dac-sgemm nmn-gpt ",
        "claimcheck show ninformer-mnist dac.sgemm.g": "claimcheck show ninformer-mnist dac.sgemm.gain ",
        "claimcheck history dac.sgemm.g": "claimcheck history dac.sgemm.gain ",
    }
    variables = environment() | {"TERM": "dumb", "COLUMNS": "200"}
    done = captured(["zsh", "-f", "-c", ZSH, "zsh", *typed], cwd=project, env=variables)
    assert [whole for whole in typed.values() if whole not in done.stdout] == []


def test_zsh_shows_each_commands_full_description() -> None:
    written = claimcheck("completion", "zsh").stdout
    for command in COMMANDS.values():
        assert command.does.replace("'", "'\"'\"'") in written


def test_show_prints_a_whole_experiment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(["show", "ninformer-mnist"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# For the sources of these values, see params/ninformer-mnist.yaml and, for")
    whole, like = (
        yaml.safe_load(printed),
        yaml.safe_load(Path("params/ninformer-cifar10.yaml").read_text(encoding="utf-8")),
    )
    assert whole["arms"] == like["arms"] and whole["title"] == "NiNformer, Tables 2 and 3, MNIST"
    assert whole["protocol"] == like["protocol"] | {"augmentation": {"crop_padding": 4}, "mean": [0.5], "std": [0.5]}


def test_show_prints_a_claim_with_its_verdict(project: Path) -> None:
    done = claimcheck("show", "dac.sgemm.gain", cwd=project)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0] == "dac.sgemm.gain (dac, section 5, Figure 4)"
    assert "printed   0.25 nats" in lines and "verdict   not tested: Not run yet." in lines


@pytest.mark.parametrize(
    ("command", "columns"),
    [("status >&-", "90"), ("status --watch >&- 2>&-", ""), ("status", "abc"), ("history", "-5")],
)
def test_closed_output_odd_width_and_ascii_terminal_are_not_errors(project: Path, command: str, columns: str) -> None:
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "COLUMNS": columns}
    line = f'"$0" -m stages.cli {command}'
    done = captured(["sh", "-c", line, sys.executable], cwd=project, env=environment() | ascii_only)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_is_complete_on_an_ascii_terminal(project: Path) -> None:
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    command = [*COMMAND, "history", "--json"]
    done = subprocess.run(command, cwd=project, env=environment() | ascii_only, capture_output=True, check=True)
    assert json.loads(done.stdout) == json.loads(claimcheck(*command[len(COMMAND) :], cwd=project).stdout)


@pytest.mark.parametrize("arguments", [["profile", "quick"], ["status"]])
def test_broken_pipe_is_not_an_error(project: Path, tmp_path: Path, arguments: list[str]) -> None:
    """For example `claimcheck plan | head`."""
    shutil.copytree(project, tmp_path / "project")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=tmp_path / "project",
        env=environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    if arguments[0] == "profile":
        assert "\nprofile: quick\n" in (tmp_path / "project" / "params.yaml").read_text(encoding="utf-8")

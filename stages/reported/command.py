"""The commands that the library has by itself: `judge`, `import` and `lint`; others come with `claimcheck[train]`.

pandas is loaded when a command runs, so that a list of commands doesn't wait for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from stages.reported import TableError
from stages.rules import ANYTIME, Margins, Rules

APPLICATION = Path(__file__).parent.parent / "app"
"""Folder of the packages `stages` and `service` in a wheel, which only this command puts on the path."""
_PARAMS = ("profile", "profiles", "experiments", "datasets", "rates")
"""Keys of a params.yaml other than `verdicts`."""
_NEEDED = ("dvc", "pydantic", "rich", "sqlalchemy", "torch")
"""Packages of `claimcheck[train]` without which no other command starts."""
_MORE = """\
This is the library alone.  For more commands (init, repro, run, status, show, ...):
  pip install 'claimcheck[train]'    train, record and judge a project of your own; [train,export]: export it
  pip install 'claimcheck[service]'  serve a project's results as web pages and an API
  pip install 'claimcheck[plot]'     matplotlib, for claimcheck.plot
  pip install 'claimcheck[trackers]' import MLflow's folders and TensorBoard's events"""


class Printed(NamedTuple):
    """A command's answer: `document` for programs, lines for people."""

    document: Any
    shown: Sequence[str]
    code: int = 0


@dataclass(frozen=True, kw_only=True)
class LibraryCommand:
    """A command of the library; fields as those of the application's commands.  `needs`: packages of an extra."""

    does: str
    example: str
    run: Callable[[argparse.Namespace], Printed]
    takes: Sequence[tuple[tuple[str, ...], Mapping[str, Any]]]
    codes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    document: str = ""
    needs: Sequence[str] = ()


def judge(options: argparse.Namespace) -> Printed:
    """Judge a table of claims by a table of results; rows that can't be judged are listed after the others."""
    from stages.reported import judging, tables

    if options.html:
        _refuse_input(options.html, options.claims, options.results)
    rules = judging.RULES if options.rules is None else _read_rules(options.rules, judging.RULES)
    judged = tables.judge(options.claims, options.results, rules)
    shown = [str(each) for each in judged.verdicts] + [f"not judged: {problem}" for problem in judged.problems]
    shown = shown or [f"{options.claims.name} has no claims below the names of its columns"]
    title = f"Verdicts on {options.claims.name}"
    if changed := judging.name_changes(rules):
        by = f"by the rules of {options.rules.name}, which change {', '.join(changed)}"
        title += f", {by}"
        shown.append(f"judged {by}")
    if options.html:
        _write(options.html, tables.write_page(judged, title))
        shown.append(f"report: {options.html}")
    document = {
        "verdicts": [each.to_dict() for each in judged.verdicts],
        "problems": [dataclasses.asdict(problem) for problem in judged.problems],
    }
    return Printed(document, shown, 1 if judged.problems else 0)


def _refuse_input(output: Path, *inputs: Path) -> None:
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise TableError(f"{output} is an input, which would be lost; name another file to write")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TableError(f"{path} can't be written: {error.strerror}") from None


def _read_rules(path: Path, usual: Rules) -> Rules:
    """Read rules that differ from the usual: `verdicts` of a params.yaml, or its fields; `looks` may be `anytime`."""
    try:
        from pydantic import TypeAdapter, ValidationError

        from stages.yaml_reader import read_yaml
    except ImportError:
        raise TableError("other rules need two packages: pip install pyyaml pydantic") from None
    try:
        found = read_yaml(path)
        if isinstance(found, dict) and "verdicts" in found:
            if others := [key for key in found if key not in ("verdicts", *_PARAMS)]:
                raise TableError(f"{path}: {others[0]} is next to verdicts; move it there, or leave it out")
            found = found["verdicts"]
        if not isinstance(found, dict):
            raise TableError(f"{path}: expected fields such as looks and margins; found {str(found)[:40]}")
        fields = dataclasses.asdict(usual) | found | ({"looks": ANYTIME} if found.get("looks") == "anytime" else {})
        if isinstance(fields["margins"], dict):
            fields["margins"] = dataclasses.asdict(usual.margins) | fields["margins"]
        return TypeAdapter(Rules).validate_python(fields)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        said, key_path = first["msg"], ".".join(map(str, first["loc"]))
        if first["type"] == "unexpected_keyword_argument":
            known = dataclasses.fields(Margins if key_path.startswith("margins.") else Rules)
            said = f"unknown key; known: {', '.join(field.name for field in known)}"
        raise TableError(f"{path}: {key_path}: {said}") from None
    except ValueError as error:
        raise TableError(str(error)) from None


def import_results(options: argparse.Namespace) -> Printed:
    """Write results of an experiment tracker as a table for `judge`."""
    from stages.reported import trackers

    _refuse_input(options.output, options.source)
    columns = {column: getattr(options, column) for column in trackers.USUAL if getattr(options, column)}
    imported = trackers.import_results(options.kind, options.source, columns=columns, metrics=options.metric)
    _write(options.output, imported.table.to_csv(index=False))
    runs = imported.table[["dataset", "arm", "seed"]].drop_duplicates()
    shown = [f"{options.output}: {len(imported.table)} values of {len(runs)} runs", *imported.notes]
    return Printed({"file": str(options.output), "runs": len(runs), "notes": imported.notes}, shown)


def lint(options: argparse.Namespace) -> Printed:
    """List the rows of a table of claims that can't be judged, and printed gains that their cells exclude."""
    from stages.reported import tables

    problems = tables.lint(options.claims)
    shown = [f"{options.claims}, {problem}" for problem in problems] or [f"{options.claims}: no faults found"]
    return Printed([dataclasses.asdict(one) for one in problems], shown, 1 if problems else 0)


def serve(options: argparse.Namespace) -> Printed:
    """Become the web service of the project in this folder."""
    os.execv(sys.executable, [sys.executable, "-m", "service", "--host", options.host, "--port", str(options.port)])


def _path(*flags: str, **options: Any) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    return flags, {"type": Path, **options}


COMMANDS: Mapping[str, LibraryCommand] = {
    "judge": LibraryCommand(
        does="Judge printed numbers by results that you already have, without training.",
        example="claimcheck judge claims.csv results.csv --html report.html",
        takes=[
            _path("claims", help="CSV with the columns id, kind, metric, arm, baseline, printed, ..."),
            _path("results", help="CSV with the columns dataset, arm, seed, metric, value"),
            _path("--rules", help="YAML with other margins and levels (default: those of params.yaml)"),
            _path("--html", metavar="FILE", help="also write a self-contained page"),
        ],
        run=judge,
        codes={1: "a row couldn't be judged; the others were"},
        document="`verdicts`, and `problems`: rows that can't be judged",
    ),
    "import": LibraryCommand(
        does="Make a table for `claimcheck judge` from W&B, MLflow or TensorBoard files.",
        example="claimcheck import mlflow mlruns -o results.csv",
        takes=[
            (("kind",), {"choices": ("csv", "mlflow", "tensorboard", "wandb"), "help": "what wrote the results"}),
            _path("source", help="an exported table, or the tracker's folder"),
            _path("-o", "--output", default=Path("results.csv"), help="default: %(default)s"),
            *(
                ((f"--{column}",), {"metavar": "PARAMETER", "help": f"the parameter that holds the {column}"})
                for column in ("arm", "seed", "dataset")
            ),
            (
                ("--metric",),
                {"nargs": "+", "default": [], "help": "metrics to keep (default: those with a known name)"},
            ),
        ],
        run=import_results,
        document="`file`, `runs`, a number, and `notes`",
    ),
    "lint": LibraryCommand(
        does="Check a table of claims: units, directions, models, and printed gains against their cells.",
        example="claimcheck lint claims.csv",
        takes=[_path("claims", help="CSV as for claimcheck judge, or data/claims.csv")],
        run=lint,
        codes={1: "a row has a fault"},
        document="a list of problems: `line`, `id`, `why`",
    ),
    "serve": LibraryCommand(
        does="Serve results, verdicts and models of this folder as web pages and an API.",
        example="claimcheck serve --port 8000",
        takes=[
            (("--host",), {"default": "127.0.0.1", "help": "default: %(default)s"}),
            (("--port",), {"type": int, "default": 8000, "help": "default: %(default)s"}),
        ],
        run=serve,
        needs=("fastapi", "torch"),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the application's command if its packages are installed, else one of those above."""
    sys.path.insert(0, str(APPLICATION))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(APPLICATION), *filter(None, [os.environ.get("PYTHONPATH")])])
    if all(map(find_spec, _NEEDED)):
        code: int = import_module("stages.cli").main(arguments)
        return code
    parser = argparse.ArgumentParser(
        prog="claimcheck",
        description="Check the numbers that papers print.",
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added = parser.add_subparsers(title="commands", dest="command", metavar="command", required=True)
    for name, one in COMMANDS.items():
        if all(map(find_spec, one.needs)):
            command = added.add_parser(name, help=one.does[0].lower() + one.does[1:].rstrip("."), description=one.does)
            for flags, given in one.takes:
                command.add_argument(*flags, **given)
            if one.document:
                command.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        document, shown, code = COMMANDS[options.command].run(options)
    except (TableError, OSError) as error:
        print(f"claimcheck {options.command}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(document, indent=1, allow_nan=False) if options.json else "\n".join(shown))
    return code

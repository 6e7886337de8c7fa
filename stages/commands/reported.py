"""Verdicts on results that somebody else reports, and a check of a table of claims."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from stages.commands.command import Answer
from stages.faults import Mistake
from stages.rules import Rules
from stages.runs.store import write_atomically


class ReportedMistake(Mistake, ValueError):
    """A table or rules that can't be read; the message says what was expected."""


def judge(options: argparse.Namespace) -> Answer:
    """Judge a table of claims by a table of results; rows that can't be judged are listed after the others."""
    from stages.reported.judging import RULES  # brings pandas
    from stages.reported.tables import TableError, write_page
    from stages.reported.tables import judge as judge_tables

    rules = RULES if options.rules is None else _read_rules(options.rules)
    try:
        judged = judge_tables(options.claims, options.results, rules)
    except TableError as error:
        raise ReportedMistake(str(error)) from None
    shown = [str(each) for each in judged.verdicts] + [f"not judged: {problem}" for problem in judged.problems]
    if options.html:
        write_atomically(options.html, write_page(judged, f"Verdicts on {options.claims.name}").encode())
        shown.append(f"report: {options.html}")
    document = {
        "verdicts": [each.to_dict() for each in judged.verdicts],
        "problems": [dataclasses.asdict(problem) for problem in judged.problems],
    }
    return Answer(document=document, shown=shown, code=1 if judged.problems else 0)


def import_results(options: argparse.Namespace) -> Answer:
    """Write results of an experiment tracker as a table for `judge`."""
    from stages.reported.tables import TableError
    from stages.reported.trackers import import_results as read

    columns = {column: getattr(options, column) for column in ("arm", "seed", "dataset") if getattr(options, column)}
    try:
        imported = read(options.kind, options.source, columns=columns, metrics=options.metric)
    except TableError as error:
        raise ReportedMistake(str(error)) from None
    write_atomically(options.output, imported.table.to_csv(index=False).encode())
    runs = imported.table[["dataset", "arm", "seed"]].drop_duplicates()
    shown = [f"{options.output}: {len(imported.table)} values of {len(runs)} runs", *imported.notes]
    return Answer(document={"file": str(options.output), "runs": len(runs), "notes": imported.notes}, shown=shown)


def lint(options: argparse.Namespace) -> Answer:
    """List the rows of a table of claims that can't be judged, and printed gains that their cells exclude."""
    from stages.reported.tables import TableError
    from stages.reported.tables import lint as lint_table

    try:
        problems = lint_table(options.claims)
    except TableError as error:
        raise ReportedMistake(str(error)) from None
    shown = [f"{options.claims}, {problem}" for problem in problems] or [f"{options.claims}: no faults found"]
    return Answer(document=[dataclasses.asdict(one) for one in problems], shown=shown, code=1 if problems else 0)


def _read_rules(path: Path) -> Rules:
    """Read rules: `verdicts` of a params.yaml, or these fields alone."""
    try:
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TypeAdapter(Rules).validate_python(found.get("verdicts", found) if isinstance(found, dict) else found)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ReportedMistake(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ReportedMistake(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

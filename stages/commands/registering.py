"""Registers claims before their runs are trained, and checks that registrations still fit."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import Any

from stages.claims import ClaimLine, ClaimsError, read_claims, read_history
from stages.claims.history import PATH as HISTORY
from stages.claims.history import pending
from stages.claims.lines import TALLIES
from stages.claims.registration import (
    FOLDER,
    TESTS,
    RegisteredRun,
    changes_since,
    compose,
    digest_training,
    read_registration,
    read_registrations,
    write_text,
)
from stages.commands.command import Answer, UsageError
from stages.datasets.packed import PackedDataError, read_info
from stages.params.experiment import Params, load_params
from stages.params.schema import nearest
from stages.priorities.looks import PROFILE, RunName, all_trainings, arms_behind, as_printed, trained_runs
from stages.recording.sources import find_results
from stages.runs.revisions import commit_of
from stages.runs.store import write_atomically
from stages.scheduling.runner import assignments


def register(options: argparse.Namespace) -> Answer:
    """Write a registration; with `--check`, compare all of them with the claims, rules and code of today."""
    if options.check:
        return _check(Path())
    if not (options.name and options.claims and options.why):
        raise UsageError('claimcheck register: expected a name, claims and --why "…", or --check')
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.name):
        raise ClaimsError(f"the name {options.name!r} has other characters than a to z, 0 to 9 and -")
    path, params = FOLDER / f"{options.name}.json", as_printed(load_params())
    if path.exists():
        raise ClaimsError(f"{path} exists; a registration is never changed: choose another name")
    rows, history = read_claims(Path("data/claims.csv")), read_history(HISTORY)
    if lacking := pending(rows, params.verdicts, history, known={}, published=()):
        what = ", ".join(sorted({f"{change.subject} {change.claims}" for change in lacking})[:4])
        raise ClaimsError(f'{HISTORY} has no line yet for {what}; first: claimcheck history --why "…"')
    chosen = _choose(rows, options.claims)
    runs = _plan(chosen, rows, params, options.runs or ["*"])
    if not runs:
        raise ClaimsError(f"no planned run of these claims fits {' '.join(options.runs or ['*'])}")
    planned = {(run.experiment, run.arm, run.replicate, run.training) for run in runs}
    for claim in chosen:
        for one in read_registrations(Path()):
            known = one.covers(claim.id)
            has = {(run.experiment, run.arm, run.replicate, run.training) for run in one.runs}
            if known and planned <= has and not changes_since(one, claim, known, params.verdicts, history):
                raise ClaimsError(f"{claim.id} is registered already, unchanged and with these runs: {one.name}")
    registration = compose(options.name, options.why, chosen, runs, params.verdicts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write_text(registration).encode())
    trained = sum(run.is_trained for run in runs)
    return Answer(
        document={"path": str(path), "claims": len(chosen), "runs": len(runs), "trained": trained},
        shown=[
            f"{path}: {len(chosen)} claims, {len(runs)} planned runs, {trained} of them trained already",
            "commit it before the first of the others is trained",
        ],
    )


def _choose(rows: Sequence[ClaimLine], asked: Iterable[str]) -> list[ClaimLine]:
    """The claims that trained models decide among those asked for, in the order of their rows.

    Raises:
        ClaimsError: there is no such claim, or no training decides it.
    """
    decidable = {claim.id for claim in rows if claim.kind in TESTS and (claim.experiment or claim.family)}
    names = set[str]()
    for name in asked:
        if name in {claim.id for claim in rows} - decidable:
            raise ClaimsError(f"{name} is not decided by training, so there is nothing to register")
        found = {claim for claim in decidable if fnmatchcase(claim, name)}
        if not found:
            raise ClaimsError(f"no claim {name!r}{nearest(name, sorted(decidable))}")
        names |= found
    return [claim for claim in rows if claim.id in names]


def _plan(
    chosen: Sequence[ClaimLine], rows: Sequence[ClaimLine], params: Params, patterns: Sequence[str]
) -> list[RegisteredRun]:
    """All planned runs that these claims need and that fit a pattern, and which of them were trained already."""
    needed = {
        (name, arm)
        for claim in chosen
        for one in (claim, *(row for row in rows if claim.kind in TALLIES and row.family == claim.family))
        for name, experiment in params.experiments.items()
        if one.kind in TESTS and one.kind not in TALLIES and fnmatch(name, one.experiment or "")
        for arm in arms_behind(one, experiment)
    }
    grid = all_trainings(params).planned
    wanted = {
        run: digest_training(planned.spec().to_dict())
        for run, planned in grid.items()
        if (run.experiment, run.arm) in needed and any(fnmatchcase(run.label, pattern) for pattern in patterns)
    }
    keys = dict(_run_keys({run.experiment for run in wanted}, params))
    stored = trained_runs(params)
    published = {
        (RunName(line.experiment, line.arm, line.replicate), digest_training(line.spec))
        for line in (trial.result for trial in find_results(Path(), params)[0])
        if line.profile == PROFILE
    }
    return [
        RegisteredRun(
            experiment=run.experiment,
            arm=run.arm,
            replicate=run.replicate,
            training=training,
            run_key=keys.get(run),
            is_trained=run in stored or (run, training) in published,
        )
        for run, training in wanted.items()
    ]


def _run_keys(names: Iterable[str], params: Params) -> Iterator[tuple[RunName, str]]:
    """The run keys of these experiments, where their real data are packed here."""
    for name in names:
        experiment = params.experiments[name]
        try:
            packed = read_info(Path("data/processed") / experiment.dataset)
        except PackedDataError:
            continue
        if packed.provenance != "embedded":
            for run in assignments(experiment, params, packed.digest):
                yield RunName(name, run.planned.arm, run.planned.replicate_index), run.spec.run_key


def _check(root: Path) -> Answer:
    params, history = load_params(root), read_history(root / HISTORY)
    rows = {claim.id: claim for claim in read_claims(root / "data" / "claims.csv")}
    document: list[dict[str, Any]] = []
    for path in sorted((root / FOLDER).glob("*.json")):
        faults = []
        try:
            one = read_registration(path)
        except ClaimsError as error:
            faults, claims = [str(error)], 0
        else:
            claims = len(one.claims)
            found = [
                (known.id, change)
                for known in one.claims
                for change in changes_since(one, rows.get(known.id), known, params.verdicts, history)
            ]
            for change in dict.fromkeys(change for _, change in found):
                touched = [claim for claim, other in found if other == change]
                faults.append(f"{', '.join(touched)}: judged by another rule than the registered; {change}")
        document.append({"name": path.stem, "commit": commit_of(root, path), "claims": claims, "faults": faults})
    shown = []
    for told in document:
        commit = f"committed in {told['commit'][:12]}" if told["commit"] else "not committed as it is"
        shown.append(f"{told['name']}: {told['claims']} claims, {commit}; {len(told['faults']) or 'no'} faults")
        shown += [f"  {fault}" for fault in told["faults"]]
    return Answer(
        document=document,
        shown=shown or [f"{FOLDER} has no registration"],
        code=1 if any(told["faults"] for told in document) else 0,
    )

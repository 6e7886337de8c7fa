"""Subcommands `show`, `history` and `register`: claims with their verdicts, their changes and registrations."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import Any

from stages.claims import ClaimLine, ClaimsError, read_claims, read_history
from stages.claims.history import (
    FOLDER,
    PATH,
    RegisteredRun,
    append,
    changes_since,
    committed_claims,
    compose,
    digest_training,
    pending,
    read_registration,
    read_registrations,
    write_text,
)
from stages.commands.command import Answer, UsageError, open_database
from stages.commands.priorities import (
    PROFILE,
    all_trainings,
    arms_behind,
    as_printed,
    packed_runs,
    trained_runs,
)
from stages.params.experiment import Params, RunName, load_params, merge, read_files
from stages.params.schema import nearest
from stages.recording.append_only import experiments_in
from stages.recording.sources import find_results
from stages.runs.evidence import evidence_files
from stages.runs.revisions import commit_of
from stages.runs.store import write_atomically
from stages.verdicts.kinds import KINDS
from stages.yaml_reader import dump_yaml

_CLAIMS = Path("data/claims.csv")
_FEW = 4
"""Most runs in text output."""
_FROM_PAPER = [name for name, facts in KINDS.items() if facts.number in ("model", "ours") or facts.by == "orders"]
"""Kinds of claims whose interval is that of our number minus the paper's."""
_ASKED = ("paper", "place", "kind", "arm", "baseline_arm", "metric", "statement", "value", "unit", "qualifier")


def show(options: argparse.Namespace) -> Answer:
    """Show experiments with the params that they inherit, and claims with their verdicts."""
    experiments = load_params().experiments
    files = read_files(Path(), experiments)
    claims = {claim.id for claim in read_claims(_CLAIMS)}
    document, shown = [], []
    for name in options.names:
        if name in experiments:
            path = Path("params") / f"{name}.yaml"
            params, like = merge(files, name, path), files[name].get("like")
            document.append({"experiment": name, "like": like, "params": params})
            others = f" and, for what that leaves out, params/{like}.yaml" if like else ""
            shown.append(f"# For the sources of these values, see {path}{others}.")
            shown.append(dump_yaml(params, default_flow_style=None, width=120).rstrip())
        elif name in claims:
            document.append(_claim(name))
            shown.extend(_show_claim(document[-1]))
        else:
            raise ClaimsError(f"no experiment or claim {name!r}{nearest(name, [*experiments, *sorted(claims)])}")
    return Answer(document=document, shown=shown)


def _claim(name: str) -> dict[str, Any]:
    """Return the claim as a document whose keys are those of the API."""
    from stages.results import find_judged  # loads SQLAlchemy

    with open_database()() as session:
        row = find_judged(session, name)
        claim, verdict = row.claim, row.verdict
        said = ("status", "explanation", "basis", "ours", "low", "high", "confidence", "n", "size", "registration")
        return {
            "claim": claim.id,
            **{part: getattr(claim, part) for part in _ASKED},
            "experiments": list(row.experiments),
            "verdict": {part: getattr(verdict, part) for part in said},
            "labs": verdict.labs,
            "pooled": verdict.pooled,
            "runs": list(dict.fromkeys(run.result.run_key for run in row.runs)),
            "deviations": [{"id": deviation.id, "subject": deviation.subject} for deviation in row.deviations],
        }


def _show_claim(claim: Mapping[str, Any]) -> Iterator[str]:
    from stages.recording.reporting import in_unit
    from stages.results import METRICS, WORD_OF

    verdict, unit, runs = claim["verdict"], claim["unit"], claim["runs"]
    yield f"{claim['claim']} ({claim['paper']}, {claim['place']})"
    if claim["statement"]:
        yield f"says      {claim['statement']}"
    elif claim["arm"]:
        against = f" against {claim['baseline_arm']}" if claim["baseline_arm"] else ""
        metric = METRICS[claim["metric"]].title if claim["metric"] in METRICS else claim["metric"]
        yield f"about     {claim['arm']}{against} of {', '.join(claim['experiments'])}: {metric}"
    if claim["value"] is not None:
        yield f"printed   {in_unit(claim['value'], unit)} {claim['qualifier']}".rstrip()
    if verdict["ours"] is not None:
        interval = ""
        if None not in (verdict["low"], verdict["high"], verdict["confidence"]):
            low, high = in_unit(verdict["low"], unit), in_unit(verdict["high"], unit)
            of = " − the paper's" if claim["kind"] in _FROM_PAPER else ""
            interval = f", {100 * verdict['confidence']:.4g} % interval of ours{of} {low} to {high}"
        yield f"ours      {in_unit(verdict['ours'], unit)}{interval}"
    word, status = WORD_OF[verdict["status"]], verdict["status"]
    yield f"verdict   {word}{f' ({status})' if status != word else ''}: {verdict['explanation']}"
    if verdict["registration"]:
        yield f"marked    {verdict['registration']['mark']}: {verdict['registration']['why']}"
    if verdict["size"]:
        yield f"its size  {WORD_OF[verdict['size']['status']]}: {verdict['size']['explanation']}"
    pooled = [claim["pooled"] | {"lab": "all"}] if claim["pooled"] else []
    for row in [*claim["labs"], *pooled]:
        ends = "" if row["low"] is None else f", {in_unit(row['low'], unit)} to {in_unit(row['high'], unit)}"
        name, what = row["lab"] or "this project", "complete labs" if row in pooled else "replicates"
        yield f"lab       {name}: {row['status']}, ours {in_unit(row['ours'], unit)}{ends} ({row['n']} {what})"
    if held := [row["n"] for row in claim["labs"] if row["holds"]]:
        yield f"labs      reproduced {sum(held)} times by {len(held)} of {len(claim['labs'])} labs"
    if runs:
        more = f" and {len(runs) - _FEW} more" if len(runs) > _FEW else ""
        yield f"runs      {', '.join(key[:12] for key in runs[:_FEW])}{more}"
    if claim["deviations"]:
        yield f"set-up    {len(claim['deviations'])} points in docs/papers/{claim['paper']}.md: " + ", ".join(
            deviation["subject"] for deviation in claim["deviations"]
        )


def history(options: argparse.Namespace) -> Answer:
    """List how the matching claims changed; with `--why`, first record the changes since then."""
    if options.why:
        params, rows = load_params(), read_claims(_CLAIMS)
        files = evidence_files(Path("data/evidence"))
        published = set[str]().union(*(experiments_in(str(file), file.read_bytes()) for file in files))
        known = committed_claims(Path())
        changes = pending(rows, params.verdicts, read_history(PATH), known=known, published=published)
        append(
            PATH,
            changes,
            date=f"{date.today()}",
            why=options.why,
            claims=options.claims,
            alters=not options.alters_nothing,
        )
        document = {"path": str(PATH), "changes": len(changes)}
        return Answer(document=document, shown=[f"{PATH}: {len(changes)} changes{'; commit it' if changes else ''}"])
    changes = [
        change
        for change in read_history(PATH)
        if fnmatch(change.claims, options.claims) and (change.changed or change.subject != "claim")
    ]
    shown = []
    for change in changes:
        after = ", after results were published" if change.after_evidence else ""
        after = after if change.seen is None else f", after seeing {change.seen} of its results"
        values = "".join(f" {name}: {old} -> {new}." for name, (old, new) in change.changed.items())
        shown.append(f"{change.date}{after}: {change.claims} ({change.subject}).{values} {change.why}")
    return Answer(document=[dataclasses.asdict(change) for change in changes], shown=shown)


def register(options: argparse.Namespace) -> Answer:
    """Write a registration; with `--check`, compare all of them with the claims, rules and code of today."""
    if options.check:
        return _check()
    if not (options.name and options.claims and options.why):
        raise UsageError('claimcheck register: expected a name, claims and --why "…", or --check')
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.name):
        raise ClaimsError(f"the name {options.name!r} may only have the characters a to z, 0 to 9 and -")
    path, params = FOLDER / f"{options.name}.json", as_printed(load_params())
    if path.exists():
        raise ClaimsError(f"{path} exists; a registration is never changed: choose another name")
    rows, history = read_claims(_CLAIMS), read_history(PATH)
    if lacking := pending(rows, params.verdicts, history, known={}, published=()):
        what = ", ".join(sorted({f"{change.subject} {change.claims}" for change in lacking})[:4])
        raise ClaimsError(f'{PATH} has no line yet for {what}; first run: claimcheck history --why "…"')
    chosen = _choose(rows, options.claims)
    runs = _plan(chosen, rows, params, options.runs or ["*"])
    if not runs:
        raise ClaimsError(f"no planned run of these claims matches {' '.join(options.runs or ['*'])}")
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
            "commit it before training the others",
        ],
    )


def _choose(rows: Sequence[ClaimLine], asked: Iterable[str]) -> list[ClaimLine]:
    """Return the requested claims that training decides, in the order of their rows."""
    decidable = {
        claim.id for claim in rows if claim.facts.by in ("training", "orders") and (claim.experiment or claim.family)
    }
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
    """Return the planned runs that these claims need and that match a pattern, each marked if it is already trained."""
    needed = {
        (name, arm)
        for claim in chosen
        for one in (claim, *(row for row in rows if claim.facts.by == "orders" and row.family == claim.family))
        for name, experiment in params.experiments.items()
        if one.facts.by == "training" and fnmatch(name, one.experiment or "")
        for arm in arms_behind(one, experiment)
    }
    grid = all_trainings(params).planned
    wanted = {
        run: digest_training(planned.spec.to_dict())
        for run, planned in grid.items()
        if (run.experiment, run.arm) in needed and any(fnmatchcase(run.label, pattern) for pattern in patterns)
    }
    keys = {run.name: run.spec.run_key for run in packed_runs(params)}
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


def _check() -> Answer:
    params, history = load_params(), read_history(PATH)
    rows = {claim.id: claim for claim in read_claims(_CLAIMS)}
    document: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.json")):
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
                faults.append(f"{', '.join(touched)}: not judged by the registered rule; {change}")
        document.append({"name": path.stem, "commit": commit_of(Path(), path), "claims": claims, "faults": faults})
    shown = []
    for entry in document:
        commit = f"committed in {entry['commit'][:12]}" if entry["commit"] else "not committed as it is now"
        shown.append(f"{entry['name']}: {entry['claims']} claims, {commit}; {len(entry['faults']) or 'no'} faults")
        shown += [f"  {fault}" for fault in entry["faults"]]
    return Answer(
        document=document,
        shown=shown or [f"{FOLDER} has no registration"],
        code=1 if any(entry["faults"] for entry in document) else 0,
    )

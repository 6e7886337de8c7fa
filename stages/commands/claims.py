"""What the claims say, what we have and what follows: one claim, and how claims changed."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from stages.claims import ClaimsError, read_claims, read_history
from stages.claims.history import PATH, append, committed_claims, pending
from stages.commands.command import Answer
from stages.params.experiment import load_params, merge, read_files
from stages.params.schema import nearest
from stages.runs.evidence import evidence_files

_DATABASE = str(Path("data/results.db"))
_CLAIMS = Path("data/claims.csv")
_FEW = 4
"""Runs that a person is shown."""
_ASKED = ("paper", "place", "arm", "baseline_arm", "metric", "statement", "value", "unit", "qualifier")


def show(options: argparse.Namespace) -> Answer:
    """Experiments as their files and the files that they are like give them, and claims with their verdicts."""
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
            shown.append(f"# The sources of these values stand beside them in {path}{others}.")
            shown.append(
                yaml.safe_dump(params, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120).rstrip()
            )
        elif name in claims:
            document.append(_claim(name))
            shown.extend(_show_claim(document[-1]))
        else:
            raise ClaimsError(f"no experiment or claim {name!r}{nearest(name, [*experiments, *sorted(claims)])}")
    return Answer(document=document, shown=shown)


def _claim(name: str) -> dict[str, Any]:
    """The claim with the names that the API gives its parts."""
    from stages.results import find_judged, open_results  # brings the database

    with open_results(_DATABASE)() as session:
        row = find_judged(session, name)
        claim, verdict = row.claim, row.verdict
        said = ("status", "explanation", "basis", "ours", "low", "high", "confidence", "n", "size", "registration")
        return {
            "claim": claim.id,
            **{part: getattr(claim, part) for part in _ASKED},
            "experiments": list(row.experiments),
            "verdict": {part: getattr(verdict, part) for part in said},
            "runs": list(dict.fromkeys(run.result.run_key for run in row.runs)),
            "deviations": [{"id": deviation.id, "subject": deviation.subject} for deviation in row.deviations],
        }


def _show_claim(claim: Mapping[str, Any]) -> Iterator[str]:
    from stages.recording.reporting import in_unit
    from stages.results import METRICS

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
            interval = f", {100 * verdict['confidence']:.3g} % interval {low} to {high}"
        yield f"ours      {in_unit(verdict['ours'], unit)}{interval}"
    yield f"verdict   {verdict['status']}: {verdict['explanation']}"
    if verdict["registration"]:
        yield f"marked    {verdict['registration']['mark']}: {verdict['registration']['why']}"
    if verdict["size"]:
        yield f"its size  {verdict['size']['status']}: {verdict['size']['explanation']}"
    if runs:
        more = f" and {len(runs) - _FEW} more" if len(runs) > _FEW else ""
        yield f"runs      {', '.join(key[:12] for key in runs[:_FEW])}{more}"
    if claim["deviations"]:
        yield f"set-up    {len(claim['deviations'])} points in docs/papers/{claim['paper']}.md: " + ", ".join(
            deviation["subject"] for deviation in claim["deviations"]
        )


def history(options: argparse.Namespace) -> Answer:
    """How the matching claims changed; with `--why`, first record what has changed since."""
    path = Path(PATH)
    if options.why:
        params, rows = load_params(), read_claims(_CLAIMS)
        published = {file.stem for file in evidence_files(Path("data/evidence"))}
        known = committed_claims(Path())
        changes = pending(rows, params.verdicts, read_history(path), known=known, published=published)
        append(
            path,
            changes,
            date=f"{date.today()}",
            why=options.why,
            claims=options.claims,
            alters=not options.alters_nothing,
        )
        document = {"path": str(path), "changes": len(changes)}
        return Answer(document=document, shown=[f"{path}: {len(changes)} changes; commit it"])
    changes = [
        change
        for change in read_history(path)
        if fnmatch(change.claims, options.claims) and (change.changed or change.subject != "claim")
    ]
    shown = []
    for change in changes:
        after = ", after results were published" if change.after_evidence else ""
        after = after if change.seen is None else f", after {change.seen} of its results had been seen"
        values = "".join(f" {name}: {old} -> {new}." for name, (old, new) in change.changed.items())
        shown.append(f"{change.date}{after}: {change.claims} ({change.subject}).{values} {change.why}")
    return Answer(document=[dataclasses.asdict(change) for change in changes], shown=shown)

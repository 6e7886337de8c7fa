"""Writes comparisons and verdicts: one Markdown and one CSV file per experiment, and `docs/results.md`.

CSV has every column, as fractions and units; Markdown is a summary with percentages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from stages.recording.builder import record
from stages.results import (
    ClaimFilter,
    Counts,
    ExperimentComparison,
    Family,
    JudgedClaim,
    Tally,
    as_csv,
    compare,
    list_families,
    list_judged,
    open_results,
    rule_after,
    tally,
)
from stages.runs.store import write_atomically

NONE = "–"
MANY, BEST = 20, 3  # a table of more than MANY models shows only the BEST of each role
DOCS_HEAD = """# Results

`make report` writes this page from the published evidence (`data/evidence/`). Each table uses the metric that its paper
prints. Ours is the mean over n seeds or folds; ± is one standard error. Accuracy is on all official test images unless
a table says otherwise. `GET /compare` adds intervals, differences, ranks, costs and run keys. See also
[how verdicts are reached](verdicts.md) and [claims that need no training](findings.md).
"""


def write_report(database: str, folder: Path) -> list[Path]:
    """Write `index.md`, and `<experiment>.md` and `.csv` of every experiment in `database`."""
    with open_results(database)() as session:
        comparisons = compare(session)
        judged, counts, families = list_judged(session, ClaimFilter()), tally(session), list_families(session)
    files = {"index.md": "# Results\n\n" + "\n".join(as_markdown(comparison) for comparison in comparisons)}
    files["verdicts.md"] = f"# Verdicts\n\n{badges(counts)}\n" + "\n".join(
        verdict_table(count.paper, judged, families) for count in counts
    )
    for comparison in comparisons:
        files[f"{comparison.experiment}.md"] = as_markdown(comparison)
        files[f"{comparison.experiment}.csv"] = as_csv([comparison])
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in files]


def write_docs(root: Path, path: Path) -> Path:
    """Write `path` from the evidence below `root`, ignoring local results."""
    with tempfile.TemporaryDirectory() as folder:
        database = str((Path(folder) / "evidence.db").resolve())
        record(root, database, evidence_only=True)
        write_atomically(path, results_page(database).encode())
    return path


def results_page(database: str) -> str:
    """Return `docs/results.md` of `database`."""
    with open_results(database)() as session:
        comparisons = compare(session)
        judged = [row for row in list_judged(session, ClaimFilter()) if row.verdict.basis == "results"]
        families = [family for family in list_families(session) if family.tested]
    measured = [comparison for comparison in comparisons if comparison.provenance is not None]
    open_titles = [comparison.title for comparison in comparisons if comparison.provenance is None]
    papers = dict.fromkeys(row.claim.paper for row in judged)
    parts = [DOCS_HEAD, *(verdict_table(paper, judged, families) for paper in papers)]
    parts += [as_markdown(comparison) for comparison in measured]
    if open_titles:
        parts.append(f"## Not trained yet\n\n{'; '.join(open_titles)}.\n")
    return "\n".join(parts)


def badges(counts: Sequence[Tally]) -> str:
    """Return a table with one line per paper and kind of decision, of the claims that can be decided."""
    lines = [
        "| paper | decided | can be decided | in favour | against | open | not run yet |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in counts:
        for name, part in by_ground(row):
            cells = (row.paper, name, part.decidable, part.in_favour, part.against, part.open, part.waiting)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", *shared_errors(counts)]).rstrip() + "\n"


def by_ground(tally: Tally) -> list[tuple[str, Counts]]:
    """Return separate counts of claims decided by training, by computing, and by facts of data, without empty ones."""
    parts = [("by training", tally.trained), ("by computing", tally.computed), ("facts of data", tally.data)]
    return [(name, part) for name, part in parts if part.decidable]


def shared_errors(counts: Sequence[Tally]) -> list[str]:
    """Return a sentence for each error that occurs at several places."""
    return [
        f"{row.paper}: one error at {places} places, {error}, counts once above."
        for row in counts
        for error, places in row.errors.items()
    ]


def verdict_table(paper: str, judged: Sequence[JudgedClaim], families: Sequence[Family]) -> str:
    """Return one row per claim of one paper, and the sentences about its tables."""
    lines = [f"## Verdicts: {paper}", ""]
    if sentences := [f"- `{family.name}`: {family.text}" for family in families if family.paper == paper]:
        lines += [*sentences, ""]
    lines += ["| claim | paper | ours | verdict | note |", "|---|--:|--:|---|---|"]
    for row in judged:
        claim, verdict = row.claim, row.verdict
        if claim.paper == paper:
            notes = [f"Its size: {verdict.size['status']}" if verdict.size else None, rule_after(claim, verdict)]
            printed = f"{in_unit(claim.value, claim.unit)} {claim.qualifier}".rstrip()
            cells = [f"`{claim.id}`", printed, in_unit(verdict.ours, claim.unit), verdict.marked_status]
            lines.append(f"| {' | '.join([*cells, '. '.join(filter(None, notes))])} |")
    return "\n".join(lines) + "\n"


def as_markdown(comparison: ExperimentComparison) -> str:
    """Return heading, label and table of one experiment, with the models that have a result, or the best of many."""
    arms = [arm for arm in comparison.arms if arm.ours] or comparison.arms
    if is_long := len(arms) > MANY:
        ranked = sorted(arms, key=lambda arm: arm.rank_ours or len(comparison.arms))
        by_role = [[arm for arm in ranked if arm.role == role] for role in dict.fromkeys(arm.role for arm in arms)]
        arms = [arm for group in by_role for arm in group[:BEST]]
    unit = "%" if comparison.metric.unit == "fraction" else comparison.metric.unit
    has_order = comparison.order.agrees is not None and not comparison.cut
    words = "the paper’s" if comparison.order.agrees else "another"
    order = f" The models finish in {words} order." if has_order else ""
    lines = [
        f"## {comparison.title}",
        "",
        f"**{comparison.metric.title}.** {comparison.label[0].upper()}{comparison.label[1:]}.{order}"
        f"{f' The {BEST} best models of each role; `/compare?format=csv` has all.' if is_long else ''}",
        "",
        f"| model | paper, {unit} | ours, {unit} | n |",
        "|---|--:|--:|--:|",
    ]
    for arm in arms:
        diverged = f" (+ {arm.ours.n_diverged} diverged)" if arm.ours and arm.ours.n_diverged else ""
        cells = [
            f"{arm.title} ({arm.role})",
            _with_error(arm.printed.value, arm.printed.stderr, arm.printed.unit) if arm.printed else NONE,
            _with_error(arm.ours.value, arm.ours.stderr, comparison.metric.unit) if arm.ours else NONE,
            f"{arm.ours.n if arm.ours else 0}{diverged}",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace(f" {unit}", ""))
    return "\n".join([*lines, *_gains(comparison)]) + "\n"


def in_unit(value: float | None, unit: str | None) -> str:
    """Format a value: a fraction in percent, any other with four digits and its unit."""
    if value is None:
        return NONE
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    many = value >= 1e4 and value.is_integer()
    return f"{f'{value:,.0f}' if many else f'{value:.4g}'} {unit or ''}".strip()


def _with_error(value: float, stderr: float | None, unit: str | None) -> str:
    """Format a value, with one standard error after ± if there is one."""
    shown = in_unit(value, unit)
    if stderr is None:
        return shown
    return f"{shown} ± {in_unit(stderr, unit) if unit == 'fraction' else f'{stderr:.2g}'}"


def _points(value: float, unit: str | None) -> str:
    """Format a difference with its sign."""
    return f"{100 * value:+.2f} pp" if unit == "fraction" else f"{value:+.4g}"


def _gains(comparison: ExperimentComparison) -> list[str]:
    """Return a sentence for each difference between two models that the paper prints, with ours."""
    titles = {arm.arm: arm.title for arm in comparison.arms}
    lines = []
    for arm in comparison.arms:
        gain = arm.gain
        if gain is None or gain.ours is None:
            continue
        paper = _points(gain.printed.value, gain.printed.unit)
        if gain.printed.stderr is not None:
            paper += f" ± {_points(gain.printed.stderr, gain.printed.unit).removeprefix('+')}"
        ours = f"{_points(gain.ours.value, gain.printed.unit)} (n = {gain.ours.n}"
        if gain.ours.low is not None and gain.ours.high is not None:
            ours += f", {_points(gain.ours.low, gain.printed.unit)} to {_points(gain.ours.high, gain.printed.unit)}"
        lines.append(f"\n{arm.title} over {titles[gain.against]} (positive is better): paper {paper}, ours {ours}).")
    return lines

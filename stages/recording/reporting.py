"""Comparisons and verdicts as documents: one Markdown and one CSV file per experiment, and `docs/results.md`.

Numbers in CSV are fractions and units; percentages appear only in Markdown, which people read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from stages.recording import record
from stages.results import (
    ArmComparison,
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
DOCS_HEAD = """# Results

Written by `make report` from the committed evidence (`data/evidence/`) alone: the same bytes on every machine.
Each table is in the metric that its paper prints. Ours is the mean over n replicates; ± is one standard error,
intervals are Student's t, 95 %. A metric that chooses an epoch on all folds has the paper's own standard error, at that
epoch. Accuracy is on all official test images unless a table says how many are left out. A time ratio stands where both
models' times were published at one revision, and taken on one kind of machine in one way.
A label says how runs were cut, and how many there are of those that are planned today.
How a verdict is reached: [verdicts.md](verdicts.md). Claims that need no training: [findings.md](findings.md).
"""


def write_report(database: str, folder: Path) -> list[Path]:
    """Write `index.md`, and `<experiment>.md` and `.csv` of every experiment in `database`.

    Raises:
        ResultsUnavailable: the database can't be read.
    """
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
    """Write `path` from the evidence below `root`, ignoring local results.

    Raises:
        EvidenceError, RecordError: a line of evidence is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = str((Path(folder) / "evidence.db").resolve())
        record(root, database, evidence_only=True)
        write_atomically(path, results_page(database).encode())
    return path


def results_page(database: str) -> str:
    """`docs/results.md` of `database`.

    Raises:
        ResultsUnavailable: the database can't be read.
    """
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
        parts.append("## Without evidence so far\n\n" + "".join(f"- {title}\n" for title in open_titles))
    return "\n".join(parts)


def badges(counts: Sequence[Tally]) -> str:
    """One line per paper: the results of the claims that can be decided."""
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
    """Counts apart for what trained models decide, what is computed, and facts of data; only those that a paper has."""
    parts = [("by training", tally.trained), ("by computing", tally.computed), ("facts of data", tally.data)]
    return [(name, part) for name, part in parts if part.decidable]


def shared_errors(counts: Sequence[Tally]) -> list[str]:
    """A sentence for each error that stands at several places."""
    return [
        f"{row.paper}: one error at {places} places, {error}, counts once above."
        for row in counts
        for error, places in row.errors.items()
    ]


def verdict_table(paper: str, judged: Sequence[JudgedClaim], families: Sequence[Family]) -> str:
    """One row per claim of one paper, and the sentences of its tables."""
    lines = [f"## Verdicts: {paper}", ""]
    lines += [f"- `{family.name}`: {family.text}" for family in families if family.paper == paper]
    lines += ["", "| claim | paper | ours | verdict | |", "|---|--:|--:|---|---|"]
    for row in judged:
        claim, verdict = row.claim, row.verdict
        if claim.paper == paper:
            said = verdict.explanation
            if verdict.size:
                said += f" Its size: {verdict.size['status']}. {verdict.size['explanation']}"
            if told := rule_after(claim, verdict):
                said += f" {told}."
            said = said.replace("|", "\\|")
            ours = in_unit(verdict.ours, claim.unit)
            printed = f"{in_unit(claim.value, claim.unit)} {claim.qualifier}".rstrip()
            lines.append(f"| `{claim.id}` | {printed} | {ours} | {verdict.marked_status} | {said} |")
    return "\n".join(lines) + "\n"


def as_markdown(comparison: ExperimentComparison) -> str:
    """The heading, label and table of one experiment."""
    unit = comparison.metric.unit
    lines = [
        f"## {comparison.title}",
        "",
        f"**{comparison.metric.title}.** {comparison.label[0].upper()}{comparison.label[1:]}.{_order(comparison)}",
        "",
        "| model | paper | ours | 95 % interval | n | ours − paper | rank, paper’s | parameters | train "
        "| time ratio, our device | paper’s, on its own |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for arm in comparison.arms:
        cells = [
            f"{arm.title} ({arm.role})",
            _with_error(arm.printed.value, arm.printed.stderr, arm.printed.unit) if arm.printed else NONE,
            _with_error(arm.ours.value, arm.ours.stderr, unit) if arm.ours else NONE,
            _interval(arm, unit),
            _count(arm),
            _difference(arm, unit),
            f"{arm.rank_ours or NONE} / {arm.rank_printed or NONE}",
            NONE if arm.cost.parameters is None else f"{arm.cost.parameters:,}",
            NONE if arm.cost.train_seconds is None else f"{arm.cost.train_seconds / 60:.1f} min",
            NONE if arm.cost.latency_ratio is None else f"{arm.cost.latency_ratio:.2f}",
            NONE if arm.cost.printed_latency_ratio is None else f"{arm.cost.printed_latency_ratio:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return (
        "\n".join([*lines, "", *_gains(comparison), *_missing(comparison), *_method(comparison), *_runs(comparison)])
        + "\n"
    )


def _order(comparison: ExperimentComparison) -> str:
    if comparison.order.agrees is None or comparison.cut:
        return ""
    return f" The models finish in {'the paper’s' if comparison.order.agrees else 'another'} order."


def in_unit(value: float | None, unit: str | None) -> str:
    """The value for a reader: a fraction in percent, else four digits and the unit."""
    if value is None:
        return NONE
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    many = value >= 1e4 and value.is_integer()
    return f"{f'{value:,.0f}' if many else f'{value:.4g}'} {unit or ''}".strip()


def _with_error(value: float, stderr: float | None, unit: str | None) -> str:
    """The value with one standard error after ±, if there is one."""
    shown = in_unit(value, unit)
    if stderr is None:
        return shown
    return f"{shown} ± {in_unit(stderr, unit) if unit == 'fraction' else f'{stderr:.2g}'}"


def _count(arm: ArmComparison) -> str:
    """The numbers of replicates with a value, and of those that diverged."""
    if arm.ours is None:
        return "0"
    return f"{arm.ours.n}" + (f" (+ {arm.ours.n_diverged} diverged)" if arm.ours.n_diverged else "")


def _interval(arm: ArmComparison, unit: str) -> str:
    if arm.ours is None or arm.ours.low is None or arm.ours.high is None:
        return NONE
    return f"{in_unit(arm.ours.low, unit)} to {in_unit(arm.ours.high, unit)}"


def _difference(arm: ArmComparison, unit: str) -> str:
    if arm.difference is None:
        return NONE
    return _points(arm.difference.value, unit)


def _points(value: float, unit: str | None) -> str:
    """A difference with its sign."""
    return f"{100 * value:+.2f} pp" if unit == "fraction" else f"{value:+.4g}"


def _gains(comparison: ExperimentComparison) -> list[str]:
    """Differences between two models that the paper prints, with ours."""
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
        lines.append(f"{arm.title} over {titles[gain.against]}, better positive: the paper {paper}, ours {ours}).\n")
    return lines


def _missing(comparison: ExperimentComparison) -> list[str]:
    """The arms without a number of ours, and why; if nothing real was trained, the label says so."""
    without: dict[str, list[str]] = {}
    for arm in comparison.arms if comparison.is_real else ():
        if arm.reason:
            without.setdefault(arm.reason, []).append(arm.title)
    return [f"No number of ours: {'; '.join(titles)}: {reason}.\n" for reason, titles in without.items()]


def _method(comparison: ExperimentComparison) -> list[str]:
    """How times were measured and compared, and which arms were measured with code that has changed since."""
    lines = []
    for method, arms in comparison.stopwatches.items():
        of = f" of {'; '.join(arm.title for arm in arms)}" if len(comparison.stopwatches) > 1 else ""
        lines.append(f"Inference times{of}: {method}.\n")
    timed = {arm.arm: arm for arm in comparison.arms if arm.cost.latency_method}
    ratios = {arm.title: arm.cost.latency_baseline for arm in timed.values() if arm.cost.latency_ratio is not None}
    first = comparison.arms[0].arm
    others = [f"{title} to {timed[name].title}" for title, name in ratios.items() if name is not None and name != first]
    if others:
        lines.append(f"Time ratios to another model than the first: {'; '.join(others)}.\n")
    apart = [
        arm.title for arm in timed.values() if arm.cost.latency_ratio is None and arm.cost.latency_baseline in timed
    ]
    if apart:
        why = "times published at another revision, or taken on another machine or otherwise, than the baseline's"
        lines.append(f"No time ratio for {'; '.join(apart)}: {why}.\n")
    if len(comparison.machines) > 1:
        machines = "; on ".join(comparison.machines)
        lines.append(f"Times were taken on {machines}: minutes compare on one of them only.\n")
    return lines + [
        f"{arm.title}: measured with older code: {', '.join(arm.changed_code)} changed since.\n"
        for arm in comparison.arms
        if arm.changed_code
    ]


def _runs(comparison: ExperimentComparison) -> list[str]:
    """The runs that the numbers come from."""
    keys = [
        f"{arm.title} {', '.join(f'`{key[:12]}`' for key in arm.run_keys)}" for arm in comparison.arms if arm.run_keys
    ]
    return [f"Runs: {'; '.join(keys)}."] if keys else []

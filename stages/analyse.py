"""`python -m stages.analyse`: judge the claims that need no training, into `data/findings.jsonl`.

Also the hours of each planned training, into `data/hours.json`.  With `--docs`, write `docs/findings.md` instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import torch

from stages import papers_folder
from stages.datasets.prepare import count_rows
from stages.evaluation.flops import FlopCounts, ModelFault
from stages.faults import in_one_line
from stages.papers.finding import Finding
from stages.params.experiment import Params, load_params, plan_runs
from stages.params.stage_inputs import refuse_changed
from stages.run import canonical_json
from stages.runs.store import write_atomically
from stages.scheduling.planning import cost_of_run

TARGET, HOURS, DOCS = Path("data/findings.jsonl"), Path("data/hours.json"), Path("docs/findings.md")
_DIGITS = 9  # significant ones; processors differ in the last of a double's
HEAD = """# Claims judged without training

`make report` writes this page; every `dvc repro` computes the findings again. The tables list the claims that depend on
how the text is read, and those that fail under every reading. `make serve` shows each claim with its readings, numbers
and method at `/claims/<claim>`; the papers' pages explain the main ones.
"""


def papers() -> list[str]:
    """Papers with claims that can be judged without training: those with a module `findings`."""
    return sorted(path.parent.name for path in papers_folder().glob("*/findings.py"))


@in_one_line("analyse")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stages.analyse", description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write docs/findings.md instead of the lines")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for small tensors, more threads only wait for each other
    params = load_params()
    margins = params.verdicts.margins
    found: dict[str, list[Finding]] = {
        paper: import_module(f"stages.papers.{paper}.findings").findings(margins) for paper in papers()
    }
    if refuse_changed("analyse"):
        return 1
    if options.docs:
        write_atomically(DOCS, page(found))
    else:
        write_atomically(TARGET, lines(found))
        write_atomically(HOURS, (canonical_json(hours(params)) + "\n").encode())
    for paper, findings in found.items():
        print(f"analyse: {paper}: {_counts(findings)}")
    return 0


def hours(params: Params) -> dict[str, dict[str, float]]:
    """`{<experiment>.<arm>: {device: hours of one training as printed}}`, in three digits, of networks that run."""
    counts, found = FlopCounts(), dict[str, dict[str, float]]()
    for name, experiment in params.experiments.items():
        source = params.datasets[experiment.dataset]
        rows = count_rows(experiment.dataset, source, is_stand_in=False)
        for run in plan_runs(experiment, params.profiles["paper"], source):
            if run.name.replicate == 0:
                try:
                    cost = cost_of_run(run, rows, source, params.rates, counts.count, rows.test)
                except ModelFault as error:
                    print(f"analyse: {name}.{run.name.arm}: its hours are unknown: {error}", file=sys.stderr)
                    continue
                found[f"{name}.{run.name.arm}"] = {kind: float(f"{cost.hours(kind):.3g}") for kind in params.rates}
    counts.save()
    return found


def lines(found: Mapping[str, Sequence[Finding]]) -> bytes:
    """One JSON line per finding."""
    text = ""
    for paper, findings in found.items():
        for finding in findings:
            computed = {name: float(f"{value:.{_DIGITS}g}") for name, value in finding.computed.items()}
            text += canonical_json(dataclasses.asdict(finding) | {"paper": paper, "computed": computed}) + "\n"
    return text.encode()


def page(found: Mapping[str, Sequence[Finding]]) -> bytes:
    """The findings for a reader, with those that depend on the reading or don't hold in a table."""
    text = HEAD
    for paper, findings in found.items():
        text += f"\n## [{paper}](papers/{paper}.md): {_counts(findings)}\n\n"
        disputed = [group for group in _by_error(findings) if group[0].status != "holds"]
        if disputed:
            text += "| claim | verdict | holds if read | fails if read |\n|---|---|---|---|\n"
        for first, *places in disputed:
            also = f", also {_ids(places)}" if places else ""
            held, failed = (
                "; ".join(reading.name for reading in first.readings if reading.holds is holds) or "–"
                for holds in (True, False)
            )
            text += f"| `{first.claim}`{also} | {first.status} | {held} | {failed} |\n"
        text += f"\nHold: {_ids([one for one in findings if one.status == 'holds']) or 'none'}.\n"
    return text.encode()


def _ids(findings: Sequence[Finding]) -> str:
    return ", ".join(f"`{finding.claim}`" for finding in findings)


def _by_error(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings in groups: those that share an error together, every other one alone."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        key = ("error", finding.error) if finding.error else ("claim", finding.claim)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _counts(findings: Sequence[Finding]) -> str:
    """The number of findings by status; an error counts once, with its places."""
    groups = _by_error(findings)
    counts = sorted(Counter(group[0].status for group in groups).items())
    errors = "".join(f"; one error at {len(group)} places" for group in groups if len(group) > 1)
    return ", ".join(f"{number} {status}" for status, number in counts) + errors


if __name__ == "__main__":
    sys.exit(main())

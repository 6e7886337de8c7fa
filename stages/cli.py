"""The `claimcheck` command."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

import yaml
from PIL import Image
from rich.console import Console
from rich.table import Table

from stages.checkpoint.contract import CheckpointError
from stages.claims import ClaimsError, read_claims, read_history
from stages.claims.history import PATH, append, committed_claims, pending
from stages.datasets.packed import PackedDataError, read_images, read_info
from stages.datasets.sources import find_source
from stages.datasets.verified import DatasetError
from stages.evaluation.flops import FlopCounts
from stages.faults import FAULTS, describe_fault, named
from stages.params.budget import describe_cut
from stages.params.experiment import Params, ParamsError, Rate, load_params, merge, read_files
from stages.proving.show import STEPS, show_equivalent
from stages.proving.sides import EquivalenceError
from stages.results import ResultsUnavailable, UnknownName
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.equivalence import read_equivalences
from stages.runs.evidence import EvidenceError, evidence_files
from stages.runs.store import RunStore, home, write_atomically
from stages.scheduling.planning import Cost, add_up, plan_costs, two_digits, what_counts
from stages.scheduling.runner import assignments, find_experiment, find_outcome, ways_to
from stages.upkeep.housekeeping import disk_usage, remove_leftovers
from stages.upkeep.publishing import PublishError, publish

MISTAKES = (
    DatasetError,
    EquivalenceError,
    EvidenceError,
    ClaimsError,
    PackedDataError,
    ParamsError,
    PublishError,
    ResultsUnavailable,
    UnknownName,
)
_DATA = Path("data")
_WIDEST = 1000  # columns: a long line is the terminal's to wrap
_SHOWN = 8
"""Broken trails that `verify` names: with a line a kind of link, twenty lines are not exceeded."""


def show_plan(names: list[str]) -> None:
    """Print the cost of the trainings: each experiment under the current profile, each paper under every profile."""
    params = load_params()
    names = names or list(params.experiments)
    papers = {name: find_experiment(params, name).paper for name in names}
    counts = FlopCounts()
    heading = ["runs", "epochs", "steps", "FLOPs"]
    heading += [f"{device} {what}" for device in params.rates for what in ("hours", "USD")]
    costs = plan_costs(params, params.profile, names, counts.count)
    lines = [[name, *_cells(cost, params.rates), *_in_store(name, params)] for name, cost in costs.items()]
    print_table([f"profile {params.profile_name}", *heading, "in store", "cut"], lines)
    lines, totals = [], {}
    for profile_name, profile in params.profiles.items():
        costs = plan_costs(params, profile, names, counts.count)
        for paper in dict.fromkeys(papers.values()):
            total = add_up((cost for name, cost in costs.items() if papers[name] == paper), params.rates)
            lines.append([f"{profile_name}, {paper}", *_cells(total, params.rates), *_limits(total, params.rates)])
        totals[profile_name] = total = add_up(costs.values(), params.rates)
        lines.append([f"{profile_name}, all", *_cells(total, params.rates), *_limits(total, params.rates)])
    counts.save()
    print()
    print_table(["profile, paper", *heading, *(f"{device} limit" for device in params.rates)], lines)
    print(
        "\nA training that two experiments share is counted with the first.  One group trains at a time on its device:"
    )
    for kind, rate in params.rates.items():
        print(f"  {kind}: {rate.device}, {rate.usd_per_hour:.2f} USD an hour (params.yaml, rates)")
    print("A limit is the hours of the FLOPs alone at the peak of the device.")
    if "paper" in totals:
        for text in what_counts(totals["paper"], params.rates):
            print(text)
    for kind, rate in params.rates.items():
        if rate.goal_hours and "paper" in totals and names == list(params.experiments):
            planned, limit = totals["paper"].hours(kind), totals["paper"].limit_hours(kind)
            print(
                f"Goal: everything as printed within {rate.goal_hours:g} hours of {rate.device}; "
                f"planned are {two_digits(planned)}, {planned / rate.goal_hours:.1f} times as many, "
                f"the limit is {two_digits(limit)}."
            )


def _cells(cost: Cost, rates: Mapping[str, Rate]) -> list[str]:
    cells = [f"{cost.runs:,}", f"{cost.epochs:,}", f"{cost.steps:,}", f"{cost.flops:.2g}"]
    for device, rate in rates.items():
        cells += [two_digits(cost.hours(device)), two_digits(cost.hours(device) * rate.usd_per_hour)]
    return cells


def _limits(cost: Cost, rates: Mapping[str, Rate]) -> list[str]:
    return [two_digits(cost.limit_hours(device)) for device in rates]


def _in_store(name: str, params: Params) -> list[str]:
    """The number of the experiment's trainings that are done, and how the profile cuts them."""
    experiment = params.experiments[name]
    cut = describe_cut(experiment, params.profile, params.datasets[experiment.dataset]) or "as printed"
    try:
        digest = read_info(_DATA / "processed" / experiment.dataset).digest
    except PackedDataError:
        return ["not packed", cut]
    store = RunStore(home() / "store")
    equivalences = read_equivalences(Path())
    done = (find_outcome(store, ways_to(run.spec, equivalences)) for run in assignments(experiment, params, digest))
    return [str(sum(way is not None for way in done)), cut]


def print_table(heading: list[str], lines: list[list[str]]) -> None:
    """Print columns as wide as needed; the first column and a last one of words are aligned to the left."""
    table = Table.grid(padding=(0, 2))
    for number, name in enumerate(heading):
        table.add_column(justify="left" if number == 0 or name == "cut" else "right", no_wrap=True)
    for line in [heading, *lines]:
        table.add_row(*line)
    Console(width=_WIDEST, markup=False, highlight=False).print(table)


def show(names: list[str]) -> None:
    """Print experiments as their files and the files that they are like give them, and claims with their verdicts."""
    from stages.recording.reporting import show_claim  # brings what builds and judges the database

    experiments = load_params().experiments
    files = read_files(Path(), experiments)
    known = [*experiments, *(claim.id for claim in read_claims(Path("data/claims.csv")))]
    for name in names:
        if name not in known:
            close = " or ".join(get_close_matches(name, known))
            raise ClaimsError(f"no experiment or claim {name!r}" + (f"; did you mean {close}?" if close else ""))
        if name not in experiments:
            print(show_claim(str(_DATA / "results.db"), name))
            continue
        path = Path("params") / f"{name}.yaml"
        like = files[name].get("like")
        others = f" and, for what that leaves out, params/{like}.yaml" if like else ""
        print(f"# The sources of these values stand beside them in {path}{others}.")
        print(
            yaml.safe_dump(
                merge(files, name, path), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
            ),
            end="",
        )


def set_profile(name: str) -> None:
    """Rewrite the `profile:` line of params.yaml and nothing else."""
    params = load_params()
    if name not in params.profiles:
        raise ParamsError(f"no profile {name!r}; known: {', '.join(params.profiles)}")
    path = Path("params.yaml")
    text, count = re.subn(r"(?m)^profile:.*$", f"profile: {name}", path.read_text())
    assert count == 1, "load_params has read the line"
    write_atomically(path, text.encode())
    print(f"params.yaml: profile {name}")


def write_sample(dataset: str, index: int, output: Path | None) -> None:
    """Write a test image of a packed data set as PNG, and say what it shows."""
    kind = find_source(load_params().datasets, dataset).kind
    if kind != "images":
        raise PackedDataError(f"{dataset} is a {kind} and has no images")
    folder = _DATA / "processed" / dataset
    info, test_set = read_info(folder), read_images(folder, "test")
    if not 0 <= index < len(test_set):
        raise PackedDataError(f"{dataset} has {len(test_set)} test images; --index is {index}")
    pixels = test_set.images[index]
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    path = output or Path(f"{dataset}-{index}.png")
    with named(path):
        image.save(path, "PNG")
    label = info.classes[test_set.labels[index]]
    print(f"{path}: test image {index} of {dataset} ({info.provenance} data), class {label}")


def publish_all(names: list[str]) -> None:
    """Publish the experiments' results as evidence."""
    params = load_params()
    for experiment in [find_experiment(params, name) for name in names]:
        done = publish(experiment.name, Path())
        print(f"{done.path}: {done.lines} lines, {done.new} new; commit it")


def release_models(experiment: str, arms: list[str]) -> None:
    """Copy the published models of some arms into `data/models/`."""
    from stages.upkeep.releasing import release  # brings torch, which no other command needs

    try:
        released = release(find_experiment(load_params(), experiment).name, arms, Path())
    except CheckpointError as error:
        raise PublishError(str(error)) from None
    for path in released:
        print(f"{path}: {path.stat().st_size:,} bytes; commit it with data/evidence/{experiment}.jsonl")


def show_code_equivalent(revision: str, steps: int, *, again: bool, plain: bool) -> None:
    """Compare HEAD's code with an older revision's on all paths that evidence depends on; `again` writes nothing."""
    shown = show_equivalent(Path(), load_params(), revision, steps=steps, again=again, plain=plain)
    for text in (*shown.compared, *shown.left_out):
        print(f"  {text}")
    if shown.line is None:
        print(f"nothing to compare: no run that was made by the code of {revision} has other code in HEAD, uncovered")
    elif again:
        print(f"{len(shown.compared)} paths give the same; nothing is written")
    else:
        print(f"{EQUIVALENCES}: a line with {len(shown.compared)} paths; commit it")


def show_verdicts() -> None:
    """Print how many claims of each paper have which verdict."""
    from stages.recording.reporting import show_status  # brings what builds and judges the database

    print(show_status(str(_DATA / "results.db")))


def verify_trails(names: list[str], *, every_link: bool, with_weights: bool) -> bool:
    """Print how many links hold and what to do about the first broken ones; returns False if one is broken.

    `every_link`, or given names: print each link of each trail instead.
    """
    from stages.upkeep.verifying import REMEDIES, verify  # brings the database

    recorded, trails = verify(Path(), str(_DATA / "results.db"), names, with_weights=with_weights)
    counts = Counter(
        (link.name, link.status) for link in (recorded, *(link for trail in trails for link in trail.links))
    )
    if every_link or names:
        print(f"{recorded.name}: {recorded.status}; {recorded.detail}")
        for trail in trails:
            print(f"{trail.checkpoint}: {'broken at ' + trail.broken.name if trail.broken else 'holds'}")
            for link in trail.links:
                print(f"  {link.name}: {link.status}; {link.detail}")
    else:
        for name in dict.fromkeys(name for name, _ in counts):
            print(
                f"{name}: "
                + ", ".join(
                    f"{counts[name, status]:,} {status}"
                    for status in ("holds", "not here", "broken")
                    if counts[name, status]
                )
            )
        broken = [("the database", recorded)] if recorded.status == "broken" else []
        broken += [(trail.checkpoint, trail.broken) for trail in trails if trail.broken]
        for where, link in broken[:_SHOWN]:
            print(f"{where} is broken at {link.name}: {link.detail[:400]}; {REMEDIES[link.name]}")
        if len(broken) > _SHOWN:
            print(f"and {len(broken) - _SHOWN:,} more, which `claimcheck verify --all` lists")
    totals = Counter(dict.fromkeys(("holds", "not here", "broken"), 0))
    for (_, status), count in counts.items():
        totals[status] += count
    print(
        f"{len(trails):,} checkpoint{'s' if len(trails) != 1 else ''}: {totals['holds']:,} links hold, "
        f"{totals['not here']:,} not here, {totals['broken']:,} broken"
    )
    return not totals["broken"]


def show_history(claims: str, why: str | None) -> None:
    """Print how the matching claims changed; with `why`, first record what has changed since."""
    params, path = load_params(), Path(PATH)
    if why:
        rows = read_claims(Path("data/claims.csv"))
        published = {file.stem for file in evidence_files(Path("data/evidence"))}
        changes = pending(
            rows, params.verdicts, read_history(path), known=committed_claims(Path()), published=published
        )
        append(path, changes, date=f"{date.today()}", why=why, claims=claims)
        print(f"{path}: {len(changes)} changes; commit it")
        return
    for change in read_history(path):
        if fnmatch(change.claims, claims) and (change.changed or change.subject != "claim"):
            after = ", after results were published" if change.after_evidence else ""
            values = "".join(f" {name}: {old} -> {new}." for name, (old, new) in change.changed.items())
            print(f"{change.date}{after}: {change.claims} ({change.subject}).{values} {change.why}")


def show_usage() -> None:
    """Print the disk usage of data and trainings."""
    usage = disk_usage(Path())
    for name, size in (usage | {"together": sum(usage.values())}).items():
        print(f"{size / 1e6:12,.1f} MB  {name}")


def clean_up() -> None:
    """Remove what killed trainings left behind, and say what was removed."""
    removed = remove_leftovers(Path())
    for path in removed:
        print(path)
    print(f"{len(removed)} leftovers removed; outcomes and states to go on from stay")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="claimcheck", description="Are the papers' numbers so?")
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="what the trainings will cost and which are done")
    plan.add_argument("experiments", nargs="*")
    profile = commands.add_parser("profile", help="set the profile in params.yaml")
    profile.add_argument("name")
    sample = commands.add_parser("sample", help="write a test image to try /predict with")
    sample.add_argument("dataset")
    sample.add_argument("--index", type=int, default=0)
    sample.add_argument("--output", type=Path)
    evidence = commands.add_parser("publish", help="turn results on real data into committed evidence")
    evidence.add_argument("experiments", nargs="+")
    models = commands.add_parser("release", help="put published models into data/models/, rounded to float16")
    models.add_argument("experiment")
    models.add_argument("arms", nargs="+")
    equivalent = commands.add_parser("equivalent", help="show that code changed since a revision changes no number")
    equivalent.add_argument("revision", help="whose code made the evidence, or that an earlier line leads to")
    equivalent.add_argument("--steps", type=int, default=STEPS, help="of each path (default: %(default)s)")
    equivalent.add_argument("--again", action="store_true", help="compare what lines cover already; write nothing")
    equivalent.add_argument("--plain", action="store_true", help="without C++: for a change that takes out a fast path")
    shown = commands.add_parser("show", help="an experiment's whole params, or a claim with its verdict")
    shown.add_argument("names", nargs="+", metavar="experiment|claim")
    commands.add_parser("status", help="how many claims of each paper have which verdict")
    history = commands.add_parser("history", help="how claims, rules and judging code changed, and why")
    history.add_argument("claims", nargs="?", default="*", help="pattern of claim ids")
    history.add_argument("--why", help="write down, with this reason, what changed since the last line")
    commands.add_parser("du", help="what data and trainings take on disk")
    commands.add_parser("gc", help="remove what killed trainings left behind; no outcome goes")
    verify = commands.add_parser("verify", help="recompute what served models rest on, from checkpoint to data")
    verify.add_argument("checkpoints", nargs="*", help="list every link of these")
    verify.add_argument("--all", action="store_true", help="list every link of every checkpoint")
    verify.add_argument("--weights", action="store_true", help="predict whole test sets with all weights; minutes")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        match options.command:
            case "plan":
                show_plan(options.experiments)
            case "profile":
                set_profile(options.name)
            case "sample":
                write_sample(options.dataset, options.index, options.output)
            case "publish":
                publish_all(options.experiments)
            case "equivalent":
                show_code_equivalent(options.revision, options.steps, again=options.again, plain=options.plain)
            case "release":
                release_models(options.experiment, options.arms)
            case "history":
                show_history(options.claims, options.why)
            case "du":
                show_usage()
            case "gc":
                clean_up()
            case "show":
                show(options.names)
            case "status":
                show_verdicts()
            case "verify":
                held = verify_trails(options.checkpoints, every_link=options.all, with_weights=options.weights)
                return 0 if held else 1
        sys.stdout.flush()
    except BrokenPipeError:  # `claimcheck plan | head`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FAULTS as error:
        print(f"claimcheck {options.command}: {describe_fault(error)}", file=sys.stderr)
        return 1
    except MISTAKES as error:
        print(f"claimcheck {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

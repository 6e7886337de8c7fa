"""Subcommand `status`: verdict counts and running trainings, live or as one snapshot."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from rich.console import Group, RenderableType
from rich.live import Live

from stages.commands import priorities
from stages.commands.command import Answer, Column, Terminal, TextTable, in_words, open_database
from stages.datasets.packed import PackedDataError, read_info
from stages.faults import Mistake, named
from stages.params.experiment import Params, ParamsError, PlannedRun, RunName, load_params
from stages.params.schema import nearest
from stages.run import RunSpec, changed_parts
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.equivalence import Equivalences, read_equivalences
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines
from stages.runs.object_store import open_store
from stages.scheduling.journal import Watched, watch
from stages.scheduling.leases import Leases, is_gone, owner_in_words
from stages.scheduling.planning import two_digits
from stages.scheduling.runner import CachedKey, cached_keys, find_outcome, keyed_runs, previous_specs

_EVERY_SECONDS = 2.0
_SHOWN = 8
"""Most groups or claims in text output."""


def status(options: argparse.Namespace) -> Answer:
    """Show verdicts, and trainings if any are running; with `--watch` only trainings, live on a terminal."""
    view = View(load_params(), options.papers, options.prometheus)
    terminal = Terminal()
    if options.watch and terminal.is_terminal and not options.json:
        try:
            with Live(
                console=terminal, get_renderable=lambda: Group(*_show_trainings(view)), auto_refresh=False
            ) as live:
                while True:
                    view.refresh()
                    live.refresh()
                    time.sleep(_EVERY_SECONDS)
        except KeyboardInterrupt:
            return Answer(document=None)
    view.refresh()
    if view.missing is not None and not view.watched.sessions and not options.watch:
        raise view.missing
    shown = list(_show_trainings(view))
    if not options.watch:
        verdicts = _show_verdicts(view.tallies) if view.tallies else [str(view.missing)]
        shown = [*verdicts, *(["", *shown] if view.watched.is_live or view.missing is not None else [])]
    return Answer(document=view.document(), shown=shown)


class View:
    """Reads the store and the database, for the named papers or for all."""

    def __init__(self, params: Params, papers: Sequence[str], metrics: Path | None) -> None:
        from stages.results import ResultsUnavailable, UnknownPaper, tally  # loads SQLAlchemy

        self.params, self.metrics = params, metrics
        self.experiments = [name for name, one in params.experiments.items() if one.paper in papers]
        self.watched = Watched(sessions=(), rows=(), finished=(), left_seconds=None)
        self.brought: list[priorities.Brought] = []
        self._served: tuple[str, ...] = ()
        self.missing: Mistake | None = None
        try:
            with open_database()() as session:
                counts: dict[str, Any] = {row.paper: row for row in tally(session)}
        except ResultsUnavailable as error:
            counts = dict.fromkeys(one.paper for one in params.experiments.values())
            self.missing = error
        if unknown := [name for name in papers if name not in counts]:
            raise UnknownPaper(unknown[0], counts)
        self.tallies = [counts[name] for name in papers or counts if counts[name] is not None]

    def refresh(self) -> None:
        """Read the trainings again."""
        prices = {kind: rate.usd_per_hour for kind, rate in self.params.rates.items()}
        self.watched = watch(open_store(), prices, time.time(), self.experiments)
        printed = {session.profile for session in self.watched.sessions} == {priorities.PROFILE}
        finished = tuple(self.watched.finished) if printed else ()
        if finished != self._served:
            self._served, self.brought = finished, priorities.brought_by(finished, Path(), self.params)
        if self.metrics is not None:
            document = self.document()
            write_metrics(self.metrics, document["papers"], document["trainings"], time.time())

    def document(self) -> dict[str, Any]:
        watched, sessions = self.watched, [dataclasses.asdict(session) for session in self.watched.sessions]
        for group in (group for session in sessions for group in session["groups"]):
            del group["run_keys"]
        return {
            "papers": [{**dataclasses.asdict(row), "by_word": row.by_word} for row in self.tallies],
            "trainings": {
                "sessions": sessions,
                "rows": [dataclasses.asdict(row) for row in watched.rows],
                "left_seconds": watched.left_seconds,
                "finished": list(watched.finished),
                "brought": [dataclasses.asdict(one) for one in self.brought],
            },
        }


def _show_verdicts(tallies: Sequence[Any]) -> Iterator[RenderableType]:
    from stages.recording.reporting import by_ground, shared_errors  # loads SQLAlchemy
    from stages.results import WORD_OF, Word

    parts = [
        [row.paper, ground, *map(str, part.by_word.values())] for row in tallies for ground, part in by_ground(row)
    ]
    parts.append(["all", "", *(str(sum(row.by_word[word] for row in tallies)) for word in Word)])
    heading = (Column("paper", left=True), Column("decided", left=True))
    numbers = [Column(word) for word in Word]
    found = sum((Counter(counts) for row in tallies for counts in row.by_basis.values()), Counter[str]())
    verdicts = [
        [word, status, str(found[status])]
        for status, word in sorted(WORD_OF.items(), key=lambda item: [*Word].index(item[1]))
        if found[status]
    ]
    yield TextTable([*heading, *numbers], parts)
    yield from shared_errors(tallies)
    yield ""
    yield TextTable([Column("verdict", left=True), Column("because", left=True), Column("claims")], verdicts)


def _show_trainings(view: View) -> Iterator[RenderableType]:
    watched = view.watched
    if not watched.sessions:
        yield "no training has run in this store yet"
        return
    for session in watched.sessions:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(session.began))
        held = sum(session.held.values())
        kept = f", {held} runs were in the store" if held else ""
        ended = f", ended {time.strftime('%H:%M', time.localtime(session.ended))}" if session.ended else ""
        where = f"{session.engine} engine on {session.node}, profile {session.profile}"
        dashboard = f"; dashboard: {session.dashboard}" if session.dashboard else ""
        yield f"{where}, since {began}{ended}{kept}{dashboard}"
    yield ""
    numbers = [Column(name) for name in ("running", "waiting", "done", "failed", "lost")]
    more = [Column("samples/s", 1), Column("hours\nspent", 2), Column("hours\nleft", 1), Column("USD\nspent", 3)]
    columns = [Column("experiment", left=True), Column("node", 1, left=True), *numbers, *more, Column("USD\nleft", 3)]
    rows = []
    for row in watched.rows:
        states = [str(row.runs[state]) for state in ("running", "waiting", "done", "failed", "lost")]
        hours = [None if seconds is None else seconds / 3600 for seconds in (row.seconds, row.left_seconds)]
        samples = f"{row.samples_per_second:,.0f}" if row.runs["running"] else ""
        amounts = (*hours, row.usd, row.left_usd)
        shown = ["?" if value is None else two_digits(value) if value else "0" for value in amounts]
        rows.append([row.experiment, row.node or "–", *states, samples, *shown])
    yield TextTable(columns, rows)
    running = [(group, one) for one in watched.sessions for group in one.groups if group.state == "running"]
    if running:
        yield ""
        columns = [Column("trains now", left=True), Column("on", 1, left=True), Column("epoch"), Column("done")]
        cells = [
            [group.label, group.device or session.node, f"{group.epoch}/{group.epochs}", f"{group.share:.0%}"]
            for group, session in running[:_SHOWN]
        ]
        yield TextTable(columns, cells)
        yield from _more(len(running), "trainings")
    for group in watched.failed[:_SHOWN]:
        yield f"{group.label}: {group.state}, {group.message}"
    if watched.left_seconds:
        yield f"everything is done in about {in_words(watched.left_seconds)}"
    yield from _show_brought(watched, view.brought)


def _more(number: int, what: str) -> Iterator[RenderableType]:
    if number > _SHOWN:
        yield f"and {number - _SHOWN} more {what}; --json has all"


def _show_brought(watched: Watched, brought: Sequence[priorities.Brought]) -> Iterator[RenderableType]:
    if not watched.finished:
        return
    yield ""
    number = f"{len(watched.finished)} finished {'run' if len(watched.finished) == 1 else 'runs'}"
    if not brought:
        profiles = {session.profile for session in watched.sessions}
        why = (
            "no claim is about them"
            if profiles == {priorities.PROFILE}
            else f"only runs of the profile {priorities.PROFILE} do"
        )
        yield f"{number} decided nothing: {why}"
        return
    complete = [one for one in brought if one.is_complete]
    nearer = [one for one in brought if one.look is not None and not one.is_complete]
    ready = f" (`make repro` judges {'it' if len(complete) == 1 else 'them'})" if complete else ""
    yield f"{number}: {len(complete)} claims at a complete interim analysis{ready}, {len(nearer)} closer to one"
    yield TextTable(
        [Column("claim", left=True), Column("analysis", left=True), Column("trained"), Column("verdict", 1, left=True)],
        [
            [
                one.claim,
                f"at {one.look} of {one.planned}" if one.look is not None else "none left",
                f"{one.there} of {one.needed}" if one.look else "",
                one.verdict,
            ]
            for one in brought[:_SHOWN]
        ],
    )
    yield from _more(len(brought), "claims")


_ROW = ("experiment", "node")
_GAUGES = {
    "samples_per_second": ("claimcheck_training_samples_per_second", "Samples a second of what trains now."),
    "seconds": ("claimcheck_training_device_seconds", "Device time spent on trainings of the current sessions."),
    "left_seconds": ("claimcheck_training_left_device_seconds", "Device time expected for the rest."),
    "usd": ("claimcheck_training_usd", "Price of the device time spent."),
    "left_usd": ("claimcheck_training_left_usd", "Price of the device time expected for the rest."),
}
"""Metrics of a row of `stages.scheduling.journal`; unknown numbers are left out."""


def write_metrics(path: Path, papers: Sequence[Mapping[str, Any]], trainings: Mapping[str, Any], now: float) -> None:
    """Write the metrics atomically: a reader sees the old ones or the new ones.

    Raises:
        Mistake: there is no such folder.
        OSError: the file can't be written.
    """
    if not path.parent.is_dir():
        raise Mistake(f"{path}: no folder {path.parent}; node_exporter's --collector.textfile.directory names one")
    registry = CollectorRegistry()
    runs = Gauge("claimcheck_training_runs", "Trainings by state.", [*_ROW, "state"], registry=registry)
    gauges = {name: Gauge(metric, said, _ROW, registry=registry) for name, (metric, said) in _GAUGES.items()}
    for row in trainings["rows"]:
        labels = [row[name] for name in _ROW]
        for state, number in row["runs"].items():
            runs.labels(*labels, state).set(number)
        for name, gauge in gauges.items():
            if row[name] is not None:
                gauge.labels(*labels).set(row[name])
    claims = Gauge(
        "claimcheck_claims", "Claims that can be decided, by verdict.", ["paper", "verdict"], registry=registry
    )
    for paper in papers:
        for word, number in paper["by_word"].items():
            claims.labels(paper["paper"], word).set(number)
    Gauge("claimcheck_status_timestamp_seconds", "When these metrics were written.", registry=registry).set(now)
    with named(path):
        write_to_textfile(str(path), registry)


_SHORTEST = 6
"""Fewest digits of a run key that identify it."""
_MOST = 6
"""Most changes or claims in text output."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A finished training, and where it was found: a line of evidence, or an outcome in a folder."""

    run_key: str
    spec: Mapping[str, Any]
    where: str
    name: RunName | None = None
    made: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


def why(options: argparse.Namespace) -> Answer:
    """Explain a run, named by its label or the start of its key."""
    params = load_params()
    published = [
        Known(
            run_key=line.result.run_key,
            spec=line.result.spec,
            where=f"{path}, line {number}",
            name=RunName(line.result.experiment, line.result.arm, line.result.replicate),
            environment=line.result.environment,
            made=f"{line.origin.published} by revision {line.origin.revision[:12]}",
        )
        for path in evidence_files(Path("data/evidence"))
        for number, line in enumerate(read_lines(path, EvidenceLine), start=1)
    ]
    if re.fullmatch(rf"[0-9a-f]{{{_SHORTEST},64}}", options.run):
        asked, known = _by_key(options.run, params, published)
    else:
        asked, known = _by_label(options.run, params), None
    document = _explain(asked, known, params, published)
    return Answer(document=document, shown=list(_show(document)))


def _by_label(label: str, params: Params) -> PlannedRun:
    """Find the run that the params plan in the cell of this label."""
    name, _, cell = label.partition(".")
    if name in params.experiments:
        cells = {asked.name.label: asked for asked in _grid(name, params)}
        if label in cells:
            return cells[label]
        known = nearest(label, cells)
    else:
        known = f"{nearest(name, params.experiments)} " if not cell else nearest(name, params.experiments)
    raise ParamsError(
        f"no run {label!r}{known} (a run is <experiment>.<arm>.<replicate>, or at least {_SHORTEST} digits of its key)"
    )


def _grid(name: str, params: Params) -> list[PlannedRun]:
    """Every run of an experiment under the current profile, also of replicates and roles that it leaves out.

    A run lacks its data's digest if these aren't packed.
    """
    experiment = params.experiments[name]
    try:
        digest = read_info(Path("data/processed") / experiment.dataset).digest
    except PackedDataError:
        digest = ""
    whole = dataclasses.replace(params.profile, replicates=None)
    params = dataclasses.replace(params, profiles={params.profile_name: whole})
    return keyed_runs(experiment, params, digest, every_role=True)


def _by_key(start: str, params: Params, published: Sequence[Known]) -> tuple[PlannedRun | None, Known | None]:
    """Find the planned run, or any known training, whose key starts with this prefix."""
    store, known = open_store(), dict[str, Known]()
    for key in store.run_keys():
        if key.startswith(start) and (folder := store.published(key)) is not None:
            known[key] = Known(run_key=key, spec=json.loads((folder / "spec.json").read_bytes()), where=str(folder))
    known |= {one.run_key: one for one in published if one.run_key.startswith(start)}
    asked_for = [asked for name in params.experiments for asked in _grid(name, params)]
    wanted = {
        asked.spec.run_key: asked
        for asked in reversed(asked_for)
        if asked.spec.data_digest and asked.spec.run_key.startswith(start)
    }
    keys = sorted({*known, *wanted})
    if len(keys) > 1:
        raise ParamsError(
            f"{len(keys)} runs have a key that begins with {start}: {', '.join(key[:16] for key in keys)}"
        )
    if not keys:
        raise ParamsError(f"no run has a key that begins with {start}: not in the params, the store or the evidence")
    one = known.get(keys[0])
    asked = wanted.get(keys[0])
    if asked is None and one is not None:
        asked = next((asked for asked in asked_for if asked.name == one.name), None)
    return asked, one


def _explain(
    asked: PlannedRun | None, known: Known | None, params: Params, published: Sequence[Known]
) -> dict[str, Any]:
    equivalences, store = read_equivalences(Path()), open_store()
    spec = asked.spec.to_dict() if asked and known is None else known.spec if known else {}
    key = known.run_key if known else asked.spec.run_key if asked and asked.spec.data_digest else None
    candidates = cached_keys(asked.spec, equivalences) if asked and asked.spec.data_digest else []
    cached = find_outcome(store, candidates, {*store.run_keys()})
    before, changed = _what_changed(asked, published, equivalences) if asked else (None, [])
    numbers = sorted({number for candidate in candidates for number in candidate.lines})
    lines = [(number, equivalences.lines[number - 1]) for number in numbers]
    stored, outcome = cached.run_key if cached else key, None
    if folder := store.published(stored) if stored else None:
        result = json.loads((folder / "result.json").read_bytes())
        shown = ("status", "train_seconds", "samples_per_second", "peak_memory_bytes", "environment_digest")
        outcome = {"run_key": stored, "folder": str(folder), **{name: result.get(name) for name in shown}}
    attempts = [
        dataclasses.asdict(one)
        | {"owner": owner_in_words(one.owner)}
        | {"end": one.end or ("lost" if is_gone(one.owner) else "training")}
        for one in (Leases(store).attempts(key) if key else ())
    ]
    return {
        "run": asked.name.label if asked else known.name.label if known and known.name else None,
        "run_key": key,
        "profile": params.profile_name,
        "model": spec["model"]["path"],
        "replicate": spec["replicate"],
        "reason": _reason(asked, known, cached, before, changed, params),
        "outcome": outcome,
        "published": [
            {"where": one.where, "published": one.made}
            for one in published
            if one.run_key in {key, *(candidate.run_key for candidate in candidates)}
        ],
        "against": None if before is None else {"run_key": before.run_key, "where": before.where},
        "changed": changed,
        "equivalences": [
            {"line": number, "before": line.before, "after": line.after, "made": line.made} for number, line in lines
        ],
        "claims": _claims(asked.name, params) if asked else [],
        "attempts": attempts,
    }


def _what_changed(
    asked: PlannedRun, published: Sequence[Known], equivalences: Equivalences
) -> tuple[Known | None, list[str]]:
    """Return this cell's earlier training that is closest to today's, and the parts of the key that differ.

    Changed code comes last, and is left out if equivalences show that it gives the same numbers.
    """
    folder = Path("data/runs") / asked.name.experiment
    own = [one for one in published if one.name == asked.name]
    if (spec := previous_specs(folder).get(asked.name.cell)) is not None:
        key = RunSpec.from_dict(spec).run_key
        own = [Known(run_key=key, spec=spec, where=str(folder / key), name=asked.name)]
    # with the data of the earlier training if ours aren't packed
    wanted = asked.spec.to_dict()
    own_data = {} if asked.spec.data_digest else {"data_digest"}
    differences = [(changed_parts(one.spec, wanted | {name: one.spec[name] for name in own_data}), one) for one in own]
    if not differences:
        return None, []
    changed, before = min(differences, key=lambda pair: len(pair[0]))
    code = [part for part in changed if part.startswith("code of ")]
    others = [part for part in changed if part not in code]
    is_same = bool(code) and equivalences.chain(before.spec, before.environment, asked.spec.code) is not None
    return before, others if is_same else [*others, *code]


def _reason(
    asked: PlannedRun | None,
    known: Known | None,
    cached: CachedKey | None,
    before: Known | None,
    changed: Sequence[str],
    params: Params,
) -> str:
    if asked is None:
        return f"no experiment asks for it under the profile {params.profile_name}; it is kept and not trained again"
    if cached is not None:
        return f"not trained again: its outcome is in the store{cached.in_words()}"
    if known is not None and known.run_key != asked.spec.run_key and (changed or asked.spec.data_digest):
        return f"kept: under the profile {params.profile_name} its cell now needs another training"
    unknown = "" if asked.spec.data_digest else " (its key is unknown until its data are packed)"
    if before is None:
        return f"to be trained: nothing was trained for this cell before{unknown}"
    if changed:
        return f"to be trained: {len(changed)} parts of its key have changed{unknown}"
    return f"to be trained: the key is the same, and its outcome is not in this store{unknown}"


def _claims(name: RunName, params: Params) -> list[dict[str, Any]]:
    """List every claim about the run's arm: verdict and, if its next analysis needs the run, the missing trainings."""
    printed = priorities.as_printed(params)
    trainings, standing = priorities.all_trainings(printed), priorities.standing_today(Path(), printed)
    trained = trainings.with_same(standing.decided_by | priorities.trained_runs(printed))
    looks = {look.claim.id: look for look in priorities.next_looks(standing, printed, trained)}
    needed = {
        claim: {"at": look.at, "planned": look.planned, "runs": len(look.runs), "lacking": len(look.lacking)}
        for claim, look in looks.items()
        if name in look.runs
    }
    return [
        {"claim": one.claim.id, "verdict": str(one.verdict.status), "look": needed.get(one.claim.id)}
        for one in priorities.judgements_about(name, standing, printed)
    ]


def _show(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    name, key = document["run"] or "a run that no experiment plans", document["run_key"]
    replicate = ", ".join(f"{part} {number}" for part, number in document["replicate"].items())
    short = key[:12] if key else "no key yet"
    yield f"{name} ({short}), {document['model']}, {replicate}, profile {document['profile']}"
    yield f"reason     {document['reason']}"
    if document["changed"] and document["against"]:
        yield f"against    run {document['against']['run_key'][:12]}, {document['against']['where']}"
        yield from _some("changed", document["changed"])
    if outcome := document["outcome"]:
        spent = in_words(outcome["train_seconds"] or 0)
        yield f"outcome    {outcome['folder']}: {outcome['status']}, {spent} of training"
    for one in document["published"]:
        yield f"published  {one['where']}, {one['published']}"
    for line in document["equivalences"]:
        revisions = f"{line['before'][:12]} gives the numbers of {line['after'][:12]}"
        yield f"same code  line {line['line']} of {EQUIVALENCES.name}: {revisions}"
    wanted = []
    for one in document["claims"]:
        if look := one["look"]:
            missing = f"{look['lacking']} of {look['runs']} trainings are missing"
            says = missing if look["lacking"] else "trained, not yet judged"
            verdict = f"{one['claim']}: {one['verdict']}; interim analysis at {look['at']} of {look['planned']}"
            wanted.append(f"{verdict}: {says}")
    others = [f"{one['claim']}: {one['verdict']}" for one in document["claims"] if not one["look"]]
    yield from _some("wanted by", wanted)
    yield from _some("serves", others)
    if not document["claims"]:
        yield "wanted by  no claim"
    attempts = []
    for one in document["attempts"]:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["began"]))
        reason = f": {one['reason']}" if one["reason"] else ""
        attempts.append(f"{began} by {one['owner']}, {one['end']}{reason}")
    yield from _some("attempt", attempts)


def _some(heading: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines[:_MOST]:
        yield f"{heading:<10} {line}"
    if len(lines) > _MOST:
        yield f"{'':<10} and {len(lines) - _MOST} more; --json has all"

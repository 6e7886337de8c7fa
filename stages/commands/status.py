"""Where things stand: how many claims have which verdict, and what trains, live or as one snapshot."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from rich.console import Group, RenderableType
from rich.live import Live

from stages.commands.command import Answer, Column, Terminal, TextTable, in_words, open_database
from stages.faults import Mistake, named
from stages.params.experiment import Params, load_params
from stages.priorities.proposal import PROFILE, Brought, brought_by
from stages.results import ResultsUnavailable
from stages.runs.object_store import open_store
from stages.scheduling.journal import Row, TrainerStatus, Watched, watch
from stages.scheduling.planning import two_digits

_EVERY_SECONDS = 2.0
_SHOWN = 8
"""Most groups or claims in text output."""


def status(options: argparse.Namespace) -> Answer:
    """The verdicts, and the trainings if there are any; with `--watch` the trainings, live on a terminal."""
    view = View(load_params(), options.papers, options.prometheus)
    terminal = Terminal()
    if options.watch and terminal.is_terminal and not options.json:
        try:
            with Live(console=terminal, get_renderable=view.live, auto_refresh=False) as live:
                while True:
                    view.look()
                    live.refresh()
                    time.sleep(_EVERY_SECONDS)
        except KeyboardInterrupt:
            return Answer(document=None)
    view.look()
    if view.missing is not None and not view.watched.sessions and not options.watch:
        raise view.missing
    parts = view.trainings_shown() if options.watch else view.all_shown()
    return Answer(document=view.document(), shown=parts)


class View:
    """Looks at the store and the database; `papers` (all if empty) limits both."""

    def __init__(self, params: Params, papers: Sequence[str], metrics: Path | None) -> None:
        self.params, self.papers, self.metrics = params, papers, metrics
        self.experiments = [name for name, one in params.experiments.items() if one.paper in papers]
        self.watched = Watched(sessions=(), rows=(), finished=(), left_seconds=None)
        self.brought: list[Brought] = []
        self.tallies, self.missing = self._tally()
        self._served: tuple[str, ...] = ()

    def _tally(self) -> tuple[list[Any], ResultsUnavailable | None]:
        """The papers' counts of verdicts, or why there are none."""
        from stages.results import UnknownPaper, tally  # brings the database

        counts: dict[str, Any] = {}
        missing: ResultsUnavailable | None = None
        try:
            with open_database()() as session:
                counts = {row.paper: row for row in tally(session)}
        except ResultsUnavailable as error:
            counts = dict.fromkeys(one.paper for one in self.params.experiments.values())
            missing = error
        for name in self.papers:
            if name not in counts:
                raise UnknownPaper(name, counts)
        return [counts[name] for name in self.papers or counts if counts[name] is not None], missing

    def look(self) -> None:
        """Look at the trainings again."""
        prices = {kind: rate.usd_per_hour for kind, rate in self.params.rates.items()}
        self.watched = watch(open_store(), prices, time.time(), self.experiments)
        printed = {session.profile for session in self.watched.sessions} == {PROFILE}
        finished = tuple(self.watched.finished) if printed else ()
        if finished != self._served:
            self._served, self.brought = finished, brought_by(finished, Path(), self.params)
        if self.metrics is not None:
            document = self.document()
            write_metrics(self.metrics, document["papers"], document["trainings"], time.time())

    def document(self) -> dict[str, Any]:
        watched = self.watched
        return {
            "papers": [{**dataclasses.asdict(row), "by_word": row.by_word} for row in self.tallies],
            "trainings": {
                "sessions": [_session(session) for session in watched.sessions],
                "rows": [dataclasses.asdict(row) for row in watched.rows],
                "left_seconds": watched.left_seconds,
                "finished": list(watched.finished),
                "brought": [dataclasses.asdict(one) for one in self.brought],
            },
        }

    def all_shown(self) -> list[RenderableType]:
        shown: list[RenderableType] = list(_show_verdicts(self.tallies)) if self.tallies else [str(self.missing)]
        is_told = self.watched.is_live or self.missing is not None
        return [*shown, "", *self.trainings_shown()] if is_told else shown

    def live(self) -> RenderableType:
        return Group(*self.trainings_shown())

    def trainings_shown(self) -> list[RenderableType]:
        return list(_show_trainings(self.watched, self.brought))


def _session(session: TrainerStatus) -> dict[str, Any]:
    told = dataclasses.asdict(session)
    groups = [{name: value for name, value in group.items() if name != "run_keys"} for group in told["groups"]]
    return told | {"groups": groups}


def _show_verdicts(tallies: Sequence[Any]) -> Iterator[RenderableType]:
    from stages.recording.reporting import by_ground, shared_errors  # brings the database
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


def _show_trainings(watched: Watched, brought: Sequence[Brought]) -> Iterator[RenderableType]:
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
    yield TextTable(columns, [_cells(row) for row in watched.rows])
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
    yield from _show_brought(watched, brought)


def _cells(row: Row) -> list[str]:
    states = [str(row.runs[state]) for state in ("running", "waiting", "done", "failed", "lost")]
    hours = [None if seconds is None else seconds / 3600 for seconds in (row.seconds, row.left_seconds)]
    samples = f"{row.samples_per_second:,.0f}" if row.runs["running"] else ""
    numbers = (*hours, row.usd, row.left_usd)
    told = ["?" if value is None else two_digits(value) if value else "0" for value in numbers]
    return [row.experiment, row.node or "–", *states, samples, *told]


def _more(number: int, what: str) -> Iterator[RenderableType]:
    if number > _SHOWN:
        yield f"and {number - _SHOWN} more {what}; --json has all"


def _show_brought(watched: Watched, brought: Sequence[Brought]) -> Iterator[RenderableType]:
    if not watched.finished:
        return
    yield ""
    number = f"{len(watched.finished)} finished {'run' if len(watched.finished) == 1 else 'runs'}"
    if not brought:
        profiles = {session.profile for session in watched.sessions}
        why = "no claim is about them" if profiles == {PROFILE} else f"only runs of the profile {PROFILE} do"
        yield f"{number} decided nothing: {why}"
        return
    complete = [one for one in brought if one.is_complete]
    nearer = [one for one in brought if one.look is not None and not one.is_complete]
    ready = f" (`make repro` judges {'it' if len(complete) == 1 else 'them'})" if complete else ""
    yield f"{number}: {len(complete)} claims at a complete interim analysis{ready}, {len(nearer)} closer to one"
    yield TextTable(
        [Column("claim", left=True), Column("analysis", left=True), Column("trained"), Column("verdict", 1, left=True)],
        [
            [one.claim, _look(one), f"{one.there} of {one.needed}" if one.look else "", one.verdict]
            for one in brought[:_SHOWN]
        ],
    )
    yield from _more(len(brought), "claims")


def _look(one: Brought) -> str:
    return "none left" if one.look is None else f"at {one.look} of {one.planned}"


_ROW = ("experiment", "node")
_GAUGES = {
    "samples_per_second": ("claimcheck_training_samples_per_second", "Samples a second of what trains now."),
    "seconds": ("claimcheck_training_device_seconds", "Device time spent on trainings of the current sessions."),
    "left_seconds": ("claimcheck_training_left_device_seconds", "Device time expected for the rest."),
    "usd": ("claimcheck_training_usd", "Price of the device time spent."),
    "left_usd": ("claimcheck_training_left_usd", "Price of the device time expected for the rest."),
}
"""Metrics of a row of `stages.scheduling.journal`; unknown numbers are left out."""


class MetricsError(Mistake, ValueError):
    """The metrics can't be written where they are wanted."""


def write_metrics(path: Path, papers: Sequence[Mapping[str, Any]], trainings: Mapping[str, Any], now: float) -> None:
    """Write the metrics atomically: a reader sees the old ones or the new ones.

    Raises:
        MetricsError: there is no such folder.
        OSError: the file can't be written.
    """
    if not path.parent.is_dir():
        raise MetricsError(f"{path}: no folder {path.parent}; node_exporter's --collector.textfile.directory names one")
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

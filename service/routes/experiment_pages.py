"""Pages that compare models: an experiment, all models of a data set, learning curves, and one model alone."""

from __future__ import annotations

import math
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, Literal

from anyio import from_thread
from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator

from service.database import comparing, queries
from service.database.comparing import (
    Curve,
    curves_of,
    drawn_together,
    find_line,
    known_curves,
    known_quantities,
    list_curves,
    list_observed,
    name_curve,
    unit_of_curve,
)
from service.database.samples import Answered, NoSample, Samples, answers_of, list_runs_of
from service.database.schemas import AnswerOut, CurvePointOut
from service.dependencies import AppState, Compare, ResultsSession, app_state_of, render_page, site_of
from service.http.errors import Problem, declared
from service.http.tabular import Table, rows_as_csv
from service.inference.batching import AnswerFailed, InferenceStopped, ModelUnavailable
from service.inference.decoding import Upload
from service.inference.engine import predict
from service.pages import charts, citing, formats, models, opening, plots, wording
from service.slots import Busy
from stages.checkpoint.contract import CheckpointError
from stages.results import (
    METRICS,
    SHOWN_METRICS,
    ArmComparison,
    ClaimFilter,
    MetricInfo,
    Provenance,
    Question,
    known_metrics,
    list_judged,
)

router = APIRouter(include_in_schema=False)
PROVENANCES = {"full": "all official data", "subset": "part of the official data"}
ON_BOARD = ("result", "parameters", "flops_per_image", "peak_memory_bytes", "latency_seconds_per_sample")
"""Columns of the table of all models; training times are comparable only within one experiment."""
MOST_TILES = 12  # right images, and as many wrong ones
MOST_MISTAKES = 8


@router.get("/experiments/{name}", responses=declared(404, 422))
def show_experiment(
    name: str,
    request: Request,
    session: ResultsSession,
    compare: Compare,
    profile: str | None = None,
    arm: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
    curve: Curve | None = None,
    smooth: charts.Smooth | None = None,
    metric: str | None = None,
    cost: str | None = None,
    quantity: str | None = None,
    left: str | None = None,
    right: str | None = None,
    everything: bool = False,
) -> Response:
    """Show an experiment; the URL holds every choice."""
    experiment = queries.find_experiment(session, name)
    for wanted in (*arm, left, right):
        if wanted is not None:
            queries.find_arm(experiment, wanted)
    (comparison,) = compare(Question(experiment=name, profile=profile, metric=metric))
    trained = [item.arm for item in comparison.arms if item.run_keys] if comparison.is_real else []
    shown = [item for item in trained if item in arm] or models.first_shown(experiment.arms, trained)
    curves = known_curves(session, comparison) if trained else []
    chosen = curve if curve in curves else next(iter(curves), None)
    points = list_curves(session, comparison, chosen, shown) if chosen else []
    quantities = known_quantities(session, comparison) if trained else []
    looked_at = quantity if quantity in quantities else next(iter(quantities), "")
    observed = list_observed(session, comparison, quantities=[looked_at], arms=shown) if looked_at else []
    epochs = len({point.epoch for point in points})
    titles = {item.name: item.title for item in experiment.arms}
    inks = plots.inks_of(session)
    spent = {key: {getattr(item.cost, key) for item in comparison.arms} - {None} for key in comparing.COSTS}
    costs = sorted(filter(spent.get, spent), key=lambda key: len(spent[key]) < 2)  # equal costs last
    against = cost if cost in costs else next(iter(costs), None)
    dataset = queries.find_dataset(session, experiment.dataset)
    kind = dataset.kind
    drawn = charts.draw_curve(points, titles, inks, chosen, kind, smooth) if chosen else None
    by_name = {item.name: item for item in experiment.arms}
    proposed = next((item for item in experiment.arms if item.role == "proposed"), experiment.arms[-1])
    other = by_name.get(proposed.against or "", experiment.arms[0])
    pair = [by_name[left or other.name], by_name[right or proposed.name]] if len(by_name) > 1 else []
    judged = list_judged(session, ClaimFilter(experiment=name))
    others = (row for row in judged if row.claim.facts.number != "model")  # the comparison has the models' own numbers
    claims = [row for row in others if row.claim.facts.by not in ("params", "data")]
    paper, day = queries.find_paper(session, experiment.paper), queries.read_meta(session, "newest_result")
    state = app_state_of(request)
    return render_page(
        request,
        "experiment.html",
        experiment=experiment,
        comparison=comparison,
        paper=paper,
        bibtex=citing.bibtex_table(
            comparison, paper, state.settings.address, queries.content_digest(session), state.project
        ),
        linked_data=citing.results_of(experiment, paper, site_of(request), day, state.project),
        claims=claims,
        names=wording.name_claims(session, claims),
        looks=models.first_looks(experiment.paper, claims, compare, queries.list_datasets(session)),
        guessing=models.describe_chance(comparison, dataset),
        trained=trained,
        shown=shown,
        titles=titles,
        curves={name: name_curve(name, kind) for name in curves},
        curve=chosen,
        curves_chart=drawn,
        smooth=drawn.smooth if drawn else 1,
        most_lines=models.MOST_LINES,
        epochs=epochs,
        replicates=max((point.replicates for point in points), default=0),
        some_stop=len({point.replicates for point in points}) > 1,
        quantities=quantities,
        quantity=looked_at,
        observed_chart=charts.draw_blocks(observed, titles, inks),
        metrics=comparing.metrics_of(comparison, kind),
        costs={key: comparing.COSTS[key] for key in costs},
        cost=against,
        cost_chart=charts.draw_costs(comparison, against, inks) if against else None,
        pair=pair,
        rows=comparing.lay_side_by_side(experiment, *pair) if len(pair) == 2 else [],
        everything=everything,
    )


@router.get("/leaderboard", responses=declared(404, 422))
def show_leaderboard(
    request: Request,
    session: ResultsSession,
    compare: Compare,
    dataset: str | None = None,
    metric: str | None = None,
    profile: str | None = None,
    provenance: Annotated[Provenance | None, BeforeValidator(lambda value: value or None)] = None,
    parameters: Annotated[int | None, Query(ge=1, lt=1 << 53), BeforeValidator(lambda value: value or None)] = None,
    timed: Annotated[str, Query(max_length=200)] = "",
    sort: comparing.Column = "result",
    reverse: bool = False,
) -> Response:
    """Show all models trained on one data set, by default the first with results, in one metric.

    `parameters` is the largest size to show.  Times are those measured under the conditions `timed`.
    """
    overview = comparing.first_of_each_dataset(compare(Question()))
    datasets = [item for item in queries.list_datasets(session) if item.name in overview]
    if (wanted := dataset or comparing.first_with_results(overview, datasets)) is None:
        raise Problem(404, "no model is listed: the results database is empty")
    chosen = queries.find_dataset(session, wanted)
    metrics = {name: METRICS[name].title for name in SHOWN_METRICS[chosen.kind] if METRICS[name].split}
    shown = metric or next(iter(metrics))
    asked = Question(dataset=chosen.name, profile=profile or None, metric=shown, provenance=provenance)
    found = compare(asked)
    every = comparing.list_entries(found)
    kept = [entry for entry in every if parameters is None or (entry.arm.cost.parameters or math.inf) <= parameters]
    stopwatch, stopwatches = models.choose_stopwatch(kept, timed)
    kept = [replace(entry, is_timed=models.stopwatch_of(entry) == stopwatch) for entry in kept]
    entries = comparing.rank(kept, by=sort, is_reversed=reverse)
    info = known_metrics(session)[shown]
    metrics.setdefault(shown, info.title)
    axis = plots.axis_of([entry.arm for entry in entries], info)
    experiments = {name: queries.find_experiment(session, name) for name in {e.comparison.experiment for e in entries}}
    lost = {item.experiment: models.at_chance(item, chosen) for item in found}
    return render_page(
        request,
        "leaderboard.html",
        datasets=[item for item in datasets if overview[item.name].is_real or item.name == chosen.name],
        dataset=chosen,
        metrics=metrics,
        metric=info,
        profiles=list(dict.fromkeys(name for item in found for name in item.profiles)),
        profile=profile,
        provenances=PROVENANCES,
        provenance=provenance,
        entries=entries,
        sizes=comparing.sizes(every),
        parameters=parameters,
        recipes={name: models.recipes(experiment) for name, experiment in experiments.items()},
        lost=lost,
        guessing=[
            sentence
            for item in found
            for sentence in models.describe_chance(item, chosen, {e.arm.arm for e in entries})
        ],
        twins=models.describe_twins([entry for entry in entries if entry.is_timed]),
        stopwatch=stopwatch,
        stopwatches=stopwatches,
        inks=plots.inks_of(session),
        axis=axis,
        marks=[plots.mark_of(entry.arm, info, axis) for entry in entries if axis],
        most_lines=models.MOST_LINES,
        columns={
            name: title for name, title in comparing.TITLES.items() if name in ON_BOARD and comparing.has(entries, name)
        },
        sort=sort,
        reverse=reverse,
        papers={paper.name: paper for paper in queries.list_papers(session)},
    )


@router.get("/curves", responses=declared(404, 422))
def show_curves(
    request: Request,
    session: ResultsSession,
    compare: Compare,
    line: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
    curve: Curve | None = None,
    smooth: charts.Smooth | None = None,
    format: Literal["html", "csv"] = "html",  # noqa: A002
) -> Response:
    """Draw a line for each `line=`: a model as `<experiment>.<arm>`, or a run by its key; empty ones are ignored."""
    names = list(dict.fromkeys(name.strip() for name in line if name.strip()))
    if len(names) > models.MOST_LINES:
        raise Problem(422, f"{len(names)} lines; one chart shows at most {models.MOST_LINES}")
    lines = [find_line(session, name, compare) for name in names]
    curves = curves_of(lines)
    chosen = curve if curve in curves else next(iter(curves), None)
    drawn = drawn_together(lines, chosen) if chosen else []
    found = {item.name: item.points(chosen) for item in drawn} if chosen else {}
    points = [point.model_copy(update={"arm": name}) for name, of_line in found.items() for point in of_line]
    if format == "csv":
        return Table(rows_as_csv(CurvePointOut, points), "curves")
    titles = {item.name: item.title for item in lines}
    known = plots.inks_of(session)
    inks = dict(zip((item.title for item in drawn), plots.apart(known[item.model] for item in drawn), strict=True))
    kind = drawn[0].kind if drawn else "images"
    chart = charts.draw_curve(points, titles, inks, chosen, kind, smooth) if chosen else None
    return render_page(
        request,
        "curves.html",
        lines=lines,
        found=found,
        curves={name: name_curve(name, kind) for name in curves},
        curve=chosen,
        smooth=chart.smooth if chart else 1,
        chart=chart,
        epochs=len({point.epoch for point in points}),
        is_fraction=chosen is not None and unit_of_curve(chosen, kind) == "fraction",
        offered=[item for item in compare(Question()) if item.is_real],
        most=models.MOST_LINES,
    )


@router.get("/models/{name:name}", responses=declared(404))
def show_model(name: str, request: Request, session: ResultsSession, compare: Compare) -> Response:
    """Show the model `<experiment>.<arm>` by its strongest results."""
    experiment = queries.find_experiment(session, name.partition(".")[0][:80])
    arms = {arm.name: arm for arm in experiment.arms}
    arm = queries.find_arm(experiment, name.partition(".")[2])
    dataset = queries.find_dataset(session, experiment.dataset)
    (comparison,) = compare(Question(experiment=experiment.name))
    ours = next((item for item in comparison.arms if item.arm == arm.name), None)  # untrained variants are left out
    results = list_runs_of(session, comparison, arm.name)
    weights = queries.list_checkpoints(session, arm_of=(experiment.name, arm.name))
    served = [row for row in weights if row.is_stand_in == (comparison.provenance == "embedded")]
    answered = answers_of(session, results, dataset.classes) if dataset.kind == "images" else None
    curves = known_curves(session, comparison, arm=arm.name) if comparison.is_real and results else []
    claims = [
        row
        for row in list_judged(session, ClaimFilter(experiment=experiment.name))
        if any(fnmatchcase(arm.name, one) for one in (row.claim.arm, row.claim.baseline_arm) if one)
    ]
    return render_page(
        request,
        "model.html",
        name=name,
        arm=arm,
        against=arms[arm.against].title if arm.against and arm.against != arm.name else None,
        recipe=models.recipes(experiment)[arm.name],
        experiment=experiment,
        dataset=dataset,
        paper=queries.find_paper(session, experiment.paper),
        comparison=comparison,
        ours=ours,
        plot=_plot(ours, comparison.metric),
        chance=models.describe_chance(comparison, dataset, (arm.name,)),
        hours=opening.hours_in_words(arm.hours),
        results=results,
        panels=charts.draw_curves(
            {one: list_curves(session, comparison, one, [arm.name]) for one in curves}, dataset.kind
        ),
        answered=answered,
        classes=[one.replace("_", " ") for one in dataset.class_names],
        shades=charts.shade(answered.confusion) if answered and dataset.classes <= charts.MOST_CELLS else None,
        picture=charts.picture_of(answered.confusion) if answered and dataset.classes > charts.MOST_CELLS else None,
        mistakes=answered.mistakes(MOST_MISTAKES) if answered else [],
        tiles=_tiles(request, dataset.name, answered, next(iter(served), None)) if answered else None,
        served=served,
        claims=claims,
        names=wording.name_claims(session, claims),
    )


def _plot(ours: ArmComparison | None, metric: MetricInfo) -> charts.Interval | None:
    """Draw the model's number, its interval over replicates or, for one run, test images, and the printed number."""
    if ours is None or ours.ours is None or (interval := plots.interval_of(ours)) is None:
        return None
    low, high, _ = interval
    write = formats.value_with(low, high, metric.unit)
    text = f"{metric.title}: {write(ours.ours.value)}, 95 % interval {write(low)} to {write(high)}"
    value, printed = ours.ours.value, plots.printed_of(ours, metric)
    return charts.Interval(ours=value, low=low, high=high, write=write, side="ours", text=text, printed=printed)


def _tiles(
    request: Request, dataset: str, answered: Answered, served: queries.ServedCheckpoint | None
) -> dict[str, Any] | None:
    """Return the first wrong and right images with their right runs and the answer of `served`; None without images."""
    parts = app_state_of(request)
    try:
        samples = Samples(parts.settings.root, dataset, parts.settings.root_path)
    except NoSample:
        return None
    if samples.info.digest != answered.data_digest:
        return None
    found: dict[str, list[int]] = {"wrong": [], "right": []}
    for position in samples.positions:
        side = found["right" if 2 * answered.right[position] > answered.runs else "wrong"]
        if len(side) < MOST_TILES:
            side.append(position)
    chosen = [*found["wrong"], *found["right"]]
    answers = dict(zip(chosen, _ask(parts, samples, chosen, served) if served else (), strict=False))
    if served and not answers:
        request.scope["state"].pop("etag", None)  # the page is incomplete while the model can't answer
    return {
        side: [(samples.describe(one), int(answered.right[one]), answers.get(one)) for one in positions]
        for side, positions in found.items()
    } | {"here": len(samples.positions)}


def _ask(parts: AppState, samples: Samples, positions: list[int], served: queries.ServedCheckpoint) -> tuple[str, ...]:
    """Return the model's cached answers to these images; () while it can't answer."""
    key = (served.sha256, samples.info.digest)
    if key not in parts.answers:
        uploads = [Upload(f"{position}.png", samples.png(position)) for position in positions]
        try:
            found = from_thread.run(partial(predict, uploads, [served], parts.engine, top_k=1))
        except (Busy, CheckpointError, InferenceStopped, AnswerFailed, ModelUnavailable):
            return ()
        parts.answers[key] = tuple(
            one.top[0].name for image in found.images for one in image.answers if isinstance(one, AnswerOut)
        )
    return parts.answers[key]

"""Pages of data sets, runs and files.  Without JavaScript they lose only the drop target."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from sqlalchemy.orm import Session

from service.database import comparing, queries
from service.database.comparing import Curve, curves_of_run, known_curves, list_curves, name_curve, unit_of_curve
from service.database.samples import NoSample, Samples
from service.database.schemas import SampleOut
from service.dependencies import Compare, ResultsSession, app_state_of, render_page, site_of
from service.http.caching import tag_answer
from service.http.errors import Problem, declared, own_path
from service.http.tabular import PageRoute
from service.pages import charts, citing, models, plots, repository, wording
from service.routes.claim_pages import show_papers
from stages.results import ClaimFilter, ExperimentComparison, Provenance, Question, Status, fidelity_of, list_judged

router = APIRouter(include_in_schema=False)
for_browsers = APIRouter(include_in_schema=False, route_class=PageRoute)
SAMPLES = {
    "images": "images",
    "table": "rows",
    "text": "tokens",
    "multi-label": "samples",
    "regression": "images",
    "segmentation": "images",
    "other": "samples",
}  # of each kind of data set


@for_browsers.get("/compare", responses=declared(404, 422))
@router.get("/", responses=declared(404, 422))
def show_comparison(
    request: Request,
    session: ResultsSession,
    compare: Compare,
    dataset: str | None = None,
    paper: str | None = None,
    profile: str | None = None,
    metric: str | None = None,
    provenance: Provenance | None = None,
    curve: Curve | None = None,
    sample: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 40)]], Query(max_length=64)] = [],  # noqa: B006
    checkpoint: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
) -> Response:
    """Compare the models of a data set and let users try them; `/` without `dataset` is the front page.

    A link to an answer selects test images by `sample` and models by `checkpoint`.
    """
    if dataset is None and own_path(request.scope) == "/":
        return show_papers(request, session, compare)
    parts, datasets = app_state_of(request), queries.list_datasets(session)
    overview = comparing.first_of_each_dataset(compare(Question(paper=paper)))
    if (wanted := dataset or comparing.first_with_results(overview, datasets)) is None:
        raise Problem(404, "no model is listed: the results database is empty")
    chosen = queries.find_dataset(session, wanted)
    asked = Question(dataset=chosen.name, paper=paper, profile=profile, metric=metric, provenance=provenance)
    comparisons = sorted(compare(asked), key=lambda item: (not item.is_real, bool(item.cut)))
    real = [item for item in comparisons if item.is_real]
    inks = plots.inks_of(session)
    panels = models.lay_panels(comparisons, inks, chosen.kind, metric)
    judged, day = list_judged(session, ClaimFilter(dataset=chosen.name)), queries.read_meta(session, "newest_result")
    # Claims that one experiment alone decides, other than its models' own numbers.
    decided = [
        row
        for row in judged
        if len(row.experiments) == 1
        and row.verdict.basis == "results"
        and row.claim.facts.number != "model"
        and row.verdict.status not in (Status.SHOWN, Status.NOT_TESTED)
    ]
    served = queries.strongest(queries.list_checkpoints(session, dataset=chosen.name))
    page = render_page(
        request,
        "index.html",
        datasets=[item for item in datasets if item.name in overview],
        overview=overview,
        dataset=chosen,
        chosen={name: value for name, value in vars(asked).items() if value and name != "dataset"},
        profile=profile,
        metric=metric,
        answer=models.answer_best(comparisons),
        panels=panels,
        metrics=dict(
            pair for panel in panels if panel.comparison.is_real or not real for pair in panel.choices.items()
        ),
        curves={item.experiment: _draw_curves(session, item, curve, inks, chosen.kind) for item in real},
        costs={cost: comparing.TITLES[cost] for cost in comparing.COSTS},
        names=wording.name_claims(session, judged),
        decided={
            item.experiment: [row for row in decided if row.experiments[0] == item.experiment] for item in comparisons
        },
        guessing={item.experiment: models.describe_chance(item, chosen) for item in comparisons},
        papers={paper.name: paper for paper in queries.list_papers(session)},
        to_try=_to_try(served, comparisons, checkpoint),
        answering=sum(not row.is_stand_in for row in served),
        trained=sum(bool(arm.run_keys) for item in comparisons if item.is_real for arm in item.arms),
        samples=_samples(parts.settings.root, chosen.name, sample),
        sample=sample,
        max_images=parts.settings.max_images,
        needs_key=parts.settings.keys is not None,
        linked_data=citing.results_on(chosen, site_of(request), day, parts.project),
    )
    page.headers["vary"] = "Accept"
    return page


def _draw_curves(
    session: Session, comparison: ExperimentComparison, asked: Curve | None, inks: Mapping[str, plots.Ink], kind: str
) -> tuple[Curve, plots.Drawing, dict[str, str]] | None:
    """Return the curve's name, its drawing and the titles of all curves; None without curves."""
    known = known_curves(session, comparison)
    chosen = asked if asked in known else models.curve_for(comparison.metric, known)
    if chosen is None:
        return None
    arms = queries.arms_of(session, [comparison.experiment])
    shown = models.first_shown(arms, [arm.arm for arm in comparison.arms if arm.run_keys])
    points = list_curves(session, comparison, chosen, shown)
    drawn = charts.draw_overlay(points, {arm.name: arm.title for arm in arms}, inks, unit_of_curve(chosen, kind))
    return (chosen, drawn, {name: name_curve(name, kind) for name in known}) if drawn else None


def _samples(root: Path, dataset: str, asked: Sequence[int]) -> list[SampleOut]:
    """Return a few test images and the requested ones; [] if the data set was not packed on this machine."""
    try:
        packed = Samples(root, dataset)
        chosen = packed.chosen()
        known = [item.position for item in chosen]
        return chosen + [packed.describe(one) for one in dict.fromkeys(asked) if one in packed and one not in known]
    except NoSample:
        return []


@dataclass(frozen=True)
class ToTry:
    """Models of one experiment that can answer: all trained on placeholder data, or none; `asked` are preselected.

    `trained` says how training was shortened; empty for full-length training.
    """

    title: str
    is_stand_in: bool
    trained: str
    served_checkpoints: list[queries.ServedCheckpoint]
    asked: list[queries.ServedCheckpoint]


def _to_try(
    served_checkpoints: Sequence[queries.ServedCheckpoint],
    comparisons: Sequence[ExperimentComparison],
    named: Sequence[str],
) -> list[ToTry]:
    """Group the models; those in `named` are preselected, else the first group, as in `/predict?dataset=`.

    Models of placeholder data, whose answers mean nothing, are included only if one of them is named.
    """
    here = [row.id for row in served_checkpoints if row.id in named]
    found: list[ToTry] = []
    for is_stand_in, comparison in itertools.product((False, True), comparisons):
        own = [
            row
            for row in served_checkpoints
            if (row.experiment, row.is_stand_in) == (comparison.experiment, is_stand_in)
        ]
        asked = [row for row in own if row.id in here] if here else [] if found else own
        if own and (not is_stand_in or (here and asked)):
            trained = "; ".join(dict.fromkeys(row.cut for row in own if row.cut))
            found.append(ToTry(comparison.title, is_stand_in, trained, own, asked))
    return found


@router.get("/runs/{run_key}", responses=declared(404))
def show_run(run_key: str, request: Request, session: ResultsSession) -> Response:
    """Show one run: curves, numbers, spec, environment and provenance; redirect from the beginning of its key."""
    results = queries.find_run(session, run_key)
    if results[0].run_key != run_key:
        return RedirectResponse(f"{request.scope['root_path']}/runs/{results[0].run_key}", 307)
    checkpoints = queries.checkpoint_ids(session, results)
    experiments = {name: queries.find_experiment(session, name) for name in {result.experiment for result in results}}
    kind = queries.find_dataset(
        session, experiments[results[0].experiment].dataset
    ).kind  # the same for all results of a run
    titles = {name: {arm.name: arm.title for arm in item.arms} for name, item in experiments.items()}
    inks = plots.inks_of(session)
    shown = [
        {
            "row": result,
            "experiment": experiments[result.experiment],
            "arm": next(arm for arm in experiments[result.experiment].arms if arm.name == result.arm),
            "label": fidelity_of(result),
            "trained_on": min(result.spec["protocol"].get("train_images") or result.train_images, result.train_images),
            "checkpoint": checkpoints.get(result.id),
            "panels": charts.draw_curves(curves := curves_of_run(result), kind),
            "curves": {name: (name_curve(name, kind), unit_of_curve(name, kind)) for name in curves},
            "observed": charts.draw_inside(result, titles[result.experiment], inks),
        }
        for result in results
    ]
    return render_page(
        request,
        "run.html",
        run_key=run_key,
        results=shown,
        samples=SAMPLES[kind],
        spec=dict(comparing.flatten(results[0].spec)),
        code={name for name, _ in comparing.flatten(results[0].spec) if name.startswith("code.")},
        flatten=comparing.flatten,
    )


@router.get("/files/{path:path}", responses=declared(404))
def show_file(path: str, request: Request) -> Response:
    """Show a file of the repository that pages mention; Markdown is rendered."""
    parts = app_state_of(request)
    try:
        content = parts.files[path].read_bytes()
    except (KeyError, FileNotFoundError):
        raise Problem(404, f"no file {path[:120]!r} is shown here") from None
    if path == "docs/verdicts.md":  # /method also fills in its tables
        return RedirectResponse(f"{request.scope['root_path']}/method", 307)
    tag_answer(request, f"{request.scope['state']['content']}.{hashlib.sha256(content).hexdigest()}")
    if path.endswith(".png"):
        return Response(content, media_type="image/png")
    text = content.decode(errors="replace")
    document = (
        repository.render(path, text, frozenset(parts.files), parts.settings.repository)
        if path.endswith(".md")
        else None
    )
    return render_page(request, "file.html", path=path, content=text, document=document)

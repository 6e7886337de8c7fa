"""A model's page: its result, cost, errors, weights, and the claims about it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from anyio import from_thread
from fastapi import APIRouter, Request, Response

from service.database import queries
from service.database.comparing import compare_one
from service.database.curves import known_curves, list_curves
from service.database.samples import Answered, NoSample, Samples, answers_of, list_runs_of
from service.dependencies import AppState, Compare, ResultsSession, app_state_of, render_page
from service.http.errors import declared
from service.inference.batching import AnswerFailed, InferenceStopped, ModelUnavailable
from service.inference.decoding import Upload
from service.inference.engine import predict
from service.pages.charts import MOST_CELLS, draw_curves, picture_of, shade
from service.pages.dots import Interval, draw_interval
from service.pages.formats import value_with
from service.pages.models import describe_chance, recipes
from service.pages.plots import interval_of, printed_of
from service.pages.versus import hours_in_words
from service.pages.wording import name_claims
from service.slots import Busy
from stages.checkpoint.contract import CheckpointError
from stages.results import ArmComparison, ClaimFilter, MetricInfo, list_judged

router = APIRouter(include_in_schema=False)
MOST_TILES = 12  # right images, and as many wrong ones
MOST_MISTAKES = 8


@router.get("/models/{name}", responses=declared(404))
def show_model(name: str, request: Request, session: ResultsSession, compare: Compare) -> Response:
    """Show the model `<experiment>.<arm>` by its strongest results."""
    experiment = queries.find_experiment(session, name.partition(".")[0][:80])
    arms = {arm.name: arm for arm in experiment.arms}
    arm = queries.find_arm(experiment, name.partition(".")[2])
    dataset = queries.find_dataset(session, experiment.dataset)
    comparison = compare_one(compare, experiment)
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
        recipe=recipes(experiment)[arm.name],
        experiment=experiment,
        dataset=dataset,
        paper=queries.find_paper(session, experiment.paper),
        comparison=comparison,
        ours=ours,
        plot=_plot(ours, comparison.metric),
        chance=describe_chance(comparison, dataset, (arm.name,)),
        hours=hours_in_words(arm.hours),
        results=results,
        panels=draw_curves({one: list_curves(session, comparison, one, [arm.name]) for one in curves}, dataset.kind),
        answered=answered,
        classes=[one.replace("_", " ") for one in dataset.class_names],
        shades=shade(answered.confusion) if answered and dataset.classes <= MOST_CELLS else None,
        picture=picture_of(answered.confusion) if answered and dataset.classes > MOST_CELLS else None,
        mistakes=answered.mistakes(MOST_MISTAKES) if answered else [],
        tiles=_tiles(request, dataset.name, answered, next(iter(served), None)) if answered else None,
        served=served,
        claims=claims,
        names=name_claims(session, claims),
    )


def _plot(ours: ArmComparison | None, metric: MetricInfo) -> Interval | None:
    """Draw the model's number, its interval over replicates or, for one run, test images, and the printed number."""
    if ours is None or ours.ours is None or (interval := interval_of(ours)) is None:
        return None
    low, high, _ = interval
    write = value_with(low, high, metric.unit)
    text = f"{metric.title}: {write(ours.ours.value)}, 95 % interval {write(low)} to {write(high)}"
    return draw_interval(ours.ours.value, (low, high), write, side="ours", text=text, printed=printed_of(ours, metric))


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
        parts.answers[key] = tuple(image.answers[0].top[0].name for image in found.images)
    return parts.answers[key]

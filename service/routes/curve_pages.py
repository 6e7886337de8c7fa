"""Learning curves of models and runs of any experiments over each other; what was chosen stands in the address."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.database.comparing import Question
from service.database.curves import Curve, name_curve
from service.database.lines import curves_of, drawn_together, find_line
from service.dependencies import Compare, ResultsSession, app_state_of
from service.http.errors import Problem, declared
from service.pages.curve_charts import MOST_LINES, Smooth, band_chart

router = APIRouter(include_in_schema=False)


@router.get("/curves", responses=declared(404, 422))
def show_curves(
    request: Request,
    session: ResultsSession,
    compare: Compare,
    line: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
    curve: Curve | None = None,
    smooth: Smooth = 1,
) -> Response:
    """A line for each `line=`: a model as `<experiment>.<arm>`, or a run by its key; an empty one chooses none."""
    names = list(dict.fromkeys(name.strip() for name in line if name.strip()))
    if len(names) > MOST_LINES:
        raise Problem(422, f"{len(names)} lines; one chart shows at most {MOST_LINES}")
    lines = [find_line(session, name, compare) for name in names]
    curves = curves_of(lines)
    chosen = curve if curve in curves else next(iter(curves), None)
    drawn = drawn_together(lines, chosen) if chosen else []
    found = {item.name: item.points(chosen) for item in drawn} if chosen else {}
    points = [replace(point, arm=name) for name, of_line in found.items() for point in of_line]
    titles = {item.name: item.title for item in lines}
    pairs = {item.name: item.against for item in drawn if item.against in found}
    kind = drawn[0].kind if drawn else "images"
    chart = (
        band_chart("Chosen models and runs", titles, points, chosen, kind, pairs=pairs, smooth=smooth)
        if chosen and points
        else None
    )
    return app_state_of(request).templates.TemplateResponse(
        request,
        "curves.html",
        {
            "lines": lines,
            "found": found,
            "curves": {name: name_curve(name, kind) for name in curves},
            "curve": chosen,
            "smooth": smooth,
            "chart": chart,
            "epochs": len({point.epoch for point in points}),
            "is_fraction": bool(chosen) and chosen.endswith("accuracy"),
            "offered": [item for item in compare(Question()) if item.is_real],
            "most": MOST_LINES,
        },
    )

"""One self-contained HTML page of verdicts on reported results, to be attached to a review."""

from __future__ import annotations

from html import escape

from stages.reported.tables import Judged

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.5rem;border-bottom:1px solid #ccc;text-align:left;"
    "vertical-align:top}td.n{text-align:right}small{color:#555}li{margin:.3rem 0}"
)


def write_page(judged: Judged, title: str) -> str:
    """Return the page: a row for each verdict, then the rows that can't be judged."""
    rows = "".join(
        f"<tr><td><b>{escape(each.claim)}</b><br>{escape(str(each.status))}<td class=n>{_number(each.printed)}"
        f"<td class=n>{_number(each.ours)}<td>{each.to_svg()}<td>{escape(each.verdict.explanation)}</tr>"
        for each in judged.verdicts
    )
    problems = "".join(f"<li>{escape(str(problem))}</li>" for problem in judged.problems)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>Reported, not retrained: these verdicts compare printed numbers with results that "
        "somebody sent. They don't show how the results came about.</p><table><tr><th>claim<th>printed<th>reported"
        f"<th>difference, its interval and the margin<th>why</tr>{rows}</table>"
        f"{f'<h2>Rows that could not be judged</h2><ul>{problems}</ul>' if problems else ''}</html>\n"
    )


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.4g}"

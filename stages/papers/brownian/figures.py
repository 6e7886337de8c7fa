"""Charts of a trained network's walk as Vega-Lite specifications, from the rows of `stages.papers.brownian.probe`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def spectrum_figure(rows: Rows) -> dict[str, Any]:
    """Moduli of each head's eigenvalues by rank, a panel a block (`spectrum_rows`)."""
    return _by_head(rows, x="rank", y="modulus", title="Eigenvalues of P, by rank")


def power_figure(rows: Rows) -> dict[str, Any]:
    """Distance of P^k from its limit over k, both on logarithmic scales, a panel a block (`power_rows`)."""
    return _by_head(
        rows, x="power", y="distance_to_limit", title="Distance of the k-th power of P from rank one", log=True
    )


def depth_figure(rows: Rows) -> dict[str, Any]:
    """How far apart the tokens are on the sphere at each depth; 1 is that of independent tokens (`depth_rows`)."""
    return {
        "$schema": _SCHEMA,
        "title": "Tokens' distance on the sphere over depth",
        "data": {"values": list(rows)},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "depth", "type": "ordinal", "title": "blocks passed"},
            "y": {"field": "share_of_sphere", "type": "quantitative", "title": "mean squared distance / 2d"},
        },
    }


def _by_head(rows: Rows, *, x: str, y: str, title: str, log: bool = False) -> dict[str, Any]:
    scale = {"scale": {"type": "log"}} if log else {}
    shown = [row for row in rows if row[y] > 0] if log else list(rows)  # a logarithm has no place for 0
    return {
        "$schema": _SCHEMA,
        "title": title,
        "data": {"values": shown},
        "facet": {"field": "block", "type": "ordinal", "title": "block"},
        "columns": 4,
        "spec": {
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {"field": x, "type": "quantitative", "title": x, **scale},
                "y": {"field": y, "type": "quantitative", "title": y.replace("_", " "), **scale},
                "color": {"field": "head", "type": "nominal", "title": "head"},
            },
        },
    }

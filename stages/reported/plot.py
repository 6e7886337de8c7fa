"""Pictures of claims and verdicts: `claimcheck.plot`, one function for each.  Needs matplotlib.

Each draws into `axes`, or into a new figure, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from stages.reported.judging import ReportedVerdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER, QUIET = "#0f6b6f", "#b4531f", "#a3a8a5"
WORDS = {"holds": "#1f6b3a", "fails": "#a11d2b", "open": "#c99a2e", "not tested": "#d8d5cc"}


def count_verdicts(claims: pd.DataFrame, axes: Axes | None = None) -> Axes:
    """Draw the claims of each paper as a bar, by the word of their verdict.

    `claims`: rows of `/api/v1/claims?format=csv`.
    """
    axes = axes or _new(height=2.4)
    counts = claims.groupby(["paper", "verdict.word"]).size().unstack(fill_value=0)
    left = pd.Series(0, index=counts.index)
    for word, colour in WORDS.items():
        if word in counts:
            axes.barh(counts.index, counts[word], left=left, color=colour, label=word)
            left = left + counts[word]
    axes.set_xlabel("claims")
    axes.legend(frameon=False, ncols=len(WORDS), loc="lower center", bbox_to_anchor=(0.5, 1))
    return axes


def compare_models(models: pd.DataFrame, axes: Axes | None = None) -> Axes:
    """Draw our result of each model with its interval, and the paper's number if it prints one.

    `models`: rows of `/compare?format=csv`, of one experiment.
    """
    shown = models[models["ours.value"].notna()]
    axes = axes or _new(height=0.8 + 0.3 * len(shown))
    places = range(len(shown) - 1, -1, -1)
    reach = [shown["ours.value"] - shown["ours.low"], shown["ours.high"] - shown["ours.value"]]
    axes.errorbar(shown["ours.value"], places, xerr=reach, fmt="o", color=OURS, label="ours, 95 %")
    axes.plot(shown["printed.value"], places, "D", color=PAPER, fillstyle="none", label="the paper")
    axes.set_yticks(places, shown["title"])
    axes.set_xlabel(f"{shown['metric.name'].iloc[0]} ({shown['metric.unit'].iloc[0]})")
    axes.legend(frameon=False)
    return axes


def show_margins(verdicts: Sequence[ReportedVerdict], axes: Axes | None = None) -> Axes:
    """Draw the difference between ours and the printed number with its interval, and the margin as a band."""
    drawn: list[Any] = [one for one in verdicts if one.verdict.low is not None and one.verdict.high is not None]
    axes = axes or _new(height=0.8 + 0.4 * len(drawn))
    for place, one in enumerate(drawn):
        found, margin = one.verdict, one.verdict.margin or 0.0
        axes.barh(place, 2 * margin, left=-margin, height=0.6, color="#dde5e5")
        axes.plot([found.low, found.high], [place, place], color=OURS)
        axes.plot(found.estimate, place, "o", color=OURS)
    axes.axvline(0, color=QUIET, linewidth=1)
    axes.set_yticks(range(len(drawn)), [f"{one.claim}\n{one.status}" for one in drawn])
    axes.set_xlabel("ours minus the printed number")
    return axes


def _new(height: float) -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7, height), layout="constrained")[1]

"""Judge printed numbers by reported results: `import claimcheck`.

    claimcheck.value(printed="97.5 ± 0.2 %", n=5, ours=[0.971, 0.974, 0.969, 0.973, 0.972])
    claimcheck.order(a=[...], b=[...], better="higher")
    claimcheck.judge("claims.csv", "results.csv")
    claimcheck.lint("claims.csv")

Each verdict prints as a sentence and has `to_dict`, `to_frame` and `to_svg`.  Needs NumPy, SciPy and pandas;
`claimcheck.plot` needs matplotlib.
"""

from stages.reported import TableError, plot
from stages.reported.judging import RULES, RULES_ANYTIME, ReportedVerdict, comparable, gap, order, value, wins
from stages.reported.reading import RowProblem as Problem
from stages.reported.tables import Judged, judge, lint

__all__ = [
    "RULES",
    "RULES_ANYTIME",
    "Judged",
    "Problem",
    "ReportedVerdict",
    "TableError",
    "comparable",
    "gap",
    "judge",
    "lint",
    "order",
    "plot",
    "value",
    "wins",
]

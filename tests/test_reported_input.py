"""Reported results are judged alike however they are written, or refused: a spelling never accuses a paper."""

import csv
import io
import math
import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import claimcheck
from stages.cli import main
from stages.reported.judging import PrintedNumber
from stages.reported.tables import TableError
from stages.reported.trackers import import_results
from stages.verdicts import Status

ACCUSES = {Status.NOT_REPRODUCED, Status.REVERSED}
OURS = [0.971, 0.974, 0.969, 0.973, 0.972]
BASE = [0.951, 0.949, 0.952, 0.95, 0.95]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """One way to write the same claims and results."""

    claims: str = "sign"
    results: str = "column"
    is_wide: bool = False
    has_epochs: bool = False
    has_column_std: bool = False
    has_leading_zeros: bool = True
    order: int = 0

    def claim(self, share: Decimal | None, std: Decimal | None) -> tuple[str, str, str]:
        """Return the cells `printed`, `unit` and `std`."""
        printed, unit = self._claim(share)
        if share is None or std is None:
            return printed, unit, ""
        spread, _ = self._claim(std)
        return (printed, unit, spread) if self.has_column_std else (f"{printed} ± {spread}", unit, "")

    def _claim(self, share: Decimal | None) -> tuple[str, str]:
        if share is None:
            return "", ""
        percent = f"{share.scaleb(2):f}"
        if not self.has_leading_zeros:
            percent = percent.replace("0.", ".") if percent.startswith(("0.", "-0.")) else percent
        cells = {"sign": (f"{percent} %", ""), "tight": (f"{percent}%", ""), "latex": (f"${percent}\\%$", "")}
        cells |= {"column": (percent, "%"), "points": (percent, "points"), "bare percent": (percent, "")}
        return (cells | {"fraction": (f"{share:f}", "fraction"), "bare fraction": (f"{share:f}", "")})[self.claims]

    def result(self, share: Decimal) -> tuple[str, str]:
        """Return the cells `value` and `unit`."""
        percent = f"{share.scaleb(2):f}"
        cells = {"column": (percent, "%"), "sign": (f"{percent} %", ""), "bare percent": (percent, "")}
        return (cells | {"fraction": (f"{share:f}", "fraction"), "bare fraction": (f"{share:f}", "")})[self.results]


SPELLINGS = st.builds(
    Spelling,
    claims=st.sampled_from(["sign", "tight", "latex", "column", "points", "bare percent", "fraction", "bare fraction"]),
    results=st.sampled_from(["column", "sign", "bare percent", "fraction", "bare fraction"]),
    is_wide=st.booleans(),
    has_epochs=st.booleans(),
    has_column_std=st.booleans(),
    has_leading_zeros=st.booleans(),
    order=st.integers(0, 9),
)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper whose printed numbers are rounded means of the results."""

    metric: str
    arms: dict[str, list[Decimal]]
    digits: int
    std: Decimal | None

    def claims(self) -> list[tuple[str, str, Decimal | None]]:
        """Return (id, kind, printed)."""
        digit = Decimal(10) ** -self.digits
        ours, base = (sum(values) / len(values) for values in self.arms.values())
        gain = (ours - base if "acc" in self.metric else base - ours).quantize(digit)
        found: list[tuple[str, str, Decimal | None]] = [("v", "value", Decimal(ours).quantize(digit))]
        found += [("w", "order", None), ("c", "comparable", None), ("z", "comparable", abs(gain) + digit)]
        return [*found, *([("g", "gap", gain)] if gain else []), *([("o", "order", gain)] if gain > 0 else [])]


@st.composite
def papers(draw: st.DrawFn) -> Paper:
    level = draw(st.sampled_from([1, 30, 90, 400, 3000, 9000]))  # ten-thousandths
    noise = draw(st.sampled_from([1, 10, 50]))
    arms = {
        arm: [Decimal(max(1, min(9999, draw(st.integers(at - noise, at + noise))))) / 10000 for _ in range(5)]
        for arm, at in (("ours", level), ("base", draw(st.integers(max(1, level // 2), min(9999, 2 * level)))))
    }
    metrics = ["error", "test/top5_error", *(["accuracy", "acc@1"] if level > 300 else [])]  # none is below 1 %
    metric = draw(st.sampled_from(metrics))
    std = draw(st.sampled_from([None, Decimal("0.002"), Decimal("0.0105")]))
    return Paper(metric=metric, arms=arms, digits=draw(st.integers(2, 4)), std=std)


def statuses(paper: Paper, spelling: Spelling) -> dict[str, tuple[Status, Status | None]]:
    """Return status and status of the size by claim, of those that are judged."""
    header = ["id", "kind", "metric", "arm", "baseline", "dataset", "printed", "unit", "std"]
    rows = []
    for name, kind, printed in paper.claims():
        std = None if kind == "comparable" else paper.std
        rows.append(
            [name, kind, paper.metric, "ours", "" if kind == "value" else "base", "d", *spelling.claim(printed, std)]
        )
    cells = [
        ["d", arm, str(seed), epoch, *spelling.result(value if epoch != "1" else Decimal("0.5"))]
        for arm, values in paper.arms.items()
        for seed, value in enumerate(values)
        for epoch in (("1", "2") if spelling.has_epochs else ("",))
    ]
    random.Random(spelling.order).shuffle(cells)
    results = pd.DataFrame(cells, columns=["dataset", "arm", "seed", "epoch", "value", "unit"])
    if not spelling.has_epochs:
        results = results.drop(columns="epoch")
    if not results["unit"].any():
        results = results.drop(columns="unit")
    results = (
        results.rename(columns={"value": paper.metric}) if spelling.is_wide else results.assign(metric=paper.metric)
    )
    judged = claimcheck.judge(pd.DataFrame(rows, columns=header), results)
    assert len(judged.verdicts) + len(judged.problems) == len(rows)
    return {one.claim: (one.status, one.verdict.size and one.verdict.size.status) for one in judged.verdicts}


@given(papers(), SPELLINGS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_true_paper_is_never_accused_and_each_spelling_gives_the_same_verdict_or_none(
    paper: Paper, spelling: Spelling
) -> None:
    plain = statuses(paper, Spelling())
    assert len(plain) == len(paper.claims()), "with every unit given, all are judged"
    assert not {name for name, found in plain.items() if ACCUSES & set(found)} - {"w", "c"}
    for name, found in statuses(paper, spelling).items():
        assert found == plain[name], (name, spelling)


CELLS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(
        ["nan", "inf", "-1", "1e400", "1e308", "97,5", "97.5 ± e5", "5 of 3", "%", '"', "0", "0x1", "٣", "1_0"]
    ),
)
CLAIMS = ("id", "kind", "metric", "arm", "baseline", "dataset", "printed", "unit", "std", "stderr", "n", "better")
RESULTS = ("dataset", "arm", "seed", "epoch", "metric", "value", "unit")


def write(path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]], *, is_quoted: bool = True) -> Path:
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if is_quoted else csv.QUOTE_NONE
    writer = csv.writer(
        text, quoting=quoting, escapechar=None if is_quoted else "\\", quotechar='"' if is_quoted else None
    )
    writer.writerows([columns, *([row.get(column, "") for column in columns] for row in rows)])
    path.write_bytes(text.getvalue().encode())
    return path


@given(
    st.dictionaries(st.sampled_from(CLAIMS), CELLS, max_size=3),
    st.dictionaries(st.sampled_from(RESULTS), CELLS, max_size=2),
    st.sampled_from(["value", "order", "gap", "comparable", "wins", "x"]),
    st.sampled_from(["accuracy", "loss", "bleu"]),
    st.booleans(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_cell_in_any_column_ends_in_an_answer(
    tmp_path: Path, claim: dict[str, str], result: dict[str, str], kind: str, metric: str, is_quoted: bool
) -> None:
    """`judge` and `lint` exit with 0, or with 1 and a message; any other exception fails this test."""
    usual = {"id": "a", "kind": kind, "metric": metric, "arm": "ours", "baseline": "base", "printed": "0.97"}
    if kind == "wins":
        usual["printed"] = "1 of 1"
    claims = write(tmp_path / "claims.csv", CLAIMS, [usual | claim, usual | {"id": "b"}], is_quoted=is_quoted)
    rows = [
        {"arm": arm, "seed": str(seed), "epoch": "1", "metric": metric, "value": str(value)}
        for arm, values in (("ours", OURS), ("base", BASE))
        for seed, value in enumerate(values)
    ]
    results = write(tmp_path / "results.csv", RESULTS, [rows[0] | result, *rows[1:]], is_quoted=is_quoted)
    for words in (["judge", str(claims), str(results)], ["lint", str(claims)]):
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            assert main(words) in (0, 1)
        assert out.getvalue() or err.getvalue()


ARGUMENTS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.decimals(),
    st.lists(st.one_of(st.floats(), st.none(), st.text(max_size=2)), max_size=6),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from(
        [OURS, tuple(BASE), pd.Series(OURS), pd.DataFrame({"a": OURS}), pd.NA, pd.NaT, object(), len, 10**400]
    ),
    st.sampled_from(
        ["higher", "97.5 %", "0.5", "3 of 4", 0.5, claimcheck.RULES, claimcheck.RULES_ANYTIME, [(OURS, BASE)]]
    ),
)
FUNCTIONS: dict[Callable[..., Any], tuple[Sequence[Any], dict[str, Any]]] = {
    claimcheck.value: ((), {"printed": "97.2 %", "ours": OURS, "std": None, "n": 5, "better": "higher"}),
    claimcheck.order: ((OURS, BASE), {"printed": "2.1 %", "better": "higher", "std": None, "n": None, "folds": None}),
    claimcheck.gap: ((OURS, BASE), {"printed": "2.1 %", "better": "higher", "paired": False}),
    claimcheck.comparable: ((OURS, BASE), {"printed": None, "better": "higher", "is_share": True}),
    claimcheck.wins: (([(OURS, BASE)],), {"printed": "1 of 1", "better": "higher"}),
}


@given(st.sampled_from(list(FUNCTIONS)), st.data())
@settings(max_examples=200, deadline=None)
def test_any_argument_gives_a_verdict_or_a_value_error(function: Callable[..., Any], data: st.DataObject) -> None:
    positional, named = FUNCTIONS[function]
    more = {"claim": "t", "rules": claimcheck.RULES} | ({} if function is claimcheck.wins else {"margin": None})
    named = named | more
    changed = data.draw(st.lists(st.sampled_from([*range(len(positional)), *named]), min_size=1, max_size=2))
    arguments = [data.draw(ARGUMENTS) if at in changed else given for at, given in enumerate(positional)]
    named = {name: data.draw(ARGUMENTS) if name in changed else given for name, given in named.items()}
    try:
        found = function(*arguments, **named)
    except ValueError as error:
        assert str(error)
    else:
        assert isinstance(found, claimcheck.ReportedVerdict) and str(found) and found.to_dict()


@given(ARGUMENTS, ARGUMENTS, ARGUMENTS)
def test_any_table_gives_verdicts_or_a_table_error(claims: Any, results: Any, rules: Any) -> None:
    for call in (lambda: claimcheck.judge(claims, results, rules), lambda: claimcheck.lint(claims)):
        with pytest.raises(claimcheck.TableError):
            call()

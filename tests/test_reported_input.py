"""Reported results are judged alike however they are written, or refused: a spelling never accuses a paper."""

import csv
import dataclasses
import inspect
import io
import random
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import claimcheck
from stages.cli import main
from stages.reported import TableError
from stages.reported.trackers import import_results
from stages.reported.units import PrintedNumber
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
    """A paper whose printed numbers are rounded means of the results, and gains those of its rounded numbers."""

    metric: str
    arms: dict[str, list[Decimal]]
    digits: int
    std: Decimal | None

    def claims(self) -> list[tuple[str, str, Decimal | None]]:
        """Return (id, kind, printed)."""
        digit = Decimal(10) ** -self.digits
        ours, base = (sum(values, Decimal()) / len(values) for values in self.arms.values())
        ours, base = ours.quantize(digit), base.quantize(digit)
        gain = ours - base if "acc" in self.metric else base - ours
        found: list[tuple[str, str, Decimal | None]] = [("v", "value", ours)]
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
    sizes = {one.claim: one.verdict.size for one in judged.verdicts}
    return {one.claim: (one.status, size.status if (size := sizes[one.claim]) else None) for one in judged.verdicts}


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
    if is_quoted:
        writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    else:
        writer = csv.writer(text, quoting=csv.QUOTE_NONE, quotechar=None, escapechar="\\")
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
    except ValueError:
        return
    assert isinstance(found, claimcheck.ReportedVerdict) and str(found) and found.to_dict()


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ({"better": "Higher"}, "better is 'Higher'; expected 'higher' or 'lower'"),
        ({"better": None}, "better is None; expected 'higher' or 'lower'"),
        ({"margin": -1}, "margin is -1; expected a number above 0"),
        ({"margin": "1 %"}, "margin is '1 %'; expected a number above 0"),
        ({"n": "5"}, "n is '5'; expected the number of the paper's runs"),
        ({"n": 0}, "n is 0; expected the number of the paper's runs"),
        ({"std": 0.2}, "write % after both or neither"),
        ({"folds": 2.5}, "folds is 2.5; expected the number of folds"),
    ],
)
def test_wrong_argument_is_refused_by_every_function_that_takes_it(faulty: dict[str, Any], said: str) -> None:
    for function, (positional, named) in FUNCTIONS.items():
        if set(faulty) <= set(inspect.signature(function).parameters):
            with pytest.raises(ValueError, match=re.escape(said)):
                function(*positional, **named | {"printed": named["printed"] or "1 %"} | faulty)


@given(ARGUMENTS, ARGUMENTS, ARGUMENTS)
def test_any_table_gives_verdicts_or_a_table_error(claims: Any, results: Any, rules: Any) -> None:
    for call in (lambda: claimcheck.judge(claims, results, rules), lambda: claimcheck.lint(claims)):
        with pytest.raises(claimcheck.TableError):
            call()


def table(*rows: str, header: str = "id,kind,metric,arm,baseline,printed,unit,std,n") -> pd.DataFrame:
    lines = [line.split(",") for line in (header, *rows)]
    return pd.DataFrame([[*line, *[""] * len(lines[0])][: len(lines[0])] for line in lines[1:]], columns=lines[0])


def long(metric: str, ours: Sequence[object], base: Sequence[object] = (), **more: Any) -> pd.DataFrame:
    rows = [(arm, seed, value) for arm, values in (("ours", ours), ("base", base)) for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["arm", "seed", "value"]).assign(metric=metric, **more)


def scaled(values: Sequence[float], factor: float = 100.0) -> list[float]:
    return [round(value * factor, 6) for value in values]


ERRORS = long("error", [0.82] * 4 + [0.821], [0.8] * 4 + [0.801])


@pytest.mark.parametrize(
    ("claim", "results", "said"),
    [
        (
            "a,order,accuracy,ours,base,2.1",
            long("accuracy", scaled(OURS), scaled(BASE)),
            "write 2.1 % if it is in perc",
        ),
        ("a,gap,accuracy,ours,base,0.5", long("accuracy", [0.975, 0.976], [0.97, 0.971]), "in percent, say so"),
        ("a,order,loss,ours,base,12 %", long("loss", scaled(OURS), scaled(BASE)), "'loss', which isn't a share"),
        ("a,value,loss,ours,,12 %", long("loss", scaled(OURS)), "'loss', which isn't a share"),
        ("a,order,accuracy,ours,base,2.1 %", long("accuracy", OURS, scaled(BASE)), "the results have 0.971 and 95.1"),
        ("a,order,error,ours,base,0.10 %", long("error", [0.8, 0.81], [0.9, 0.91]), "in percent, say so"),
        (
            "a,comparable,error,ours,base",
            long("error", [0.82] * 4 + [0.821], [0.8] * 4 + [0.801]),
            "depends on the unit",
        ),
        ("a,value,bleu,ours,,27.3", long("bleu", [0.273, 0.274, 0.272]), "in percent, say so"),
        ("a,value,accuracy,ours,,97.1 %", long("accuracy", [143.0, 97.0]), "143 in the results isn't a share"),
        ("a,order,error,ours,base,-2.1 %", long("error", OURS, BASE), "positive, also if lower is better"),
        ("a,gap,accuracy,ours,base,0.0 %", long("accuracy", OURS, BASE), "use kind comparable"),
        ("a,comparable,accuracy,ours,base,1 %,,0.2", long("accuracy", OURS, BASE), "no standard deviation"),
        ("a,value,time,ours,,3,s", long("time", OURS, unit="ms"), "better"),
        ("a,value,time_loss,ours,,3,s", long("time_loss", OURS, unit="ms"), "is ms and s; expected one unit"),
        ("a,value,accuracy,ours,,0.97,,0.2 %", long("accuracy", OURS), "write both in percent or neither"),
    ],
)
def test_unit_or_sign_that_is_unclear_is_a_problem_with_a_remedy(claim: str, results: pd.DataFrame, said: str) -> None:
    judged = claimcheck.judge(table(claim), results)
    assert not judged.verdicts and said in judged.problems[0].why


def test_unit_is_decided_for_each_metric_and_data_set() -> None:
    """A loss next to an accuracy in percent, another data set and a diverged run don't change the unit."""
    wide = pd.DataFrame({"arm": "ours", "seed": range(5), "accuracy": scaled(OURS), "loss": OURS, "unit": "%"})
    judged = claimcheck.judge(table("a,value,accuracy,ours,,97.2 %", "b,value,loss,ours,,0.972"), wide)
    assert [one.ours for one in judged.verdicts] == [pytest.approx(0.9718), pytest.approx(0.9718)]
    two = pd.concat([long("auc", [*OURS[:4], 1 + 1e-15], dataset="c"), long("auc", scaled(OURS), dataset="d")])
    rows = table("a,value,auc,ours,c,97.4 %", "b,value,auc,ours,d,97.2 %", header="id,kind,metric,arm,dataset,printed")
    assert all(one.ours and 0.97 < one.ours < 0.98 for one in claimcheck.judge(rows, two).verdicts)
    (found,) = claimcheck.judge(table("a,value,accuracy,base,,95.0 %"), long("accuracy", [*OURS, "inf"], BASE)).verdicts
    assert found.ours == pytest.approx(0.9504)
    for value, status in (("82 %", Status.REVERSED), ("0.82 %", None)):
        judged = claimcheck.judge(table(f"v,value,error,ours,,{value}", "c,comparable,error,ours,base"), ERRORS)
        assert (judged.verdicts[-1].status if judged.verdicts else None) is status, "a value in the claims confirms it"


def test_relative_gain_is_not_a_difference_for_judge_and_lint() -> None:
    claims = table("v,value,accuracy,ours,,97.2 %", "w,value,accuracy,base,,95.1 %", "o,order,accuracy,ours,base,43 %")
    *_, order = claimcheck.judge(claims, long("accuracy", OURS, BASE)).verdicts
    assert order.status is Status.SUPPORTED and order.verdict.size and order.verdict.size.status is Status.NOT_TESTED
    assert "relative fall of the error" in order.of_size and not claimcheck.lint(claims)
    gap = claimcheck.gap(OURS, BASE, printed="43 %", better="higher")
    assert gap.status is Status.NOT_TESTED and "relative fall" in gap.verdict.explanation
    signed = claimcheck.gap([0.03, 0.031] * 3, [0.05, 0.051] * 3, printed="-2.0 %", better="lower")
    assert signed.status is Status.NOT_TESTED and "wrong sign" in signed.verdict.explanation


def test_rounding_and_few_digits_accuse_nothing() -> None:
    ours, base = [0.506, 0.5061, 0.5059, 0.506, 0.506], [0.5035, 0.5036, 0.5034, 0.5035, 0.5035]
    rounded = claimcheck.order(ours, base, printed="1 %", better="higher")  # of 51 % and 50 %
    assert rounded.verdict.size and rounded.verdict.size.status is Status.UNDECIDABLE
    assert rounded.verdict.size.margin == pytest.approx(0.01), "a unit of the last printed digit"
    far = [0.60, 0.61, 0.62, 0.6, 0.61]
    coarse = claimcheck.value(printed="1", ours=far)
    assert coarse.status is Status.UNDECIDABLE and "too few digits" in coarse.verdict.explanation
    near = [0.82, 0.821, 0.819, 0.82, 0.82]
    assert claimcheck.value(printed=0.9, ours=near).status is Status.NOT_REPRODUCED, "a float has no last digit"
    assert claimcheck.value(printed="0.9", ours=near).status is Status.UNDECIDABLE
    assert claimcheck.value(printed="3", ours=[2.9, 2.91, 2.92, 2.9, 2.9], is_share=False).status is Status.UNDECIDABLE


def test_all_runs_count_without_a_plan() -> None:
    found = claimcheck.value(printed="97.0 %", ours=[0.970, 0.9701, 0.9702, 0.9699] * 3 + [0.60] * 20)
    assert found.verdict.n == 32 and found.status is not Status.REPRODUCED
    unequal = claimcheck.order(OURS[:4], BASE * 2, better="higher", printed="2.1 ± 1.0 %").verdict
    assert unequal.size and "wait" not in unequal.size.explanation
    assert unequal.n == 4 and "6 more of the model with more runs aren't used" in unequal.explanation


def test_margin_of_comparable_losses_is_relative() -> None:
    judged = claimcheck.judge(
        table("c,comparable,perplexity,ours,base"), long("perplexity", [30.02, 30.03, 30.02], [30, 30.01, 30])
    )
    assert judged.verdicts[0].status is Status.SUPPORTED and judged.verdicts[0].verdict.margin == pytest.approx(
        0.6, rel=0.01
    )


def test_standard_error_is_not_a_standard_deviation() -> None:
    header = "id,kind,metric,arm,baseline,printed,n,stderr,std"
    rows = (
        "a,value,accuracy,ours,,97.9 %,4,0.2",
        "b,value,accuracy,ours,,97.9 %,4,,0.4",
        "c,value,accuracy,ours,,97.9 ± 0.4 %,4",
    )
    gains = ("d,order,accuracy,ours,base,4.0 %,5,,3.0", "e,order,accuracy,ours,base,4.0 ± 3.0 %,5")
    a, b, c, d, e = claimcheck.judge(table(*rows, *gains, header=header), long("accuracy", OURS, BASE)).verdicts
    assert a.verdict.low == pytest.approx(b.verdict.low) and b.verdict == c.verdict and d.verdict == e.verdict


def test_last_epoch_counts_and_equal_runs_are_refused() -> None:
    curve = pd.concat(
        [long("accuracy", OURS, epoch=1), long("accuracy", [None, "NaN", "diverged", "", "-inf"], epoch=2)]
    )
    (found,) = claimcheck.judge(table("a,value,accuracy,ours,,97.2 %"), curve).verdicts
    assert found.verdict.n_diverged == 5 and found.status is Status.INCONCLUSIVE
    for faulty, said in (
        (pd.concat([curve, curve]), "'ours', seed 0, 'accuracy' twice"),
        (pd.concat([long("accuracy", OURS, epoch=at, lab=lab) for at, lab in ((1, "a"), (2, "b"))]), "twice"),
        (curve.assign(seed=""), "seed '' .* is not a number"),
        (curve.assign(epoch=None), "epoch '' .* is not a number"),
        (
            curve.assign(value="97,1"),
            r"'97,1' \(line 2\) is not a number .*comma may be a decimal point .*: write 97\.1 or 971; expected 97\.1",
        ),
        (curve.assign(value="9" * 5000), "is not a number up to 1e100"),
    ):
        with pytest.raises(TableError, match=said):
            claimcheck.judge(table("a,value,accuracy,ours,,97.2 %"), faulty)


def test_arm_with_several_cells_has_a_fault_only_if_none_fits() -> None:
    cells = ["a,value,accuracy,ours,,97.5 %", "b,value,accuracy,base,,95.0 %", "c,value,accuracy,ours,,96.0 %"]
    assert not claimcheck.lint(table(*cells, "g,order,accuracy,ours,base,2.5 %"))
    assert [one.id for one in claimcheck.lint(table(*cells, "g,order,accuracy,ours,base,7.5 %"))] == ["g"]
    numbers = table("a,value,accuracy,ours,,1", "b,value,accuracy,base,,1", "g,gap,accuracy,ours,base,1")
    assert not claimcheck.lint(numbers.assign(printed=[0.97, 0.95, 0.025])), "0.97 as a number may be 0.974 rounded"
    near = [*cells[:1], "b,value,accuracy,base,,96.6 %", "g,order,accuracy,ours,base,0.9"]
    assert [one.why for one in claimcheck.lint(table(*near))] == [
        "0.9 without a unit is a fraction; write 0.9 % if it is in percent"
    ]


@pytest.mark.parametrize(
    "text",
    ["", "n/a", "97.5.1", "about 97", "%", "nan", "inf",
     "0,975", "97,512", "97 98", "0.975 ± 0.2 %", "97.5 % ± 0.2", "97.5 ±", "97.5±-0.2", "1e400", "97.5±e5", "e5",
     "97.5 (0.2)", "~ 97.5 %", ">97", "97-98", "97.5*", "10²", "9" * 400],
)  # fmt: skip
def test_ambiguous_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"print it as 97\.5 %|write % after both"):
        PrintedNumber.parse(text)


@pytest.mark.parametrize(
    "metric", ["acc@1", "top1", "top-5 accuracy", "Accuracy (%)", "f1_score", "error rate", "mAP50"]
)
def test_share_is_known_by_its_name(metric: str) -> None:
    (found,) = claimcheck.judge(table(f"a,value,{metric},ours,,97.2 %"), long(metric.upper(), scaled(OURS))).verdicts
    assert found.ours == pytest.approx(0.9718)


def test_file_is_read_as_programs_export_it(tmp_path: Path) -> None:
    text = "id,metric,arm,printed,n\na,accuracy,ours,97.2 %,5,\n,,,,\nb,accuracy,,97.2 %,5\nc,accuracy,ours,97,2 %,5\n"
    results = long("accuracy", OURS)
    problems = [
        (4, "arm is empty; name the model that the claim is about"),
        (5, "6 cells in 5 columns; quote a cell that has a comma"),
    ]
    for name, raw in {
        "plain": text.encode(),
        "utf16": text.encode("utf-16"),
        "mark": text.encode("utf-8-sig"),
        "lines": text.replace("\n", "\r\n").encode(),
    }.items():
        (tmp_path / name).write_bytes(raw)
        judged = claimcheck.judge(tmp_path / name, results)
        assert [one.claim for one in judged.verdicts] == ["a"]
        assert [(one.line, one.why) for one in judged.problems] == problems
    for other in (text.replace(",", ";"), text.replace(",", "\t"), f"# ours\n{text}"):
        (tmp_path / "other").write_text(other, encoding="utf-8")
        assert [one.claim for one in claimcheck.judge(tmp_path / "other", results).verdicts] == ["a"]
    faults = {b"": "is empty", b"id,metric,arm,ID\n": "columns id twice"}
    faults[b'id,metric,arm\n"a,accuracy,ours\nb,accuracy,ours\n'] = "line 2: unexpected end of data"
    for faulty, said in faults.items():
        (tmp_path / "bad").write_bytes(faulty)
        with pytest.raises(TableError, match=said):
            claimcheck.judge(tmp_path / "bad", results)
    (tmp_path / "long").write_text("arm,seed,accuracy\nours,0,0,97\n", encoding="utf-8")
    with pytest.raises(TableError, match="line 2 of the results has 4 cells"):
        claimcheck.judge(tmp_path / "plain", tmp_path / "long")


def test_large_seeds_are_told_apart() -> None:
    for first in (2**53, 2**64, 10**30):
        results = long("accuracy", OURS).assign(seed=[str(first + number) for number in range(5)])
        (found,) = claimcheck.judge(table("a,value,accuracy,ours,,97.2 %"), results).verdicts
        assert found.verdict.n == 5
    with pytest.raises(TableError, match=f"seed {2**53 + 1}, 'accuracy' twice"):
        claimcheck.judge(table("a,value,accuracy,ours,,97.2 %"), results.assign(seed=["9007199254740993.0"] * 5))


def test_repeated_cross_validation_is_refused_with_a_remedy() -> None:
    results = pd.concat([long("accuracy", OURS, seed=seed, fold=range(5)) for seed in (0, 1)])
    claims = table("a,value,accuracy,ours,,97.2 %")
    with pytest.raises(TableError, match=r"folds of several seeds share .*replace the results of each fold by their"):
        claimcheck.judge(claims, results)
    assert claimcheck.judge(claims, results[results["seed"] == 0]).verdicts[0].verdict.n == 5


def test_names_and_numbers_may_have_other_characters_that_look_the_same() -> None:
    composed, decomposed = "Zürich 50", "Zu\u0308rich\u00a050\u200b"
    claims = table(f"a,value,accuracy,{composed},,97.2\u00a0%", f"b,value,accuracy\u00a0,{decomposed},,97.2\u202f%")
    results = long("accuracy", OURS).assign(arm=[composed, decomposed] * 2 + [composed])
    judged = claimcheck.judge(claims, results.assign(value=[f"{100 * value}\u00a0%" for value in OURS]))
    assert [one.verdict.n for one in judged.verdicts] == [5, 5] and not judged.problems
    assert claimcheck.value(printed="97.2\u00a0±\u2009.2\u00a0%", ours=OURS).printed == pytest.approx(0.972)
    assert claimcheck.wins([(OURS, BASE)], printed="1\u00a0of\u00a01", better="higher").printed == 1


def test_verdict_names_the_rules_that_were_changed() -> None:
    other = dataclasses.replace(claimcheck.RULES, alpha_within=0.1, minimum=4)
    for rules, names in (
        (claimcheck.RULES, []),
        (other, ["alpha_within", "minimum"]),
        (claimcheck.RULES_ANYTIME, ["looks"]),
    ):
        for function, (positional, named) in FUNCTIONS.items():
            if function is claimcheck.wins and rules.is_anytime:
                continue
            found = function(*positional, **named, rules=rules)
            assert found.to_dict()["changed_rules"] == names
            assert ("by rules with other" in str(found)) == bool(names) and all(name in str(found) for name in names)
    many = claimcheck.value(printed="97.2 %", ours=OURS * 4)
    assert many.verdict.n == 20 and not many.changed_rules, "a last analysis at 20 follows from the usual rules"


def test_more_replicates_than_anytime_judges_are_mentioned() -> None:
    ours, base = OURS * 210, BASE * 210
    for found in (
        claimcheck.value(printed="97.2 %", ours=ours, rules=claimcheck.RULES_ANYTIME),
        claimcheck.order(ours, base, better="higher", rules=claimcheck.RULES_ANYTIME),
    ):
        assert "With `looks: anytime` only the first 1,000 of the 1,050 replicates are judged." in str(found)


def test_zero_has_no_sign() -> None:
    found = claimcheck.value(printed="-0.0 %", ours=[-0.0] * 5)
    assert (str(found.printed), str(found.ours)) == ("0.0", "0.0")


def test_page_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims, results = tmp_path / "claims.csv", tmp_path / "results.csv"
    table("a,value,accuracy,ours,,97.2 %").to_csv(claims, index=False)
    long("accuracy", OURS).to_csv(results, index=False)
    assert main(["judge", str(claims), str(results), "--html", str(tmp_path / "no" / "x.html")]) == 1
    assert "x.html can't be written: No such file" in capsys.readouterr().err


def test_missing_names_have_a_hint() -> None:
    header = "id,kind,metric,arm,dataset,printed"
    rows = table("a,value,Acuracy,ours,,97.2 %", "b,value,accuracy,ours,d,97.2 %", header=header + ",better")
    rows["better"] = "higher"
    one, other = claimcheck.judge(rows, long("accuracy", OURS)).verdicts
    assert (
        "did you mean accuracy" in one.verdict.explanation
        and "fill in their column dataset" in other.verdict.explanation
    )


def test_decimal_comma_of_a_tracker_is_explained(tmp_path: Path) -> None:
    for text, where in (
        ("Name;model;seed;accuracy\na;vit;0;97,2\n", "line 2: accuracy is '97,2'"),
        ("Step;vit-seed0 - accuracy\n0;97,2\n", "line 2: vit-seed0 - accuracy is '97,2'"),
    ):
        (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
        with pytest.raises(
            TableError, match=f"runs.csv, {where}, which is not a number, because its comma .*write 97.2"
        ):
            import_results("csv", tmp_path / "runs.csv")


def test_size_of_a_model_is_not_a_seed(tmp_path: Path) -> None:
    names = ["resnet-18", "resnet-34", "bert-base-seed1-lr0.1", "vit/run2", "vit run 2"]
    (tmp_path / "runs.csv").write_text("Name,accuracy\n" + "".join(f"{name},0.9\n" for name in names), encoding="utf-8")
    found = import_results("csv", tmp_path / "runs.csv")
    assert found.table[["arm", "seed"]].to_numpy().tolist() == [["bert-base-lr0.1", "1"], ["vit", "2"], ["vit", "2"]]
    unnamed, read, twice = found.notes
    assert unnamed.startswith(
        "left out 2 without a model or a seed, such as: no parameter holds the arm of the run 'resn"
    )
    assert read == "read from 3 names, such as: bert-base-seed1-lr0.1 is bert-base-lr0.1 with seed 1"
    assert twice.startswith("the same model, seed and data set, which judge refuses: vit/run2, vit run 2; delete")

"""Verdicts on results that others report: `import claimcheck`, `claimcheck judge`, `claimcheck lint`."""

import dataclasses
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import claimcheck
from stages.cli import main
from stages.params.experiment import load_params
from stages.reported.units import PrintedNumber, parse_count
from stages.verdicts import Sample, Status, ValueClaim, judge_value
from tests.test_architecture import third_party

OURS = [0.9715, 0.9722, 0.9718, 0.9725, 0.9720]
BASE = [0.951, 0.949, 0.952, 0.948, 0.950]
HEADER = "id,kind,metric,arm,baseline,dataset,printed,unit,std,n,better\n"


def table(*rows: str, header: str = HEADER) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(header + "\n".join(rows)), dtype=str, keep_default_na=False)


def results(scale: float = 1.0, **more: list[float]) -> pd.DataFrame:
    arms = {"ours": OURS, "base": BASE, **more}
    return pd.DataFrame(
        [
            ("mnist", arm, seed, "accuracy", scale * value)
            for arm, values in arms.items()
            for seed, value in enumerate(values)
        ],
        columns=["dataset", "arm", "seed", "metric", "value"],
    )


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("97.5 %", "", (0.975, None, 0.001)),
        ("97.5 ± 0.2 %", "", (0.975, 0.002, 0.001)),
        ("97.5% ± 0.2%", "", (0.975, 0.002, 0.001)),
        ("2.1 points", "", (0.021, None, 0.001)),
        ("$97.5 \\pm 0.2$", "%", (0.975, 0.002, 0.001)),
        ("0.975(2)", "", (0.975, 0.002, 0.001)),
        ("4,300,000", "", (4_300_000, None, 1)),
        ("−1.20", "", (-1.2, None, 0.01)),
        ("1.5e-3", "", (0.0015, None, 0.0001)),
        (0.25, "nats", (0.25, None, 0.01)),
        ("97.5_{\\pm 0.2}", "%", (0.975, 0.002, 0.001)),
        ("0.5 percentage points", "", (0.005, None, 0.001)),
        ("97.5 ％", "", (0.975, None, 0.001)),
        ("1,234.5", "", (1234.5, None, 0.1)),
        ("97.5\\%", "", (0.975, None, 0.001)),
    ],
)
def test_printed_number_is_parsed(text: object, unit: str, expected: tuple[float, float | None, float]) -> None:
    found = PrintedNumber.parse(text, unit)
    assert (found.value, found.precision) == pytest.approx((expected[0], expected[2]))
    assert found.std == (None if expected[1] is None else pytest.approx(expected[1]))


@pytest.mark.parametrize("text", ["16", "17 of 16", "0 of 0", "x of y"])
def test_invalid_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="15 of 16"):
        parse_count(text)


def test_default_rules_are_the_projects() -> None:
    assert dataclasses.replace(load_params().verdicts, families=()) == claimcheck.RULES


def test_library_imports_only_numpy_scipy_and_pandas() -> None:
    assert third_party("claimcheck") == {"numpy", "scipy", "pandas", "matplotlib"}
    heavy = ["matplotlib", "torch", "pydantic", "sqlalchemy", "fastapi", "dvc", "yaml"]
    code = f"import claimcheck, sys; assert not {{*{heavy}}} & {{name.split('.')[0] for name in sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_value_is_judged_like_one_of_our_trainings() -> None:
    found = claimcheck.value(printed=0.889, n=1, ours=[0.900, 0.908, 0.904, 0.912, 0.906], claim="t1")
    margin = claimcheck.RULES.margins.accuracy(0.889, 0.001)
    own = ValueClaim(value=0.889, margin=margin, n=1)
    sample = Sample.of([0.900, 0.908, 0.904, 0.912, 0.906])
    assert found.verdict == judge_value(own, sample, rules=claimcheck.RULES, planned=5)
    assert str(found).startswith(f"t1: {found.status} (reported, not retrained). Ours 0.906")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["ours"] == pytest.approx(0.906)
    assert found.to_svg().startswith("<svg") and len(found.to_frame()) == 1


def test_order_has_a_sign_and_a_printed_gain_has_a_size() -> None:
    assert claimcheck.order(OURS, BASE, better="higher").status is Status.SUPPORTED
    assert claimcheck.order(BASE, OURS, better="higher").status is Status.REVERSED
    assert claimcheck.order(BASE, OURS, better="lower").status is Status.SUPPORTED
    sized = claimcheck.order(OURS, BASE, better="higher", printed="2.2 %").verdict
    assert sized.size is not None and sized.size.status is Status.REPRODUCED
    with pytest.raises(ValueError, match="comparable"):
        claimcheck.order(OURS, BASE, better="higher", printed=0)


def test_comparable_arms_gap_and_wins_are_judged() -> None:
    assert claimcheck.comparable(BASE, BASE[::-1], better="higher").status is Status.SUPPORTED
    assert claimcheck.gap(BASE, OURS, printed="-2.2 %", better="higher").status is Status.REPRODUCED
    assert claimcheck.wins([(OURS, BASE)] * 4, printed="4 of 4", better="higher").status is Status.REPRODUCED
    assert claimcheck.wins([(OURS, BASE)] * 3, printed="4 of 4", better="higher").status is Status.NOT_TESTED


def test_diverged_run_counts_and_too_few_runs_decide_nothing() -> None:
    assert claimcheck.value(printed=0.972, ours=[*OURS[:4], math.nan]).verdict.n_diverged == 1
    assert claimcheck.value(printed=0.5, ours=OURS[:2]).status is Status.INCONCLUSIVE


@pytest.mark.parametrize("scale", [1.0, 100.0], ids=["fractions", "percent"])
def test_tables_may_be_long_or_wide_in_fractions_or_percent(scale: float) -> None:
    claims = table("t1,value,accuracy,ours,,mnist,97.2 %,,,5,", "t2,order,accuracy,ours,base,mnist,2.2 %,,,,")
    long = results(scale)
    wide = long.pivot(index=["dataset", "arm", "seed"], columns="metric", values="value").reset_index()
    wide = wide.assign(Parameters="12M", lr=0.1)  # columns that no claim is about
    curves = pd.concat([wide.assign(epoch=1, accuracy=0.1), wide.assign(epoch=2)])
    judged = [claimcheck.judge(claims, each) for each in (long, wide, curves)]
    assert judged[0] == judged[1] == judged[2] and not judged[0].problems
    assert [verdict.status for verdict in judged[0].verdicts] == [Status.REPRODUCED, Status.SUPPORTED]
    assert list(judged[0].to_frame()["claim"]) == ["t1", "t2"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("b,value,accuracy,ours,,mnist,99.05,,,,", "write 99.05 % if it is in percent"),
        ("b,value,accuracy,ours,,mnist,0.9,,,,lower", "higher is better for 'accuracy'"),
        ("b,value,accuracy,ours,,mnist,0.9,,,,up", "expected higher or lower"),
        ("b,value,speed,ours,,mnist,0.9,,,,", "fill in the column better"),
        ("b,valeu,accuracy,ours,,mnist,0.9,,,,", "did you mean value"),
        ("b,order,accuracy,ours,ours,mnist,,,,,", "compares two models"),
        ("b,value,accuracy,,,mnist,0.9,,,,", "arm is empty"),
        ("b,value,accuracy,ours,,mnist,,,,,", "needs its number"),
        ("b,value,accuracy,ours,,mnist,high,,,,", "not a number"),
        ("b,value,accuracy,ours,,mnist,0.9,,-1,,", "expected a standard deviation"),
        ("b,value,accuracy,ours,,mnist,0.9,,,1.5,", "expected a number of runs"),
        ("t1,value,accuracy,ours,,mnist,0.9,,,,", "is already in line 2"),
        ("b,wins,accuracy,ours,base,,many,,,,", "15 of 16"),
    ],
)
def test_invalid_row_has_a_reason_and_does_not_stop_others(row: str, said: str) -> None:
    judged = claimcheck.judge(table("t1,value,accuracy,ours,,mnist,97.2 %,,,5,", row), results())
    assert [verdict.status for verdict in judged.verdicts] == [Status.REPRODUCED]
    (problem,) = judged.problems
    assert problem.line == 3 and said in problem.why


def test_printed_rounding_reaches_the_judge() -> None:
    """The margin of 99.50 % is a tenth of its error, 0.0005; as 0.995 its last digit would make it 0.001."""
    claims = table("t,value,accuracy,ours,,mnist,99.50 %,,,5,")
    (found,) = claimcheck.judge(claims, results(ours=[0.9951] * 4 + [0.9952])).verdicts
    assert found.verdict.margin == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("accuracy,our,,mnist", "did you mean ours"),
        ("accuracy,ours,,mnits", "did you mean mnist"),
        ("acc,ours,,mnist", "have no 'acc'"),
    ],
)
def test_misspelt_name_is_not_tested_and_names_the_nearest(cells: str, said: str) -> None:
    (verdict,) = claimcheck.judge(table(f"t,value,{cells},0.9,,,,"), results()).verdicts
    assert verdict.status is Status.NOT_TESTED and said in verdict.verdict.explanation


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (results().drop(columns="seed"), "lack the column seed"),
        (results().drop(columns="arm"), "lacks the columns arm"),
        (pd.concat([results(), results()]), "twice; keep one of each"),
        (results().assign(value="fast"), "is not a number"),
    ],
)
def test_unreadable_results_list_what_is_missing(frame: pd.DataFrame, said: str) -> None:
    with pytest.raises(claimcheck.TableError, match=said):
        claimcheck.judge(table("t,value,accuracy,ours,,mnist,0.9,,,,"), frame)


def test_lint_finds_the_gain_that_the_papers_own_table_excludes() -> None:
    """No cells give NiNformer's "wide gain in accuracy of … 16%", unlike all other printed gains of the five papers."""
    assert [problem.id for problem in claimcheck.lint("data/claims.csv")] == ["ninformer.text.c10.acc_vs_localvit"]


def test_commands_judge_lint_and_write_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims, found, page = tmp_path / "claims.csv", tmp_path / "results.csv", tmp_path / "report.html"
    claims.write_text(
        HEADER + "<b>,value,accuracy,ours,,mnist,97.2 %,,,5,\nb,value,accuracy,ours,,mnist,99,,,,\n", encoding="utf-8"
    )
    results().to_csv(found, index=False)
    assert main(["judge", str(claims), str(found), "--html", str(page), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in document["verdicts"]] == ["reproduced"] and len(document["problems"]) == 1
    text = page.read_text(encoding="utf-8")
    assert "Reported, not retrained" in text and "&lt;b&gt;" in text and "<b><b>" not in text and "<svg" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert main(["lint", str(claims)]) == 1 and "line 3: b: 99 isn't a share" in capsys.readouterr().out
    rules = tmp_path / "rules.yaml"
    for text, words in (
        ("verdicts: {alpha_within: 7}", str(rules)),
        ("margins: {loss_share: .inf}", "margins.loss_share"),
    ):
        rules.write_text(text, encoding="utf-8")
        assert main(["judge", str(claims), str(found), "--rules", str(rules)]) == 1
        assert words in capsys.readouterr().err
    for text in ("looks: anytime\n", "margins: {error_points: 0.5}\n"):
        rules.write_text(text, encoding="utf-8")
        assert main(["judge", str(claims), str(found), "--rules", str(rules)]) == 1  # because of the row with a fault
        assert "<b>: " in capsys.readouterr().out
    rules.write_text("lookz: anytime\n", encoding="utf-8")
    assert main(["judge", str(claims), str(found), "--rules", str(rules)]) == 1
    assert "lookz" in capsys.readouterr().err
    assert main(["judge", str(claims), "data/claims.csv", "--rules", "params.yaml"]) == 1
    assert "lack the column seed" in capsys.readouterr().err


def test_first_look_may_be_far_away(tmp_path: Path) -> None:
    rules = dataclasses.replace(claimcheck.RULES, looks={10**24: 1.0})
    claims = pd.read_csv(io.StringIO(HEADER + "a,value,accuracy,ours,,mnist,97.2 %,,,5,\n"))
    (found,) = claimcheck.judge(claims, results(), rules).verdicts
    assert found.status == "inconclusive", found


def test_output_never_replaces_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims, found = tmp_path / "claims.csv", tmp_path / "results.csv"
    claims.write_text(HEADER + "a,value,accuracy,ours,,mnist,97.2 %,,,5,\n", encoding="utf-8")
    results().to_csv(found, index=False)
    before = claims.read_bytes(), found.read_bytes()
    for call in (
        ["judge", str(claims), str(found), "--html", str(claims)],
        ["judge", str(claims), str(found), "--html", str(found)],
        ["import", "csv", str(found), "-o", str(found)],
    ):
        assert main(call) == 1 and "is an input, which would be lost" in capsys.readouterr().err
    assert before == (claims.read_bytes(), found.read_bytes())


def test_verdicts_by_other_rules_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims, found, page = tmp_path / "claims.csv", tmp_path / "results.csv", tmp_path / "report.html"
    claims.write_text(HEADER + "a,value,accuracy,ours,,mnist,97.2 %,,,5,\n", encoding="utf-8")
    results().to_csv(found, index=False)
    rules = tmp_path / "mine.yaml"
    rules.write_text("{alpha_within: 0.49, margins: {loss_share: 3}}", encoding="utf-8")
    assert main(["judge", str(claims), str(found), "--rules", str(rules), "--html", str(page)]) == 0
    words = "rules of mine.yaml, which change margins, alpha_within"
    assert words in capsys.readouterr().out and words in page.read_text(encoding="utf-8")


def test_folds_share_training_data_and_the_verdict_says_how_much_that_matters() -> None:
    """Compared with a hand calculation: a quarter more of s² in the variance with five folds."""
    a, b = [0.97, 0.974, 0.969, 0.973, 0.972], [0.951, 0.949, 0.952, 0.955, 0.95]
    claims = pd.DataFrame([{"id": "a", "kind": "order", "metric": "accuracy", "arm": "x", "baseline": "y"}])
    results = pd.DataFrame({"arm": ["x"] * 5 + ["y"] * 5, "fold": [*range(5), *range(5)], "accuracy": a + b})
    (found,) = claimcheck.judge(claims, results).verdicts
    half = (1 + 5 / 4) ** 0.5 * (found.verdict.high - found.verdict.estimate)
    assert f"which the folds share; allowing for others: +{found.ours:.4f}, " in found.verdict.explanation
    assert found.verdict.explanation.endswith(f"interval +{found.ours - half:.4f} to +{found.ours + half:.4f}.")
    assert found.verdict == claimcheck.order(a, b, better="higher", folds=5).verdict
    assert "training data" not in claimcheck.order(a, b, better="higher", paired=True).verdict.explanation
    with pytest.raises(ValueError, match="folds is 1; expected the number of folds, 2 or more"):
        claimcheck.gap(a, b, better="higher", printed="2 %", folds=1)

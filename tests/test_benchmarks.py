"""`make bench`: every benchmark gives lines of one table, and a goal is met on its own side."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import INTRODUCTION, main, page
from benchmarks.timing import HEADINGS, Line, compare, pytorch_alone, table
from stages.ops.fast import attention, cpp, dac
from stages.ops.rbf import rbf_attention

BENCHMARKS = sorted((Path(__file__).resolve().parent.parent / "benchmarks").glob("bench_*.py"))


def line(value: float, *, at_most: bool = False) -> Line:
    return Line(what="a step", peer="plain: 9 ms", ours="3 ms", value=value, goal=2.0, at_most=at_most)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_measures_and_says_how_to_run_it(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert "measure" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert f"Run: python -m benchmarks {path.stem.removeprefix('bench_')}" in (ast.get_docstring(tree) or "")


def test_a_goal_is_met_on_its_own_side() -> None:
    assert [line(value).is_met for value in (1.9, 2.0, 2.1)] == [False, True, True]
    assert [line(value, at_most=True).is_met for value in (1.9, 2.0, 2.1)] == [True, True, False]


def test_the_table_has_a_row_a_line() -> None:
    rows = table([line(3.0), line(3.0, at_most=True)]).splitlines()
    assert rows[0] == f"| {' | '.join(HEADINGS)} |"
    assert rows[2] == "| a step | at least 2 × | plain: 9 ms | 3 ms | 3 × | yes |"
    assert rows[3] == "| a step | at most 2 × | plain: 9 ms | 3 ms | 3 × | no |"


def test_processor_time_leaves_waiting_out() -> None:
    def spin() -> None:
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass

    def spin_and_wait() -> None:
        spin()
        time.sleep(0.05)

    assert compare(spin, spin_and_wait, repeats=3).ratio < 2
    assert compare(spin, spin_and_wait, repeats=3, wall=True).peer_seconds > 0.05


@pytest.mark.skipif(cpp.load_library(attention.SOURCE) is None, reason="no C++ compiler here")
def test_a_plain_script_has_none_of_our_code() -> None:
    def mixed() -> torch.Tensor:
        return rbf_attention(*torch.ones(3, 2, 2, 16, 16, requires_grad=True), beta=0.125)

    ours = type(mixed().grad_fn)
    assert issubclass(ours, torch.autograd.function.BackwardCFunction), "an operator of ours"
    taps = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3), torch.ones(4, 3)
    assert dac.applies(*taps)
    with pytorch_alone():
        plain = mixed()
        assert not dac.applies(*taps)
    assert not isinstance(plain.grad_fn, torch.autograd.function.BackwardCFunction)
    assert type(mixed().grad_fn) is ours
    torch.testing.assert_close(plain, mixed())


def test_each_kind_of_machine_has_its_newest_table() -> None:
    first = page("", "A, 2 threads", "old\n\n| table |\n")
    both = page(first, "A, 2 threads, wide", "other\n\n| table |\n")
    assert page(both, "A, 2 threads", "new\n\n| table |\n") == (
        f"{INTRODUCTION}\n## A, 2 threads\n\nnew\n\n| table |\n\n## A, 2 threads, wide\n\nother\n\n| table |\n"
    )


def test_an_unknown_benchmark_is_named_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dak"]) == 2
    assert "no benchmark 'dak'; known: batches, cg_fac, dac" in capsys.readouterr().err

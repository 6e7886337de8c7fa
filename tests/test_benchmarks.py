"""`make bench`: every benchmark returns rows of one table, and goals are minimums or maximums."""

import ast
import dataclasses
import datetime
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import server
from benchmarks.__main__ import INTRODUCTION, main, page, rows_of, together
from benchmarks.timing import HEADINGS, Line, markdown, pytorch_alone, race, share_of_products
from stages.ops.fast import attention, cpp, dac
from stages.ops.rbf import rbf_attention
from tests.polling import wait_until

BENCHMARKS = sorted((Path(__file__).resolve().parent.parent / "benchmarks").glob("bench_*.py"))

SETTING = "float32, 1 thread"


def line(value: float, *, at_most: bool = False) -> Line:
    return Line(what="a step", peer="plain: 9 ms", ours="3 ms", value=value, goal=2.0, at_most=at_most, setting=SETTING)


SUSPENDED = """
import os, signal, sys
from benchmarks.server import free_port, server

port = free_port()
with server([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], port, "/") as pid:
    os.killpg(pid, signal.SIGSTOP)
    print(pid, flush=True)
    signal.pause()
"""


def test_suspended_server_ends_with_its_killed_benchmark() -> None:
    with subprocess.Popen([sys.executable, "-c", SUSPENDED], stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        benchmark.kill()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_has_measure_and_a_run_line(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert "measure" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert f"Run: python -m benchmarks {path.stem.removeprefix('bench_')}" in (ast.get_docstring(tree) or "")


def test_row_shows_goal_peer_and_verdict() -> None:
    rows = markdown([HEADINGS, line(3.0).cells(), line(3.0, at_most=True).cells()]).splitlines()
    assert rows[0] == f"| {' | '.join(HEADINGS)} |"
    assert rows[2] == "| a step | plain: 9 ms | 3 ms | 3× | ≥2 |"
    assert rows[3] == "| a step | plain: 9 ms | 3 ms | 3× | ≤2, missed |"
    assert dataclasses.replace(line(1.1), most=1.157).cells()[3] == "1.1× (limit 1.16)"
    assert dataclasses.replace(line(2.1), most=3).cells()[3] == "2.1×", "a goal that is met needs no limit"
    assert dataclasses.replace(line(3.0), setting="bfloat16, 1 thread").cells()[0] == "a step, bfloat16"


@pytest.mark.skipif(cpp.load_library(attention.SOURCE) is None, reason="no C++ compiler here")
def test_pytorch_alone_disables_our_operators() -> None:
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


def spin(milliseconds: float) -> Callable[[], None]:
    def run() -> None:
        until = time.process_time() + milliseconds / 1000
        while time.process_time() < until:
            pass

    return run


def test_fastest_peer_counts() -> None:
    result = race({"slow": spin(4), "fast": spin(2)}, {"weak": spin(9), "strong": spin(3)}, rounds=5)
    assert 1.2 < result.ratio < 2
    found = result.line("a step", 2.0, images=6)
    assert found.peer.startswith("strong: ") and found.verdict == "missed"
    assert result.span[0] <= result.ratio <= result.span[1] and found.span == result.span
    assert result.cost("a step", 1.0).verdict == "met"


def test_goal_is_a_minimum_or_a_maximum_and_a_peer_faster_in_some_rounds_is_even() -> None:
    assert [line(value).verdict for value in (0.9, 1.9, 2.0, 2.1)] == ["slower", "missed", "met", "met"]
    assert [line(value, at_most=True).verdict for value in (0.9, 2.0, 2.1)] == ["met", "met", "missed"]
    for span, verdict in (((0.96, 1.01), "even"), ((0.96, 0.99), "slower")):
        assert dataclasses.replace(line(0.98), span=span).verdict == verdict
    assert dataclasses.replace(line(1.5), span=(0.9, 1.6)).verdict == "missed"


def test_share_of_products_counts_time_in_library_kernels() -> None:
    matrix, maps = torch.randn(256, 256), torch.randn(16, 16, 32, 32, requires_grad=True)
    convolution = torch.nn.Conv2d(16, 16, 3, padding=1)
    assert share_of_products(lambda: matrix @ matrix) > 0.8
    assert share_of_products(lambda: convolution(maps).sum().backward()) > 0.5
    assert share_of_products(lambda: matrix.sin().exp()) == 0


def row(value: float, what: str = "a step") -> tuple[str, ...]:
    return dataclasses.replace(line(value), what=what).cells()


def test_each_processor_has_only_its_newest_table() -> None:
    both = page(page("", "A", "torch 2.14", [row(3.0)]), "A, AVX2", "torch 2.15", [row(4.0)])
    newest = page(both, "A", "torch 2.15", [row(5.0), row(1.5), row(0.9)])
    opening, first, second = newest.split("\n## ")
    today = datetime.date.today()
    assert opening == INTRODUCTION
    assert first == f"A\n\ntorch 2.15. Last run: {today}.\n\n{markdown([HEADINGS, row(0.9), row(1.5), row(5.0)])}"
    assert second == f"A, AVX2\n\ntorch 2.15. Last run: {today}.\n\n{markdown([HEADINGS, row(4.0)])}"


def test_unmeasured_rows_are_kept_if_versions_are_unchanged() -> None:
    before = page("", "A", "torch 2.15", [row(3.0, "one"), row(4.0, "two")])
    kept = rows_of(before, "A", "torch 2.15")
    assert together(kept, [row(5.0, "two"), row(6.0, "three")]) == [
        [*row(3.0, "one")],
        row(5.0, "two"),
        row(6.0, "three"),
    ]
    assert rows_of(before, "A", "torch 2.16") == rows_of(before, "B", "torch 2.15") == []


def test_unknown_benchmark_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dak"])
    assert "no benchmark 'dak'; known: cg_fac, dac" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('no port is free')", r"ended with 0; it wrote:\nno port is free"),
        (
            "print('some fault', flush=True); from http import server as s;"
            "s.SimpleHTTPRequestHandler.log_message = lambda *_: None; "
            "s.test(s.SimpleHTTPRequestHandler, port={port}, bind='127.0.0.1')",
            r"isn't ready: /nothing answers 404, .*it wrote:\nsome fault",
        ),
    ],
    ids=["ended", "isn't ready"],
)
def test_server_that_fails_to_start_has_its_output_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "READY_SECONDS", 2)
    port = server.free_port()
    with (
        pytest.raises(RuntimeError, match=f"(?s){reason}"),
        server.server([sys.executable, "-c", code.format(port=port)], port, "/nothing"),
    ):
        raise AssertionError("it was taken for ready")

"""`benchmarks.gpu_check`, rehearsed on the CPU: failures are listed at the end and don't stop other checks."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import gpu_check, gpu_operators, gpu_steps, gpu_tf32, planned
from benchmarks.attempt import Lines, attempt, guarded
from benchmarks.gpu_operators import OPERATORS
from benchmarks.planned import Planned
from benchmarks.timing import pytorch_alone
from stages.run import ModelSpec
from stages.training.tf32 import RoundedOperands, products_of
from tests.minimal_machine import hide_other_packages
from tests.preloaded import python
from tests.project import REPOSITORY, environment

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TINY = {
    "ViT": {"patch_size": 8, "dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16},
    "GPT2": {"vocabulary_size": 256, "width": 16, "depth": 1, "num_heads": 2},
}


def tiny(one: Planned, **changes: Any) -> Planned:
    """Replace the network with a small one."""
    name = one.spec.model.path.rpartition(":")[2]
    arguments = {**one.spec.model.arguments, **TINY[name], **changes}
    shape = (32,) if one.kind == "text" else one.shape
    if one.kind == "text":
        arguments["context"] = shape[0]
    spec = dataclasses.replace(one.spec, model=ModelSpec(path=one.spec.model.path, arguments=arguments))
    return dataclasses.replace(one, shape=shape, spec=spec)


def chosen() -> list[Planned]:
    """Adam and CG-FAC on images, a text, and between them a network that can't be built."""
    vits = [one for one in planned.read() if one.spec.model.path == "stages.papers.brownian.vit:ViT"]
    adam, cg_fac = (
        next(one for one in vits if one.spec.protocol.optimizer.name == name) for name in ("adam", "cg_fac")
    )
    text = next(one for one in planned.read() if one.name == "nmn-gpt.gpt2")
    return [tiny(adam), tiny(cg_fac, patch_size=7), tiny(cg_fac), tiny(text)]


def test_planned_steps_match_the_params() -> None:
    assert planned.PATH.read_text(encoding="utf-8") == planned.dump(planned.from_params()), (
        "python -m benchmarks.planned"
    )


def test_every_network_has_a_planned_step_in_each_precision() -> None:
    kinds = [one.kind_of_run for one in planned.read()]
    assert len(kinds) == len(set(kinds))
    assert ("stages.papers.nmn.gpt:GPT2", "adamw", "bfloat16") in kinds
    assert {
        ("stages.papers.brownian.vit:ViT", "cg_fac", precision) for precision in ("float32", "tf32", "bfloat16")
    } <= {*kinds}
    assert {kind[2] for kind in kinds if kind[0].endswith(":DACResNetV1")} == {"float32", "tf32", "bfloat16"}


def test_rehearsal_continues_after_a_failure_and_reports_it_last(tmp_path: Path) -> None:
    """Runs on a simulated machine with only torch, numpy and safetensors."""
    steps, out = tmp_path / "steps.json", tmp_path / "lines.jsonl"
    steps.write_text(planned.dump(iter(chosen())), encoding="utf-8")
    parts = ("environment", "planned", "operators")
    options = ["--device", "cpu", "--steps", str(steps), "--out", str(out), "--parts", *parts]
    done = python("-m", "benchmarks.gpu_check", *options, cwd=REPOSITORY, env=environment(), before=hide_other_packages)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    taken = [line for line in lines if line.get("check") == "takes a step"]
    assert [line["ok"] for line in taken] == [True, False, True, True]
    assert "patch" in taken[1]["failed"]
    assert [line["cpu"] == line["ours"] for line in taken if "cpu" in line] == [True, True]
    assert sum("equals float64" in line.get("check", "") for line in lines) == 3 * len(OPERATORS), "later parts run"
    said = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert said[-2].endswith(f"{len(lines)} lines, 1 FAILED:") and json.loads(said[-1]) == taken[1]


def test_crashing_part_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> Lines:
        yield {"check": "first", "ok": True}
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(gpu_steps, "every_step", broken)
    monkeypatch.setattr(gpu_check, "ARMS", ())
    options = ["--device", "cpu", "--out", str(tmp_path / "lines.jsonl"), "--parts", "planned", "operators"]
    assert gpu_check.main(options) == 1
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[1] == {"check": "planned steps: goes through", "failed": "RuntimeError: no kernel image", "ok": False}
    assert len(lines) == 2 + 3 * len(OPERATORS) and all(line["ok"] for line in lines[2:])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == lines[1]


def test_every_part_is_attempted_with_required_checks_first() -> None:
    names = [name for name, _ in gpu_check.parts(CPU, gpu_check.REHEARSAL, [])]
    assert names[:6] == ["environment", "planned steps", "operators", "tf32", "losses", "stacks"]

    def fails() -> dict[str, Any]:
        raise ValueError("no")

    assert attempt({"way": "compiled"}, fails)["ok"] and not attempt({"way": "eager"}, fails)["ok"]
    assert not attempt({"check": "x"}, fails)["ok"] and not attempt({"way": "compiled", "ok": False}, fails)["ok"]
    assert list(guarded("x", lambda: iter([{"value": 1}]))) == [{"value": 1}]


def test_loss_that_differs_from_the_cpus_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"loss": 1.0}, {"loss": 1.1}])
    monkeypatch.setattr(gpu_steps, "measure", lambda model, task: next(answers))
    (line, _) = gpu_steps.every_step(CPU, chosen()[:1], batch=2)
    assert (line["cpu"], line["ours"], line["ok"]) == (1.0, 1.1, False)


class Cut(RoundedOperands):
    """A device that truncates digits."""

    def round(self, x: Tensor) -> Tensor:
        return (x.view(torch.int32) & -(2**13)).view(torch.float32)


@pytest.mark.parametrize(
    ("block", "rounding", "ok"),
    [
        (RoundedOperands, "to nearest, ties to even", True),
        (Cut, "cut", True),
        (contextlib.nullcontext, "unknown", False),
    ],
)
def test_device_tf32_is_compared_with_the_emulation(
    monkeypatch: pytest.MonkeyPatch, block: Any, rounding: str, ok: bool
) -> None:
    device = torch.device("cpu:0")  # not the emulating device
    monkeypatch.setattr(
        gpu_tf32, "products_of", lambda protocol, place: block if place == device else products_of(protocol, place)
    )
    first, *others = gpu_tf32.products(device)
    assert (first["rounding"], first["ok"], {line["ok"] for line in others}) == (rounding, ok, {ok})
    if block is Cut:
        assert all(0 < max(line["differences"]) < line["allowed"] for line in others)


def test_operators_agree_without_our_cpp_which_gpus_lack() -> None:
    with pytorch_alone():
        lines = [*gpu_operators.correctness(CPU)]
    assert [line for line in lines if not line["ok"]] == []
    rounded = [max(line["errors"]) for line in lines if line["precision"] == "tf32"]
    assert len(rounded) == len(OPERATORS) and min(rounded) > 1e-5, "every operator multiplies in TF32 if allowed"


def test_operator_that_differs_from_its_equation_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, *rest = OPERATORS["MBA"]
    monkeypatch.setattr(gpu_operators, "OPERATORS", {"MBA": (lambda *tensors: 1.001 * ours(*tensors), *rest)})
    assert [line["ok"] for line in gpu_operators.correctness(CPU)] == [False, True, True]

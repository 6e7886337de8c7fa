"""CUDA has a kernel for every operator that a planned training calls, and for its types of numbers.

Each network takes a whole step with each optimiser in each precision that is planned, at its printed size, on fake
tensors of a CPU: these differentiate, and no number is computed.  What CUDA takes is what PyTorch's own tests ask of
it, which no GPU is needed to know.  The operators that only a GPU's step calls are in `test_devices`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from stages.papers import build_model
from stages.params.budget import PlannedRun, plan_runs
from stages.params.experiment import DatasetSource, load_params
from stages.run import Protocol
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task, fit
from stages.training.tables import Regression, TableRows
from stages.training.tokens import NextToken, TokenWindows
from tests.dispatched import Call, Dispatched, lacking
from tests.project import REPOSITORY

PROFILES = ("paper", "quick-bfloat16")
ROWS = 2


def runs() -> Iterator[tuple[PlannedRun, DatasetSource]]:
    """One of each network, optimiser and precision that runs on a GPU."""
    params, seen = load_params(REPOSITORY), set()
    for experiment in params.experiments.values():
        source = params.datasets[experiment.dataset]
        for profile in PROFILES:
            for run in plan_runs(experiment, params.profiles[profile], source, every_role=True):
                kind = run.model.path, run.protocol.optimizer.name, run.protocol.precision
                if kind not in seen:
                    seen.add(kind)
                    yield run, source


def name_of(run: PlannedRun) -> str:
    paper, network = run.model.path.split(".")[2], run.model.path.rpartition(":")[2]
    return f"{paper}-{network}-{run.protocol.optimizer.name}-{run.protocol.precision}"


def blank_task(source: DatasetSource, protocol: Protocol) -> Task:
    """Rows of the types that are packed, without content."""
    if source.kind == "table":
        return Regression(TableRows(torch.zeros(ROWS, *source.shape), torch.zeros(ROWS)))
    if source.kind == "text":
        tokens = torch.zeros(ROWS * source.shape[0] + 1, dtype=torch.uint16)
        return NextToken(TokenWindows(tokens, source.shape[0]), protocol)
    images = torch.zeros(ROWS, *source.shape, dtype=torch.uint8)
    return ImageClassification(LabelledImages(images, torch.zeros(ROWS, dtype=torch.int64)), protocol)


def called_in_a_step(run: PlannedRun, source: DatasetSource, monkeypatch: pytest.MonkeyPatch) -> set[Call]:
    """Operators of one step and of measuring after it."""
    optimizer = run.protocol.optimizer
    monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [0.0] * len(tensor))
    # "Not done yet" for conjugate gradients, "finite" for K-FAC.
    monkeypatch.setattr(FakeTensor, "__bool__", lambda tensor: optimizer.name == "kfac")
    protocol = dataclasses.replace(run.protocol, batch_size=ROWS, steps_per_epoch=1, epochs=1, early_stop=None)
    with FakeTensorMode():
        model = build_model(run.model)
        task = blank_task(source, protocol)
        with Dispatched() as noted:
            fit(model, task, protocol, run.replicate)
    return noted.calls


@pytest.mark.parametrize(("run", "source"), [pytest.param(*both, id=name_of(both[0])) for both in runs()])
def test_cuda_has_every_operator_of_a_step(
    run: PlannedRun, source: DatasetSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = called_in_a_step(run, source, monkeypatch)
    names = {call.operator.name() for call in calls}
    assert any("backward" in name for name in names) and any(name.startswith("aten::add") for name in names)
    if run.protocol.precision == "bfloat16":
        assert any("bfloat16" in call.dtypes for call in calls)
    assert lacking(calls) == []


def test_operators_and_types_that_cuda_lacks_are_found() -> None:
    unsigned = torch.zeros(4, dtype=torch.uint16)
    with Dispatched() as noted:
        unsigned[torch.tensor([1])]
        unsigned.long()
        whole = torch.ones(2, 2, dtype=torch.int64)
        whole @ whole
        query: Tensor = torch.ones(1, 1, 2, 8)
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    found = lacking(noted.calls)
    assert found[:3] == [
        "aten::_to_copy: CUDA's kernel takes no uint16",
        "aten::index.Tensor: CUDA's kernel takes no uint16",
        "aten::mm: CUDA's kernel takes no int64",
    ]
    assert found[3:] == [], "attention has another kernel there"


@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch is built without CUDA")
def test_an_operator_without_a_kernel_is_found() -> None:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    other = torch.ops.aten.mkldnn_max_pool2d.default
    assert lacking({Call(operator, ("float32",))}) == []
    assert lacking({Call(other, ("float32",))}) == ["aten::mkldnn_max_pool2d: no kernel for CUDA"]

"""CUDA has a kernel for every operator that a planned training calls, and for its types of numbers.

Each network takes a whole step with each optimiser in each precision that is planned, at its printed size, on fake
tensors of a CPU, and is measured: these differentiate, and no number is computed.  What CUDA takes is what PyTorch's
own tests ask of it, which no GPU is needed to know.  The operators that only a GPU's step calls are in `test_devices`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from benchmarks import planned
from benchmarks.planned import Planned
from stages.papers import build_model
from stages.training.loop import fit, measure
from tests.dispatched import Call, Dispatched, lacking

ROWS = 2


def name_of(one: Planned) -> str:
    paper, network = one.spec.model.path.split(".")[2], one.spec.model.path.rpartition(":")[2]
    return f"{paper}-{network}-{one.spec.protocol.optimizer.name}-{one.spec.protocol.precision}"


def called_in_a_step(one: Planned, monkeypatch: pytest.MonkeyPatch) -> set[Call]:
    """The step's operators."""
    spec = one.one_step(ROWS)
    optimizer = spec.protocol.optimizer
    monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [0.0] * len(tensor))
    # "Not done yet" for conjugate gradients, "finite" for K-FAC.
    monkeypatch.setattr(FakeTensor, "__bool__", lambda tensor: optimizer.name == "kfac")
    with FakeTensorMode():
        model = build_model(spec.model)
        task = one.task(spec, torch.device("cpu"))
        with Dispatched() as noted:
            fit(model, task, spec.protocol, spec.replicate)
            measure(model, task)
    return noted.calls


def in_half_types() -> list[Planned]:
    """Every network with its optimiser; float32, which CUDA has wherever it has bfloat16, for one of each paper."""
    found = [one for one in planned.read() if one.spec.protocol.precision == "bfloat16"]
    full = {
        one.spec.model.path.split(".")[2]: one for one in planned.read() if one.spec.protocol.precision == "float32"
    }
    return [*found, *full.values()]


@pytest.mark.long
@pytest.mark.parametrize("one", [pytest.param(one, id=name_of(one)) for one in in_half_types()])
def test_cuda_has_every_operator_of_a_step_and_of_measuring(one: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = called_in_a_step(one, monkeypatch)
    names = {call.operator.name() for call in calls}
    assert any("backward" in name for name in names) and any(name.startswith("aten::add") for name in names)
    if one.spec.protocol.precision == "bfloat16":
        # A Yat layer computes in float32 in any precision, and YatPrototypes is nothing else.
        of_yat_alone = one.spec.model.path.endswith(":YatPrototypes")
        assert any("bfloat16" in call.dtypes for call in calls) is not of_yat_alone
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

"""Without a GPU: every step stays on the device of its data, and CUDA has a kernel for each operator."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from benchmarks import planned
from benchmarks.planned import Planned
from stages.papers import build_model
from stages.papers.dac.mlp import DACMLP, MLP
from stages.params.experiment import DatasetSource, PlannedRun, load_params, plan_runs
from stages.run import ModelSpec, OptimizerSpec, Protocol, Replicate, SplitSpec
from stages.training import loop
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task, fit, measure
from stages.training.protocol import generator_for
from stages.training.stacked import StackState, fit_stack, stack_class
from stages.training.tables import Regression, TableRows
from stages.training.tokens import NextToken, TokenWindows
from tests.dispatched import Call, Dispatched, lacking
from tests.project import REPOSITORY

pytestmark = pytest.mark.slow

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
PYTORCHS_OWN = ("sgd", "adam", "adamw")
ROWS, BATCH = 16, 4

# PyTorch lacks a fake for this operator, which updates its operands in place.
OPERATORS = torch.library.Library("aten", "IMPL", "Meta")
OPERATORS.impl("_fused_sgd_", lambda *operands, **settings: None)


def runs() -> Iterator[tuple[PlannedRun, DatasetSource]]:
    """One run of each network and optimiser."""
    params = load_params(REPOSITORY)
    seen = set()
    for experiment in params.experiments.values():
        source = params.datasets[experiment.dataset]
        for run in plan_runs(experiment, params.profiles["paper"], source, every_role=True):
            kind = run.spec.model.path, run.spec.protocol.optimizer.name
            if kind not in seen:
                seen.add(kind)
                yield run, source


def on_gpu(model: nn.Module) -> nn.Module:
    """Move parameters and buffers to fake GPU tensors; other tensors stay on the CPU."""
    moved: dict[int, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        if id(tensor) not in moved:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=GPU)
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return moved[id(tensor)]

    for module in model.modules():
        for own in (module._parameters, module._buffers):
            own |= {name: move(tensor) for name, tensor in own.items() if tensor is not None}
    return model


def task_on_gpu(source: DatasetSource, protocol: Protocol) -> Task:
    if source.kind == "table":
        return Regression(TableRows(torch.zeros(ROWS, *source.shape, device=GPU), torch.zeros(ROWS, device=GPU)))
    if source.kind == "text":
        tokens = torch.zeros(ROWS * source.shape[0] + 1, dtype=torch.uint16, device=GPU)
        return NextToken(TokenWindows(tokens, source.shape[0]), protocol)
    images = torch.zeros(ROWS, *source.shape, dtype=torch.uint8, device=GPU)
    labels = torch.zeros(ROWS, dtype=torch.int64, device=GPU)
    return ImageClassification(LabelledImages(images, labels), protocol)


@pytest.fixture
def drawn_on(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.device]:
    """Record the device requested for each purpose's generator, and use CPU generators."""
    devices: dict[str, torch.device] = {}

    def generator(replicate: Replicate, purpose: str, *rest: int, device: torch.device = CPU) -> torch.Generator:
        devices[purpose] = device
        return generator_for(replicate, purpose, *rest)

    monkeypatch.setattr(loop, "generator_for", generator)
    return devices


@pytest.fixture
def without_numbers(monkeypatch: pytest.MonkeyPatch, drawn_on: dict[str, torch.device]) -> list[nn.Module]:
    """Fake numbers and gradients; append the module to be trained to the returned list."""
    trained: list[nn.Module] = []

    def fill_gradients(loss: Tensor) -> None:
        assert loss.device == GPU
        for parameter in trained[-1].parameters():
            parameter.grad = torch.empty_like(parameter)

    monkeypatch.setattr(FakeTensor, "tolist", numbers)
    monkeypatch.setattr(FakeTensor, "__float__", lambda tensor: 0.0)
    monkeypatch.setattr(FakeTensor, "backward", fill_gradients, raising=False)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.zeros(0))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)  # restored afterwards
    return trained


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> Dispatched:
    """Record the operators called in training steps."""
    noted, step = Dispatched(), loop._Training._step

    def watched(*arguments: Any) -> Tensor:
        with noted:
            return step(*arguments)

    monkeypatch.setattr(loop._Training, "_step", watched)
    return noted


def numbers(tensor: Tensor) -> list[float]:
    """With several networks, the first two have diverged."""
    return [math.nan if place < 2 < len(tensor) else 0.0 for place in range(len(tensor))]


@pytest.mark.parametrize(
    ("run", "source"),
    [
        pytest.param(*both, id=f"{both[0].spec.model.path.rpartition(':')[2]}-{both[0].spec.protocol.optimizer.name}")
        for both in runs()
    ],
)
def test_step_keeps_all_tensors_on_the_device_without_copies(
    run: PlannedRun,
    source: DatasetSource,
    without_numbers: list[nn.Module],
    in_steps: Dispatched,
    drawn_on: dict[str, torch.device],
) -> None:
    optimizer = run.spec.protocol.optimizer
    if optimizer.name not in PYTORCHS_OWN:  # runs its own backward pass
        optimizer = dataclasses.replace(optimizer, name="adam")
    protocol = dataclasses.replace(
        run.spec.protocol,
        optimizer=optimizer,
        precision="float32",
        batch_size=BATCH,
        steps_per_epoch=1,
        epochs=1,
        early_stop=None,
    )
    with FakeTensorMode():
        model = build_model(run.spec.model)
        without_numbers.append(model)
        task = task_on_gpu(source, protocol)

        def observe(trained: nn.Module) -> dict[str, float]:
            """Measure without inference mode, in which `torch.tensor` would ask for the real device."""
            trained.eval()
            for inputs, targets in task.plain_batches(torch.arange(BATCH, device=GPU), BATCH):
                assert task.loss(trained(inputs), targets).device == GPU
            return {"observed": 0.0}

        outcome = fit(on_gpu(model), task, protocol, run.spec.replicate, observe=observe)
    (row,) = outcome.history
    assert "observed" in row
    assert {tensor.device for tensor in model.state_dict().values()} == {GPU}
    assert (in_steps.copies, lacking(in_steps.calls)) == ([], [])
    assert drawn_on == {"order": CPU, "augment": GPU}
    assert f"aten::_fused_{optimizer.name}_" in {call.operator.name() for call in in_steps.calls}


def test_copies_to_the_device_and_unsupported_operators_are_found(in_steps: Dispatched) -> None:
    with FakeTensorMode():
        ids = torch.zeros(8, dtype=torch.uint16, device=GPU)
        with in_steps:
            ids[torch.zeros(2, dtype=torch.int64, device=GPU)]
            torch.ones(3).to(GPU)
            torch.tensor([1.0], device=GPU)
            torch.full((), 2.0, device=GPU) * torch.ones(2, device=GPU)
    assert in_steps.copies == ["aten::_to_copy"] * 2
    assert lacking(in_steps.calls) == ["aten::index.Tensor: CUDA's kernel takes no uint16"]


@pytest.mark.parametrize("network", [MLP, DACMLP])
def test_stack_trains_measures_and_shrinks_on_the_device(
    network: type[MLP | DACMLP], without_numbers: list[nn.Module]
) -> None:
    """Train three networks for two epochs with a smaller last batch; one network survives the first."""
    states: list[StackState] = []
    plain_class = stack_class(ModelSpec(path=f"stages.papers.dac.mlp:{network.__name__}", arguments={}))

    def make_stack(networks: Sequence[nn.Module]) -> nn.Module:
        stack = plain_class(networks)
        assert isinstance(stack, nn.Module)
        without_numbers.append(stack)
        return stack

    protocol = Protocol(
        optimizer=OptimizerSpec(name="adam", lr=0.01, weight_decay=0.01, decay="kernels"),
        batch_size=BATCH,
        epochs=2,
        split=SplitSpec(kind="fraction", fraction=0.1),
    )
    networks = [network(in_features=3, depth=2, width=5) for _ in range(3)]
    with FakeTensorMode():
        task = Regression(TableRows(torch.zeros(ROWS, 3, device=GPU), torch.zeros(ROWS, device=GPU)))
        outcomes = fit_stack(
            [on_gpu(one) for one in networks],
            make_stack,
            task,
            protocol,
            [Replicate(seed=seed) for seed in range(3)],
            is_compiled=False,
            test=task,
            save=states.append,
        )
    assert [len(outcome.history) for outcome, _ in outcomes] == [0, 0, 2]
    assert [*outcomes[2][0].history[-1]][-3:] == ["train_loss", "val_loss", "test_loss"]
    assert [len(stack.state_dict()["head/weight"]) for stack in without_numbers] == [3, 1]
    (state,) = states
    assert state.stack is not None and state.optimizer is not None, "saved after the first epoch"
    kept = [*state.stack.values(), *(moment["exp_avg"] for moment in state.optimizer["state"].values())]
    assert {tensor.device for tensor in kept} == {GPU}


# Error messages of torch 2.15 and 2.11.
REFUSED = r"at least two devices|found two different devices|convert all Tensors to FakeTensors"


class Forgetful(nn.Module):
    """Keeps one tensor on the CPU, or creates one there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.scale = torch.ones(3)
        self.is_made_anew = False

    def forward(self, features: Tensor) -> Tensor:
        scaled: Tensor = self.layer(features * (torch.ones(3) if self.is_made_anew else self.scale))
        return scaled


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_tensor_left_on_the_cpu_is_found(is_made_anew: bool, without_numbers: list[nn.Module]) -> None:
    protocol = Protocol(optimizer=OptimizerSpec(name="sgd", lr=0.1), batch_size=BATCH, epochs=1)
    model = Forgetful()
    model.is_made_anew = is_made_anew
    without_numbers.append(model)
    with FakeTensorMode():
        task = Regression(TableRows(torch.zeros(ROWS, 3, device=GPU), torch.zeros(ROWS, device=GPU)))
        on_gpu(model)
        with pytest.raises(Exception, match=REFUSED):
            fit(model, task, protocol, Replicate(seed=0))


ROWS_KERNELS = 2


def name_of(one: Planned) -> str:
    paper, network = one.spec.model.path.split(".")[2], one.spec.model.path.rpartition(":")[2]
    return f"{paper}-{network}-{one.spec.protocol.optimizer.name}-{one.spec.protocol.precision}"


def called_in_a_step(one: Planned, monkeypatch: pytest.MonkeyPatch) -> set[Call]:
    """Return the operators of one step and one measurement."""
    spec = one.one_step(ROWS_KERNELS)
    optimizer = spec.protocol.optimizer
    monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [0.0] * len(tensor))
    # "not done" for conjugate gradients, "finite" for K-FAC
    monkeypatch.setattr(FakeTensor, "__bool__", lambda tensor: optimizer.name == "kfac")
    with FakeTensorMode():
        model = build_model(spec.model)
        task = one.task(spec, torch.device("cpu"))
        with Dispatched() as noted:
            fit(model, task, spec.protocol, spec.replicate)
            measure(model, task)
    return noted.calls


def in_half_types() -> list[Planned]:
    """Every network with its optimiser in bfloat16, and one float32 run per paper (CUDA supports both)."""
    found = [one for one in planned.read() if one.spec.protocol.precision == "bfloat16"]
    full = {
        one.spec.model.path.split(".")[2]: one for one in planned.read() if one.spec.protocol.precision == "float32"
    }
    return [*found, *full.values()]


@pytest.mark.parametrize("one", [pytest.param(one, id=name_of(one)) for one in in_half_types()])
def test_cuda_has_every_operator_of_a_step_and_of_a_measurement(one: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = called_in_a_step(one, monkeypatch)
    names = {call.operator.name() for call in calls}
    assert any("backward" in name for name in names) and any(name.startswith("aten::add") for name in names)
    if one.spec.protocol.precision == "bfloat16":
        # A Yat layer always computes in float32, and YatPrototypes has no other layer.
        of_yat_alone = one.spec.model.path.endswith(":YatPrototypes")
        assert any("bfloat16" in call.dtypes for call in calls) is not of_yat_alone
    assert lacking(calls) == []


@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch is built without CUDA")
def test_operator_without_a_kernel_is_found() -> None:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    other = torch.ops.aten.mkldnn_max_pool2d.default
    assert lacking({Call(operator, ("float32",))}) == []
    assert lacking({Call(other, ("float32",))}) == ["aten::mkldnn_max_pool2d: no kernel for CUDA"]

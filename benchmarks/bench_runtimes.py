"""Goal: none of torch.compile, AOTInductor and ONNX Runtime answers one and a half times as fast as plain PyTorch on
every network, else the service should take it (docs/decisions.md#0050).

Four ways to run a network answer the same images in turn, one and eight at a time, each with a free batch size and on
one thread, as the service's passes on a CPU have.  Networks are what three of the papers propose, with fresh weights,
as time doesn't depend on them.  What a runtime can't run, or answers differently, it doesn't gain on.  ONNX Runtime
takes part where it is installed (`pip install onnxruntime onnxscript`), as it is no dependency of ours; the other two
need a C++ compiler.  Run: python -m benchmarks runtimes
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.timing import Line, milliseconds, setting
from stages.papers import build_model
from stages.params.budget import plan_runs
from stages.params.experiment import load_params

GOAL, BATCHES, REPEATS = 1.5, (1, 8), {1: 15, 8: 7}
TOLERANCE = 1e-5
MODELS = {
    "ninformer-cifar100": ("ninformer",),  # both compilers take minutes for each; decisions 0014 and 0050 have more
    "nmn-resnet-cifar10": ("aether-resnet18",),
    "dac-resnet-cifar10": ("dac-resnet20-v1",),
}
Runtime = Callable[[Tensor], Tensor]


class Answering(nn.Module):
    """A network and the function that turns its logits into probabilities."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images).float().softmax(dim=1)


def networks() -> dict[str, tuple[Answering, tuple[int, ...]]]:
    """By arm: a network in evaluation mode, and the shape of its images."""
    params = load_params()
    found = {}
    for name, arms in MODELS.items():
        experiment, source = params.experiments[name], params.datasets[params.experiments[name].dataset]
        specs = {run.arm: run.model for run in plan_runs(experiment, params.profiles["paper"], source)}
        for arm in arms:
            torch.manual_seed(0)
            found[f"{name}.{arm}"] = Answering(build_model(specs[arm])).eval(), source.shape
    return found


def compiled(network: Answering, _example: Tensor) -> Runtime:
    torch.compiler.reset()
    return torch.compile(network, dynamic=True)


def exported(network: Answering, example: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=1024)
    with torch.no_grad():
        return torch.export.export(network, (example,), dynamic_shapes=({0: batch},))


def ahead_of_time(network: Answering, example: Tensor) -> Runtime:
    with tempfile.TemporaryDirectory() as folder:
        package = torch._inductor.aoti_compile_and_package(
            exported(network, example), package_path=f"{folder}/network.pt2"
        )
        return torch._inductor.aoti_load_package(package)


def onnx_runtime(network: Answering, example: Tensor) -> Runtime:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # spinning counts as processor time
    with tempfile.TemporaryDirectory() as folder:
        program = torch.onnx.export(exported(network, example), dynamo=True, verbose=False, input_names=["images"])
        assert program is not None, "dynamo=True gives a program"
        program.save(Path(folder) / "network.onnx")
        session = onnxruntime.InferenceSession(Path(folder) / "network.onnx", options, ["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


OTHERS = {"torch.compile": compiled, "AOTInductor": ahead_of_time, "ONNX Runtime": onnx_runtime}


def ready(name: str, network: Answering, images: Mapping[int, Tensor]) -> Runtime | None:
    """This runtime after its first answers, or None if it can't run the network, or answers differently."""
    before = time.perf_counter()
    try:
        runtime = OTHERS[name](network, images[max(BATCHES)][:2])
        with torch.inference_mode():
            difference = max(float((runtime(batch) - network(batch)).abs().max()) for batch in images.values())
    except Exception as error:  # noqa: BLE001  (an exporter raises almost anything at what it doesn't know)
        print(f"    {name}: can't take it: {type(error).__name__}: {(str(error).strip() or '?').splitlines()[0][:120]}")
        return None
    took = time.perf_counter() - before
    print(f"    {name}: ready after {took:.1f} s by the clock; probabilities differ by {difference:.1e}")
    return runtime if difference <= TOLERANCE else None


def medians(runtimes: Mapping[str, Runtime], images: Tensor, repeats: int) -> dict[str, float]:
    """Median processor seconds of a pass: each in turn, after one uncounted round."""
    seconds: dict[str, list[float]] = {name: [] for name in runtimes}
    for _ in range(repeats + 1):
        for name, runtime in runtimes.items():
            before = time.process_time()
            runtime(images)
            seconds[name].append(time.process_time() - before)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def measure_network(
    name: str, network: Answering, shape: tuple[int, ...], others: list[str]
) -> dict[int, dict[str, float]]:
    """By batch size: how many times faster than eager each runtime is that can run the network."""
    print(f"  {name}")
    images = {size: torch.randn(size, *shape, generator=torch.Generator().manual_seed(0)) for size in BATCHES}
    runtimes: dict[str, Runtime] = {"eager": network}
    runtimes |= {other: runtime for other in others if (runtime := ready(other, network, images)) is not None}
    found = {}
    for size in BATCHES:
        with torch.inference_mode():
            taken = medians(runtimes, images[size], REPEATS[size])
        found[size] = {other: taken["eager"] / taken[other] for other in taken if other != "eager"}
        shown = (f"{other} {milliseconds(seconds)}" for other, seconds in taken.items())
        print(f"    batches of {size:2}: {', '.join(shown)}")
    return found


def measure() -> list[Line]:
    others = list(OTHERS)
    if any(importlib.util.find_spec(package) is None for package in ("onnxruntime", "onnxscript")):
        print("  ONNX Runtime is not installed: not compared")
        others.remove("ONNX Runtime")
    ratios = {name: measure_network(name, *network, others) for name, network in networks().items()}
    lines = []
    for size in BATCHES:
        # a network that a runtime can't run stays eager, so it gains nothing there
        least = {other: min(found[size].get(other, 1.0) for found in ratios.values()) for other in others}
        best = max(least, key=lambda other: least[other])
        lines.append(
            Line(
                what=f"other runtimes, batches of {size}, the least gain of {len(ratios)} networks",
                peer=", ".join(f"{other} {ratio:.2f} ×" for other, ratio in least.items()),
                ours="eager: 1 ×",
                value=least[best],
                goal=GOAL,
                at_most=True,
                setting=setting("float32"),
            )
        )
    return lines

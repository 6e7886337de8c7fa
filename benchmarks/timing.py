"""Time all sides of a comparison in turn (A B C A B C …), with medians, ratios round by round, and the table's row.

A side's time is the CPU time of the process over all threads, which other work on the machine hardly affects.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from stages.device import keep_freed_memory
from stages.ops.fast import attention, dac
from stages.training.process import describe_environment

PLAYED = os.environ.get("ATEN_CPU_CAPABILITY", "")
LESSER = ("avx2", "default")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of the table: `value` must be at least `goal`, or at most if `at_most`."""

    what: str
    peer: str
    ours: str
    value: float
    goal: float
    at_most: bool = False
    unit: str = "×"
    setting: str = ""
    """Type and threads of both sides."""
    most: float | None = None
    """Limit of the value, set by work that no side can avoid."""
    span: tuple[float, float] | None = None
    """The lowest and the highest value of a round."""

    @property
    def is_met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    @property
    def verdict(self) -> str:
        """Result of the comparison: a peer that we meant to beat may win most rounds (even) or all (slower)."""
        if self.is_met:
            return "met"
        if self.at_most or not self.value < 1 <= self.goal:
            return "missed"
        return "even" if self.span is not None and self.span[1] > 1 else "slower"

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        setting = self.setting.removesuffix(", 1 thread")
        what = self.what if setting in ("", "float32") else f"{self.what}, {setting}"
        limit = f" (limit {self.most:.3g})" if self.most is not None and not self.is_met else ""
        goal = f"{'≤' if self.at_most else '≥'}{self.goal:g}{f', {self.verdict}' if not self.is_met else ''}"
        return what, self.peer, self.ours, f"{self.value:.3g}{self.unit}{limit}", goal


HEADINGS = ("benchmark", "strongest peer", "ours", "ratio", "goal")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table; the first has the headings."""
    headings, *others = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, ("---",) * len(headings), *others))


Step = Callable[[], object]


@dataclass(frozen=True)
class Race:
    """Median seconds of our variants and of each peer.

    `ratio` is the fastest peer divided by our fastest variant, as the median over rounds, and `span` its lowest and
    highest value. `strongest` is the fastest peer's step.
    """

    ours: Mapping[str, float]
    peers: Mapping[str, float]
    ratio: float
    span: tuple[float, float]
    strongest: Step

    def line(
        self, what: str, goal: float, *, dtype: str = "float32", images: int = 0, same_products: bool = False
    ) -> Line:
        """Compare with the strongest peer, whose ratio must reach `goal`; with `images`, print images per second.

        With `same_products`, both sides need the same products, which limits the ratio.
        """
        return Line(
            what=what,
            peer=f"{_fastest(self.peers)}: {_speed(self.peers, images)}",
            ours=_speed(self.ours, images),
            value=self.ratio,
            goal=goal,
            setting=setting(dtype),
            span=self.span,
            most=1 / share_of_products(self.strongest) if same_products else None,
        )

    def cost(self, what: str, goal: float) -> Line:
        """Express our time as a multiple of the strongest peer's, which computes something else; it may be `goal`."""
        return Line(
            what=what,
            peer=f"{_fastest(self.peers)}: {_speed(self.peers)}",
            ours=_speed(self.ours),
            value=1 / self.ratio,
            goal=goal,
            at_most=True,
            setting=setting("float32"),
        )


def race(ours: Mapping[str, Step], peers: Mapping[str, Step], *, rounds: int) -> Race:
    """Time all sides in turn, after two uncounted calls of each for compiling."""
    steps = {(side, name): step for side, named in enumerate((ours, peers)) for name, step in named.items()}
    for step in (*steps.values(), *steps.values()):
        step()
    taken: dict[tuple[int, str], list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            began = time.process_time()
            step()
            taken[key].append(time.process_time() - began)
    medians = [
        {name: statistics.median(taken[side, name]) for name in named} for side, named in enumerate((ours, peers))
    ]
    mine, theirs = (taken[side, _fastest(named)] for side, named in enumerate(medians))
    ratios = [peer / own for own, peer in zip(mine, theirs, strict=True)]
    span = min(ratios), max(ratios)
    return Race(*medians, statistics.median(ratios), span, peers[_fastest(medians[1])])


_PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "mkldnn::",
)


def share_of_products(step: Step) -> float:
    """Return the share of a step's CPU time in matrix products and convolutions of PyTorch's libraries."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    seconds = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    products = sum(taken for name, taken in seconds.items() if name.startswith(_PRODUCTS))
    return products / sum(seconds.values())


def _fastest(seconds: Mapping[str, float]) -> str:
    return min(seconds, key=lambda name: seconds[name])


def _speed(seconds: Mapping[str, float], images: int = 0) -> str:
    """Return the time of the fastest, or its images per second."""
    best = min(seconds.values())
    return f"{images / best:,.0f} images/s" if images else milliseconds(best)


def setting(dtype: str) -> str:
    threads = torch.get_num_threads()
    return f"{dtype}, {threads} thread{'s' * (threads > 1)}"


def eager_and_compiled(name: str, layer: Callable[..., Tensor]) -> dict[str, Callable[..., Tensor]]:
    return {f"{name}, eager": layer, f"{name}, compiled": torch.compile(layer)}


def compiled_apart(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Compile with a separate frame, because models of one class would share code compiled with and without our C++."""
    return torch.compile(lambda images: model(images))


def passes(layers: Mapping[str, Callable[..., Tensor]], leaves: Sequence[Tensor]) -> dict[str, Step]:
    """Return a step with forward and backward passes of each layer on the same leaves."""

    def step(layer: Callable[..., Tensor]) -> Step:
        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            layer(*leaves).sum().backward()

        return run

    return {name: step(layer) for name, layer in layers.items()}


def without_cpp(step: Step) -> Step:
    """Return the same step with PyTorch's operators alone."""

    def run() -> None:
        with pytorch_alone():
            step()

    return run


def training_step(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    batch: int,
) -> Callable[[], None]:
    """Return a step on images of 32 × 32 in three channels and ten classes: forward, loss, backward, update."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (batch,), generator=generator)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return run


def has_bfloat16() -> bool:
    """Return True if Linux reports bfloat16 products; otherwise they are emulated slowly.

    Lesser processors that PyTorch emulates have no bfloat16.
    """
    flags = Path("/proc/cpuinfo")
    return (
        PLAYED not in LESSER
        and flags.is_file()
        and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.read_text(encoding="utf-8").split())
    )


@contextmanager
def pytorch_alone() -> Iterator[None]:
    """Disable our C++, which operators would otherwise use, as in a script that doesn't have it."""
    absent = {"load_library": lambda source: None}
    with patch.multiple(attention, **absent), patch.multiple(dac, **absent):
        yield


def prepare() -> None:
    """Set the process up as training does, for both sides: memory is kept, and one thread is used.

    A training with one slot per core, the default, has one thread. This isn't in `__main__`, where spawned processes
    don't find it.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.compiler.config.cache_key_tag += torch.backends.cpu.get_cpu_capability()


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def machine(device: torch.device) -> tuple[str, str]:
    """Return the origin of the numbers: kind of machine, and versions."""
    facts = describe_environment(device)
    kind = f"{facts['device_name']}, {facts['cpu_capability']}{', emulated' if PLAYED in LESSER else ''}"
    return kind, f"torch {facts['torch']}, Python {platform.python_version()}"

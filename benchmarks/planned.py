"""Trainings planned on a GPU, for a machine that can't read params: one per network, optimiser and precision.

`python -m benchmarks.planned` writes planned.json from params.yaml; reading it needs no YAML and no schema.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.run import RunSpec, SplitSpec, canonical_json
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task
from stages.training.tables import Regression, TableRows
from stages.training.tokens import NextToken, TokenWindows

PATH = Path(__file__).with_suffix(".json")
PROFILES = ("paper", "paper-tf32", "quick-bfloat16")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A training and the shape of its data; `classes` of a text is its vocabulary size."""

    name: str
    kind: str
    shape: tuple[int, ...]
    classes: int
    spec: RunSpec

    @property
    def kind_of_run(self) -> tuple[str, str, str]:
        protocol = self.spec.protocol
        return self.spec.model.path, protocol.optimizer.name, protocol.precision

    def one_step(self, batch: int | None = None) -> RunSpec:
        """Return the training cut to one step of `batch` rows (None: as printed)."""
        protocol = self.spec.protocol
        cut = dataclasses.replace(
            protocol,
            batch_size=batch or protocol.batch_size,
            epochs=1,
            steps_per_epoch=1,
            split=SplitSpec(),
            train_images=None,
            early_stop=None,
        )
        return dataclasses.replace(self.spec, protocol=cut)

    def task(self, spec: RunSpec, device: torch.device, *, rows: int | None = None) -> Task:
        """Return random rows in the packed types, equal on every device."""
        count, random = rows or spec.protocol.batch_size, torch.Generator().manual_seed(0)
        if self.kind == "table":
            features = torch.randn(count, *self.shape, generator=random)
            return Regression(TableRows(features.to(device), features.sum(1).to(device)))
        if self.kind == "text":
            length = count * self.shape[0] + 1
            tokens = torch.randint(0, self.classes, (length,), generator=random).to(torch.uint16)
            return NextToken(TokenWindows(tokens.to(device), self.shape[0]), spec.protocol)
        images = torch.randint(0, 256, (count, *self.shape), dtype=torch.uint8, generator=random)
        labels = torch.randint(0, self.classes, (count,), generator=random)
        return ImageClassification(LabelledImages(images.to(device), labels.to(device)), spec.protocol)


def from_params() -> Iterator[Planned]:
    """Yield one of each, in the order of params.yaml."""
    from stages.params.experiment import load_params, plan_runs

    params, seen = load_params(Path(__file__).parent.parent), set()
    for experiment in params.experiments.values():
        source = params.datasets[experiment.dataset]
        form = {"kind": source.kind, "shape": source.shape, "classes": source.classes}
        for profile in PROFILES:
            for run in plan_runs(experiment, params.profiles[profile], source, every_role=True):
                planned = Planned(name=f"{experiment.name}.{run.name.arm}", spec=run.spec, **form)
                if planned.kind_of_run not in seen:
                    seen.add(planned.kind_of_run)
                    yield planned


def dump(planned: Iterator[Planned]) -> str:
    """Write one training per line."""
    return "".join(canonical_json({**vars(one), "spec": one.spec.to_dict()}) + "\n" for one in planned)


def read(path: Path = PATH) -> list[Planned]:
    """Read a file written by `dump`."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        spec = RunSpec.from_dict(fields["spec"])
        found.append(Planned(**fields | {"shape": tuple(fields["shape"]), "spec": spec}))
    return found


if __name__ == "__main__":
    PATH.write_text(dump(from_params()), encoding="utf-8")

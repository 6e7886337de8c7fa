"""Runs are grouped to train together, and interrupted stacks resume unchanged."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.run import EarlyStopSpec, ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, SplitSpec
from stages.runs.store import RunStore, members_of, remember, stack_id
from stages.scheduling.groups import MIN_STEPS, form_groups, is_worth_stacking

ROWS = 100_000
PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01),
    batch_size=1000,
    epochs=1000,
    early_stop=EarlyStopSpec(from_epoch=250, patience=50, min_delta=0.0),
    observe_test=False,
)


def spec(width: int = 18, seed: int = 0, path: str = "stages.papers.dac.mlp:MLP", **protocol: Any) -> RunSpec:
    return RunSpec(
        model=ModelSpec(path=path, arguments={"in_features": 14, "depth": 5, "width": width}),
        protocol=dataclasses.replace(PROTOCOL, **protocol),
        data_digest="0" * 64,
        replicate=Replicate(seed=seed),
        code={"stages.run": "0"},
    )


def shape(groups: Sequence[tuple[tuple[RunSpec, ...], bool]]) -> list[tuple[list[int], int, bool]]:
    return [
        ([one.replicate.seed for one in specs], specs[0].model.arguments["width"], is_stack)
        for specs, is_stack in groups
    ]


@pytest.mark.parametrize(
    ("one", "is_worth_it"),
    [
        (spec(), True),
        (spec(width=200), True),
        (spec(path="stages.papers.dac.mlp:DACMLP"), True),
        (spec(path="stages.papers.dac.mlp:DACMLP", width=141), True),
        (spec(path="stages.papers.nmn.vit:ViT"), False),
        (spec(epochs=3), False),
        (spec(epochs=3, early_stop=None), False),
        (spec(train_images=2000), False),
        (spec(steps_per_epoch=2), False),
        (spec(epochs=MIN_STEPS // 100, early_stop=None), True),
        (spec(epochs=MIN_STEPS // 100 - 1, early_stop=None), False),
        (spec(precision="bfloat16"), False),
        (spec(observe_test=True), True),
        (spec(optimizer=OptimizerSpec(name="sgd", lr=0.1)), False),
        (spec(split=SplitSpec(kind="folds", folds=5)), False),
        (spec(epochs=MIN_STEPS // 100, early_stop=None, split=SplitSpec(kind="fraction", fraction=0.1)), False),
    ],
)
def test_only_long_trainings_of_small_networks_are_stacked(one: RunSpec, is_worth_it: bool) -> None:
    assert is_worth_stacking(one, ROWS) is is_worth_it


def test_replicates_of_one_network_share_a_stack(tmp_path: Path) -> None:
    specs = [spec(width, seed) for width in (18, 25) for seed in range(5)]
    specs.insert(3, spec(18, 0, path="stages.papers.dac.mlp:DACMLP", epochs=1))
    found = form_groups(specs, ROWS, RunStore(tmp_path))
    assert shape(found) == [([0, 1, 2, 3, 4], 18, True), ([0], 18, False), ([0, 1, 2, 3, 4], 25, True)]


def test_stacks_have_a_maximum_size(tmp_path: Path) -> None:
    found = form_groups([spec(18, seed) for seed in range(20)], ROWS, RunStore(tmp_path))
    assert [len(specs) for specs, _ in found] == [16, 4]


def begun(store: RunStore, *seeds: int) -> tuple[RunSpec, ...]:
    """Create a stack of these seeds that was interrupted after an epoch."""
    specs = tuple(spec(18, seed) for seed in seeds)
    remember(specs, store.scratch)
    store.scratch.save(f"{stack_id(specs)}/resume.pt", b"state")
    return specs


def test_interrupted_stack_resumes_including_published_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.publish(begun(store, 3, 1, 4)[0].run_key, {"result.json": b"{}"})
    found = form_groups([spec(18, seed) for seed in (0, 1, 2, 4)], ROWS, store)
    assert shape(found) == [([0, 2], 18, True), ([3, 1, 4], 18, True)]


def test_stack_is_not_resumed_for_unwanted_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    begun(store, 0, 1, 2)
    assert shape(form_groups([spec(18, 1)], ROWS, store)) == [([1], 18, True)]


def test_stack_without_a_state_is_regrouped(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (store.scratch.root / stack_id(begun(store, 1, 0)) / "resume.pt").unlink()
    assert shape(form_groups([spec(18, seed) for seed in range(3)], ROWS, store)) == [([0, 1, 2], 18, True)]


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'[{"model": 1}]'])
def test_unreadable_member_list_is_ignored(tmp_path: Path, damage: bytes) -> None:
    store = RunStore(tmp_path)
    folder = store.scratch.root / stack_id(begun(store, 1, 0))
    (folder / "group.json").write_bytes(damage)
    assert members_of(folder.name, store.scratch) == ()
    assert shape(form_groups([spec(18, seed) for seed in range(2)], ROWS, store)) == [([0, 1], 18, True)]


def test_grouping_many_runs_compares_no_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quadratic comparisons of 6,000 runs took 12 s."""
    specs = [spec(width, seed) for width in range(10, 30) for seed in range(20)]
    specs += [spec(400, seed) for seed in range(20)]

    def compared(self: RunSpec, other: object) -> bool:
        raise AssertionError("two specs were compared")

    monkeypatch.setattr(RunSpec, "__eq__", compared)
    found = form_groups(specs, ROWS, RunStore(tmp_path))
    assert len(found) == 20 * 2 + 20, "stacks of 16 and 4, and networks too wide to stack"
    assert sum(len(members) for members, _ in found) == len(specs)

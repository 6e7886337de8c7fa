"""Runs are cut to a few steps on the same code path, with a small packed data set of each kind."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.packed import PackedInfo, TableSet, TokenSet, digest_packed, read_info, write_packed
from stages.params.experiment import load_params
from stages.run import (
    EarlyStopSpec,
    OptimizerSpec,
    Protocol,
    RunSpec,
    ScheduleSpec,
    SplitSpec,
    training_counts,
)
from stages.runs.equivalence import path_of
from stages.upkeep.proving import KnownRun, PackedSets, cut_run
from tests.packed_table import describe
from tests.project import REPOSITORY, make_spec, pack_stand_in

PARAMS = load_params(REPOSITORY)
ADAM = OptimizerSpec(name="adam", lr=0.001)


def described(dataset: str, kind: str, shape: tuple[int, ...], train: int, test: int) -> PackedInfo:
    classes = tuple(f"column {number}" for number in range(shape[0])) if kind == "table" else ()
    known = {"kind": kind, "shape": shape, "classes": classes, "vocabulary": 50 if kind == "text" else None}
    return describe(dataset, provenance="full", source="official", train_images=train, test_images=test, **known)


def made(spec: RunSpec, dataset: str, *, stacked: bool = False) -> KnownRun:
    environment = {"device": "cpu"} | ({"stacked": "0" * 12} if stacked else {})
    return KnownRun("toy", spec.run_key, spec.to_dict(), environment, dataset)


def test_cut_table_keeps_its_split_and_early_stop_and_a_stack_two_networks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    splits = [TableSet(rng.normal(size=(n, 3)).astype("f4"), rng.normal(size=n).astype("f4")) for n in (9000, 100)]
    target = tmp_path / "data" / "processed" / "sgemm"
    write_packed(target, {"train": splits[0], "test": splits[1]}, described("sgemm", "table", (3,), 9000, 100))
    protocol = Protocol(
        optimizer=ADAM,
        batch_size=1024,
        epochs=300,
        split=SplitSpec(kind="fraction", fraction=0.1),
        early_stop=EarlyStopSpec(from_epoch=100, patience=20, min_delta=0.0),
    )
    sizes = {"in_features": 3, "width": 8, "depth": 2}
    spec = make_spec("stages.papers.dac.mlp:MLP", sizes, protocol, digest="d", seed=3)
    small, whole = cut_run(PackedSets(tmp_path, PARAMS, tmp_path / "scratch"), made(spec, "sgemm", stacked=True), 20)
    assert [one.replicate.seed for one in small.specs] == [3, 4]
    assert [cut.specs[0].protocol.batch_size for cut in (small, whole)] == [256, 1024]
    for cut, steps in ((small, 9.5), (whole, 1.5)):
        info = read_info(cut.data)
        assert info.digest == cut.specs[0].data_digest == digest_packed(cut.data, info)
        trained, held_out = training_counts(info.train_images, cut.specs[0].protocol, cut.specs[0].replicate)
        assert trained == pytest.approx(steps * cut.specs[0].protocol.batch_size, abs=1) and held_out > 0
        assert path_of(cut.specs[0].to_dict()) == path_of(spec.to_dict()), "the code path is the same"


def test_cut_text_has_few_windows(tmp_path: Path) -> None:
    tokens = np.arange(5000, dtype=np.uint16) % 50
    target = tmp_path / "data" / "processed" / "openwebtext"
    splits = {"train": TokenSet(tokens), "test": TokenSet(tokens[:900])}
    write_packed(target, splits, described("openwebtext", "text", (16,), 5000, 900))  # type: ignore[arg-type]
    protocol = Protocol(
        optimizer=ADAM, batch_size=12, epochs=1, schedule=ScheduleSpec(name="cosine", warmup_steps=2000, floor=0.1)
    )
    spec = make_spec("stages.papers.nmn.gpt:GPT2", {"context": 16}, protocol, digest="d")
    small, whole = cut_run(PackedSets(tmp_path, PARAMS, tmp_path / "scratch"), made(spec, "openwebtext"), 8)
    assert [read_info(cut.data).train_images for cut in (small, whole)] == [7 * 16 + 1, 18 * 16 + 1]
    assert small.specs[0].protocol.schedule.warmup_steps == 2 and len(small.specs) == 1
    assert path_of(small.specs[0].to_dict()) == path_of(spec.to_dict())


def test_placeholder_images_with_the_runs_digest_are_accepted(tmp_path: Path) -> None:
    target = tmp_path / "data" / "processed" / "mnist"
    pack_stand_in(target, "mnist")
    protocol = Protocol(optimizer=ADAM, batch_size=2, epochs=1, mean=(0.5,), std=(0.5,), steps_per_epoch=2)
    spec = make_spec("stages.papers.ninformer.vit:ViT", {"depth": 1}, protocol, digest=read_info(target).digest)
    (only,) = cut_run(PackedSets(tmp_path, PARAMS, tmp_path / "scratch"), made(spec, "mnist"), 100)
    assert only.specs[0].protocol == dataclasses.replace(protocol, epochs=2), "already small"
    assert read_info(only.data).provenance == "embedded"

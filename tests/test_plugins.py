"""Plugins: what installed distributions offer by entry points, and what the run key has of them."""

import dataclasses
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import r2_score

from stages.checkpoint.contract import CheckpointError
from stages.checkpoint.predictor import load_predictor
from stages.cli import main
from stages.datasets.manifest import DatasetError
from stages.datasets.packed import read_images, read_info
from stages.evaluation.scores import score
from stages.params import callables
from stages.params.callables import KINDS, find_plugins
from stages.params.experiment import Params, ParamsError, SourceFile, load_params, plan_runs
from stages.params.metrics import OwnMetric
from stages.params.schema import address_of
from stages.params.stage_inputs import code_digests, stage_inputs
from stages.run import OptimizerSpec, RecipeSpec, RunSpec, ScheduleSpec
from stages.runs import fingerprint
from stages.runs.fingerprint import imported_modules_of
from stages.training.images import ImageClassification
from stages.training.options import rates_of
from stages.training.recipe import RecipeTask, _build, learned
from tests.datasets.test_own import pack
from tests.datasets.tiny import declare
from tests.project import edit
from tests.test_imported import OWN, forget, keyed, params_with
from tests.training.test_loop import make_protocol
from tests.training.test_options import IMAGES, train
from tests.training.test_other_tasks import pack_task, train_task

CODE = (
    OWN
    + """
import torch
from torch.optim.lr_scheduler import LambdaLR
from stages.training.tasks import ImageRegression

class Slow(torch.optim.SGD):
    pass

class Halving(LambdaLR):
    def __init__(self, optimizer, every: int):
        super().__init__(optimizer, lambda step: 0.5 ** (step // every))

class Focal(nn.Module):
    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, labels):
        surprise = nn.functional.cross_entropy(logits, labels, reduction="none")
        return ((1 - (-surprise).exp()) ** self.gamma * surprise).mean()

class Invert(nn.Module):
    def forward(self, image):
        return 255 - image

class Counts(ImageRegression):
    # counts, whose logarithm the network gives

    def __init__(self, plain, offset: float = 0.0):
        super().__init__(plain)
        self.offset = offset

    def loss(self, outputs, targets, *_):
        return nn.functional.poisson_nll_loss(outputs.float() + self.offset, targets)

    def predict(self, outputs):
        return (outputs + self.offset).exp()

class Halved(ImageRegression):
    def predict(self, outputs):
        return outputs[:, :1]

class Summed(ImageRegression):
    def loss(self, outputs, targets, *_):
        return ((outputs - targets) ** 2).sum()

def read(source, manifest, folder):
    from stages.datasets.manifest import ImageReader
    from stages.datasets.packed import ImageSet
    import numpy
    files = {"train": ("a.npy",), "test": ("b.npy",)}
    def read_split(folder, split):
        images = numpy.load(folder / files[split][0])
        return ImageSet(images, numpy.arange(len(images)) % 2)
    return ImageReader(classes=("even", "odd"), files=files, read_split=read_split)
"""
)
OFFERED = {
    "models": {"small_net": "Net", "ViT": "Net"},
    "optimizers": {"slow": "Slow"},
    "schedules": {"halving": "Halving"},
    "losses": {"focal": "Focal"},
    "transforms": {"invert": "Invert"},
    "tasks": {"counts": "Counts"},
    "readers": {"rows": "read"},
}
Install = Callable[..., None]
R2 = OwnMetric(address="sklearn.metrics:r2_score", takes="predictions", unit="", better="higher", range=(None, 1))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution and its package where pip would, in a folder that comes first."""
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.syspath_prepend(site)

    def install(
        name: str, version: str, package: str, offered: dict[str, dict[str, str]] = OFFERED, code: str = CODE
    ) -> None:
        folder = site / package.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(code, encoding="utf-8")
        for old in site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
        about = site / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (about / "top_level.txt").write_text(f"{package.partition('.')[0]}\n", encoding="utf-8")
        (about / "RECORD").write_text(f"{package.replace('.', '/')}/__init__.py,,\n", encoding="utf-8")
        lines = [
            f"[claimcheck.{kind}]\n" + "".join(f"{name} = {package}:{found}\n" for name, found in names.items())
            for kind, names in offered.items()
        ]
        (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        reread()

    reread()
    yield install
    for module in [name for name in sys.modules if name.partition(".")[0] in ("lab_nets", "lab_metrics", "lab")]:
        del sys.modules[module]
    reread()


def reread() -> None:
    importlib.invalidate_caches()
    for cached in (fingerprint._find, fingerprint.is_pinned, fingerprint._version, fingerprint._package_of):
        cached.cache_clear()
    code_digests.cache_clear()
    callables.signature_of.cache_clear()
    callables._body.cache_clear()
    callables._is_lazy.cache_clear()
    forget()


PROTOCOL = {
    "optimizer": {"name": "slow", "lr": 0.1, "momentum": 0.5},
    "schedule": {"name": "halving", "every": 2},
    "recipe": {"loss": {"name": "focal", "gamma": 0.0}, "transforms": [{"name": "invert"}, {"name": "RandAugment"}]},
}


def test_plugins_mean_their_address_and_are_keyed_by_their_version(install: Install, tmp_path: Path) -> None:
    plain = keyed(tmp_path, {"name": "torchvision.models:resnet18"})
    install("nets-of-a-lab", "1.0", "lab_nets")
    spec = keyed(tmp_path, {"name": "small_net", "width": 2}, PROTOCOL)
    assert RunSpec.from_dict(spec.to_dict()).run_key == spec.run_key
    assert spec.model.arguments["address"] == "lab_nets:Net"
    protocol = spec.to_dict()["protocol"]
    assert (protocol["optimizer"]["address"], protocol["schedule"]["address"]) == ("lab_nets:Slow", "lab_nets:Halving")
    assert [one["name"] for one in protocol["recipe"]["transforms"]] == ["lab_nets:Invert", "RandAugment"]
    assert protocol["recipe"]["loss"] == {"name": "lab_nets:Focal", "gamma": 0.0}
    assert spec.code["lab_nets"] == "nets-of-a-lab==1.0"
    roots = stage_inputs(load_params(tmp_path))["train@own"].roots
    assert "lab_nets" in roots and "stages.papers.imported" in roots
    addressed = keyed(tmp_path, {"name": "lab_nets:Net", "width": 2}, PROTOCOL)
    assert addressed.run_key == spec.run_key, "a name is a spelling of its address"
    install("other-nets", "7", "lab_other", {"models": {"other_net": "Net"}})
    assert keyed(tmp_path, {"name": "small_net", "width": 2}, PROTOCOL).run_key == spec.run_key
    install("nets-of-a-lab", "1.1", "lab_nets")
    upgraded = keyed(tmp_path, {"name": "small_net", "width": 2}, PROTOCOL)
    assert upgraded.code["lab_nets"] == "nets-of-a-lab==1.1" and upgraded.run_key != spec.run_key
    assert keyed(tmp_path, {"name": "torchvision.models:resnet18"}).run_key == plain.run_key


def test_package_in_a_shared_namespace_is_keyed_by_its_own_distribution(install: Install, tmp_path: Path) -> None:
    install("lab-zoo", "1.0", "lab.zoo")
    before = keyed(tmp_path, {"name": "lab.zoo:Net"})
    install("lab-data", "5", "lab.data", {})
    assert keyed(tmp_path, {"name": "lab.zoo:Net"}).run_key == before.run_key
    assert fingerprint.changed_modules(before.to_dict()) == []
    install("lab-zoo", "1.1", "lab.zoo")
    assert fingerprint.changed_modules(before.to_dict()) == ["lab.zoo"]


def test_papers_own_model_is_never_replaced(install: Install, tmp_path: Path) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    sizes = {"patch_size": 4, "dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8, "dropout": 0.0}
    assert keyed(tmp_path, {"name": "ViT"} | sizes).model.path.startswith("stages.papers.ninformer")


def test_unknown_and_ambiguous_names_are_explained(install: Install, tmp_path: Path) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    for model, protocol, words in (
        ({"name": "smal_net"}, {}, r"model.name is 'smal_net' \(did you mean small_net\?\); known: .*ViT"),
        ({"name": "small_net", "wide": 1}, {}, r"unknown key arms.own.model.wide"),
        ({"name": "small_net"}, {"optimizer": {"name": "slwo", "lr": 1}}, r"did you mean slow\?"),
        ({"name": "small_net"}, {"schedule": {"name": "cosin"}}, r"did you mean cosine\?"),
        ({"name": "small_net"}, {"schedule": {"name": "halving"}}, "schedule.every is missing"),
        ({"name": "small_net"}, {"recipe": {"transforms": [{"name": "invrt"}]}}, r"did you mean invert\?"),
        ({"name": "small_net"}, {"recipe": {"loss": {"name": "focl"}}}, r"did you mean focal\?"),
        ({"name": "small_net"}, {"recipe": {"loss": {"name": "focal", "gama": 1}}}, r"loss.gama .did you mean gamma"),
        ({"name": "small_net"}, {"recipe": {"loss": {"name": "focal"}, "label_smoothing": 0.1}}, "leave out label_smo"),
        ({"name": "small_net"}, {"recipe": {"mix": [{"name": "invert"}]}}, "transforms, because it mixes no images"),
        ({"name": "small_net"}, {"recipe": {"transforms": [{"name": "MixUp"}]}}, "mix, because it mixes images"),
    ):
        with pytest.raises(ParamsError, match=words):
            params_with(tmp_path, model, protocol)
    install("lab-more", "2.0", "lab_more", {"models": {"small_net": "Net"}})
    with pytest.raises(ParamsError, match=r"lab-more 2.0 \(lab_more:Net\) and nets-of-a-lab 1.0 \(lab_nets:N"):
        params_with(tmp_path, {"name": "small_net"})


def test_command_lists_plugins(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    assert main(["plugins", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    (reader,) = (one for one in listed if one["kind"] == "readers" and one["distribution"] == "nets-of-a-lab")
    assert (reader["name"], reader["version"], reader["address"]) == ("rows", "1.0", "lab_nets:read")
    assert len(listed) == len(find_plugins(*OFFERED)) and main(["plugins"]) == 0
    assert "small_net" in capsys.readouterr().out


MALFORMED = ["lab_nets", "lab_nets:", ":Net", "lab nets:Net", "lab_nets:Net:x", "../x:y", "a..b:Net", ""]


@pytest.mark.parametrize(
    ("kind", "value"), [*((kind, "lab_nets") for kind in KINDS), *(("models", value) for value in MALFORMED)]
)
def test_malformed_entry_point_is_listed_and_refused_by_name(
    install: Install, kind: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    install("broken", "2.0", "broken_nets", {})
    (entries,) = tmp_path.glob("lib/site-packages/broken-2.0.dist-info/entry_points.txt")
    entries.write_text(f"[claimcheck.{kind}]\n{f'bad = {value}' if value else 'bad'}\n", encoding="utf-8")
    assert main(["plugins"]) == 0 and "malformed" in capsys.readouterr().out
    assert main(["plugins", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["small_net"]["address"] == "lab_nets:Net" and not listed["small_net"]["fault"]
    assert not listed["bad"]["address"] and "expected bad = package.module:object" in listed["bad"]["fault"]
    assert stage_inputs(params_with(tmp_path, {"name": "small_net"})), "others aren't affected"
    words = r"is 'bad', which is malformed in broken 2\.0 \(.*; expected bad = package"
    with pytest.raises((ParamsError, DatasetError), match=words):
        address_of(kind, "bad", (), tmp_path, "place")
    if ":" in value:
        with pytest.raises(ParamsError, match=r"place is .*; expected package\.module:name"):
            address_of(kind, value, (), tmp_path, "place")


@pytest.mark.parametrize("name", ["[small_net]", "{a: b}", "2026", ":Net", "..x:Net"])
def test_name_of_another_type_or_form_is_refused(name: str, tmp_path: Path) -> None:
    for model, protocol in (
        ({"name": yaml.safe_load(name)}, {}),
        ({"name": "torchvision.models:resnet18"}, {"optimizer": {"name": yaml.safe_load(name), "lr": 1}}),
        ({"name": "torchvision.models:resnet18"}, {"schedule": {"name": yaml.safe_load(name)}}),
        ({"name": "torchvision.models:resnet18"}, {"recipe": {"loss": {"name": yaml.safe_load(name)}}}),
        ({"name": "torchvision.models:resnet18"}, {"recipe": {"transforms": [{"name": yaml.safe_load(name)}]}}),
    ):
        with pytest.raises(ParamsError, match=r"name is .*package\.module:name"):
            params_with(tmp_path, model, protocol)
    source = declare(name, (1, 4, 4), SourceFile(name="a.npy"), classes=2, train=6, test=4)
    (tmp_path / "downloads/pets").mkdir(parents=True)
    (tmp_path / "downloads/pets/a.npy").touch()
    with pytest.raises(DatasetError, match=r"datasets.pets.reader is .*package\.module:name"):
        pack(tmp_path, source)


def test_reader_of_a_plugin_packs_its_images(install: Install, tmp_path: Path) -> None:
    source = declare("rows", (1, 4, 4), SourceFile(name="a.npy"), SourceFile(name="b.npy"), classes=2, train=6, test=4)
    (tmp_path / "downloads/pets").mkdir(parents=True)
    for name, count in (("a", 6), ("b", 4)):
        draw = np.random.default_rng(count)
        np.save(tmp_path / f"downloads/pets/{name}.npy", draw.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8))
    with pytest.raises(DatasetError, match=r"datasets.pets.reader is 'rows'.*; known: cifar10"):
        pack(tmp_path, source)
    install("nets-of-a-lab", "1.0", "lab_nets")
    info = pack(tmp_path, source)
    assert (info.classes, info.train_images, info.test_images) == (("even", "odd"), 6, 4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("CosineAnnealingWarmRestarts", {"T_0": 3}),
        ("OneCycleLR", {"max_lr": 0.5, "cycle_momentum": False}),
        ("MultiStepLR", {"milestones": [2, 5]}),
    ],
)
def test_schedule_of_torch_sets_the_rate_of_each_step(name: str, arguments: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    length = {"total_steps": 8} if name == "OneCycleLR" else {}
    by_hand = getattr(torch.optim.lr_scheduler, name)(optimizer, **arguments, **length)
    expected = []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        by_hand.step()
    spec = ScheduleSpec(name="imported", address=f"torch.optim.lr_scheduler:{name}", arguments=arguments)
    assert rates_of(spec, 0.1, 8) == pytest.approx(expected)
    _, outcome = train(make_protocol(schedule=spec, epochs=2, optimizer=OptimizerSpec(name="sgd", lr=0.1)))
    assert [row["lr"] for row in outcome.history] == pytest.approx([expected[3], expected[7]])


def test_loss_of_a_plugin_replaces_cross_entropy_in_training(install: Install) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    plain, generator = ImageClassification(IMAGES, make_protocol()), torch.Generator().manual_seed(0)
    logits, labels = torch.randn(30, 4, generator=generator), IMAGES.labels
    for gamma, is_same in ((0.0, True), (2.0, False)):
        loss = {"name": "lab_nets:Focal", "gamma": gamma}
        task = RecipeTask(learned(plain), RecipeSpec(loss=loss), 4, torch.arange(30))
        assert torch.allclose(task.loss(logits, labels), plain.loss(logits, labels)) == is_same
        with torch.no_grad():
            assert task.loss(logits, labels) == plain.loss(logits, labels)


def test_only_schedules_and_modules_are_called() -> None:
    with pytest.raises(ValueError, match=r"os:system is no torch\.optim\.lr_scheduler\.LRScheduler"):
        rates_of(ScheduleSpec(name="imported", address="os:system"), 0.1, 1)
    address = "torch.optim.lr_scheduler:OneCycleLR"
    with pytest.raises(ValueError, match="OneCycleLR: optimizer must support momentum"):
        rates_of(ScheduleSpec(name="imported", address=address, arguments={"max_lr": 0.5}), 0.1, 1)
    with pytest.raises(ValueError, match=r"os:system is no nn\.Module"):
        _build([{"name": "os:system"}], torch.device("cpu"))


def counted(folder: Path, task_class: dict[str, Any], **protocol: Any) -> RunSpec:
    """Training of a task of another package, on the packed numbers in `folder`."""
    spec, _, _ = pack_task(folder / "parts", "regression")
    fields = dataclasses.replace(spec.protocol, epochs=4, **protocol)
    code = {"lab_nets": "nets-of-a-lab==1.0"}
    return dataclasses.replace(spec, task_class=task_class, protocol=fields, code=code)


def test_task_of_a_plugin_is_trained_measured_and_not_served(install: Install, tmp_path: Path) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    spec = counted(tmp_path, {"name": "lab_nets:Counts", "offset": 0.5})
    assert RunSpec.from_dict(spec.to_dict()) == spec and "lab_nets" in imported_modules_of(spec.to_dict())
    assert dataclasses.replace(spec, task_class=None).run_key != spec.run_key
    folder, rows = train_task(spec, tmp_path)
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]
    predictor, test = load_predictor(folder / "weights.safetensors"), read_images(tmp_path / "parts", "test")
    scores = score(predictor, test, read_info(tmp_path / "parts"), spec, rows, 7, {"r2": R2})
    values = {row.metric: row.value for row in scores.metrics}
    with torch.inference_mode():
        said = (predictor.network(predictor.inputs(torch.from_numpy(test.images))) + 0.5).exp().numpy()
    targets = test.labels.view(np.float64)
    assert values["rmse"] == pytest.approx(((said - targets) ** 2).mean() ** 0.5, rel=1e-5)
    assert values["mae"] == pytest.approx(np.abs(said - targets).mean(), rel=1e-5)
    assert values["loss"] == pytest.approx(rows[-1]["test_loss"], rel=1e-5) and "mse" not in values
    assert values["r2"] == pytest.approx(r2_score(targets.astype(np.float32), said), rel=1e-5)
    with pytest.raises(CheckpointError, match="this checkpoint is for other data"):
        predictor.predict(test.images)


def test_task_whose_predictions_have_another_shape_is_refused(install: Install, tmp_path: Path) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    spec = counted(tmp_path, {"name": "lab_nets:Halved"})
    folder, rows = train_task(spec, tmp_path)
    predictor, test = load_predictor(folder / "weights.safetensors"), read_images(tmp_path / "parts", "test")
    with pytest.raises(ValueError, match=r"Halved.predict returns \[30, 1\]; its targets are \[30, 3\]"):
        score(predictor, test, read_info(tmp_path / "parts"), spec, rows, 7)


def test_task_that_breaks_its_contract_is_refused(install: Install, tmp_path: Path) -> None:
    install("nets-of-a-lab", "1.0", "lab_nets")
    with pytest.raises(ValueError, match=r"lab_nets:Net is no subclass of stages.training.tasks.ImageRegression"):
        train_task(counted(tmp_path / "one", {"name": "lab_nets:Net"}), tmp_path / "one")
    with pytest.raises(ValueError, match="with accumulate it must be a mean"):
        train_task(counted(tmp_path / "two", {"name": "lab_nets:Summed"}, accumulate=2), tmp_path / "two")
    counts = {"task": "regression", "task_class": {"name": "counts", "offset": 1}}
    for fields, words in (
        ({"task_class": {"name": "counts", "offst": 1}}, r"task_class.offst \(did you mean offset\?\)"),
        ({"task_class": {"name": "count"}}, r"task_class.name is 'count' \(did you mean counts\?\)"),
        ({"task": None}, "task is None; expected what the targets are"),
    ):
        with pytest.raises(ParamsError, match=words):
            params_on_numbers(tmp_path, counts | fields)
    with pytest.raises(ParamsError, match="loss is set, but the data are for regression: it has a task_class"):
        params_on_numbers(tmp_path, counts, recipe={"loss": {"name": "torch.nn:HuberLoss"}})
    params = params_on_numbers(tmp_path, counts)
    (run,) = plan_runs(params.experiments["own"], params.profile, params.datasets["cifar10"])
    assert run.spec.task_class == {"name": "lab_nets:Counts", "offset": 1}
    assert "lab_nets" in stage_inputs(params)["train@own"].roots


def params_on_numbers(folder: Path, fields: dict[str, Any], **protocol: Any) -> Params:
    """Params of an experiment on images that have ten numbers each."""
    params_with(folder, {"name": "torchvision.models:resnet18"}, protocol)
    own = {"reader": "npz", "files": [{"name": "x.npz"}], "train_per_class": None, "test_per_class": None}
    edit(folder / "params.yaml", lambda index: index["datasets"]["cifar10"].update(own, **fields))
    return load_params(folder)

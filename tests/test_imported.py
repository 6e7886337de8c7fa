"""Models, optimisers and recipes that params name by `package.module:name`: read, keyed, trained, refused."""

import dataclasses
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from stages.analyse import hours
from stages.checkpoint.contract import InputContract
from stages.checkpoint.predictor import dump_checkpoint, load_predictor
from stages.datasets.packed import ImageSet
from stages.evaluation.flops import FlopCounts
from stages.papers import build_model
from stages.papers.imported import ImportedModel
from stages.params.experiment import Params, ParamsError, load_params
from stages.run import IMPORTED_MODEL, ModelSpec, OptimizerSpec, Protocol, RecipeSpec, RunSpec
from stages.runs import fingerprint
from stages.runs.fingerprint import changed_modules, code_today, unlike_loaded
from stages.runs.store import FolderScratch, RunStore
from stages.scheduling.runner import keyed_runs
from stages.training.images import ImageClassification, LabelledImages
from stages.training.opening import refuse_unfit
from stages.training.protocol import build_optimizer
from stages.training.recipe import RecipeTask, learned, with_recipe
from stages.worker import Job, train_run
from tests.packed_table import pack_images
from tests.project import REPOSITORY, edit, environment

SMALL_VIT = {"name": "timm.models.vision_transformer:vit_tiny_patch16_224", "patch_size": 8, "embed_dim": 16}
SMALL_VIT |= {"depth": 1, "num_heads": 2}
HF_VIT = {"name": "transformers.models.vit.modeling_vit:ViTForImageClassification", "hidden_size": 16, "patch_size": 8}
HF_VIT |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, width=4):
        super().__init__()
        pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), *pool, nn.Linear(width, num_classes))
        bias = nn.init.constant_(self.layers[-1].bias.detach(), 9)
        while bias.max() > 8:  # as rejection sampling does
            bias.normal_()

    def forward(self, x):
        assert x.isfinite().all()
        return self.layers(x)

def make(num_classes: int) -> Net:
    return Net(num_classes)

class Broken(Net):
    def forward(self, x):
        raise SystemExit(0) if len(self.layers) > 9 else KeyError("lost")

def unannotated(num_classes):
    return Net(num_classes)
"""


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's module, forgotten afterwards."""
    path = tmp_path / "code" / "my_net.py"
    path.parent.mkdir()
    path.write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(path.parent)
    for cached in (fingerprint._find, fingerprint.is_pinned, fingerprint._source, fingerprint._tree):
        cached.cache_clear()
    forget()
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    return path


def forget() -> None:
    """Read sources again that were changed."""
    for cached in (fingerprint.module_digest, fingerprint._source, fingerprint._imports, fingerprint.training_code):
        cached.cache_clear()
    fingerprint.imported_modules.cache_clear()


def params_with(folder: Path, model: dict[str, Any], protocol: dict[str, Any] | None = None) -> Params:
    """Params of one experiment on 32 x 32 pixels in three colours, as a group of its own would write them."""
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    index["experiments"] = {"own": {"paper": "ninformer", "dataset": "cifar10"}}
    index["profile"] = "paper"
    (folder / "params").mkdir(exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    fields = {"optimizer": {"name": "adamw", "lr": 0.001}, "batch_size": 4, "epochs": 1, "seeds": [0]}
    fields |= {"mean": [0.5] * 3, "std": [0.25] * 3, "observe_test": False, **(protocol or {})}
    arms = {"own": {"role": "proposed", "title": "own", "model": model}}
    (folder / "params" / "own.yaml").write_text(
        yaml.safe_dump({"title": "Own", "protocol": fields, "arms": arms}), encoding="utf-8"
    )
    return load_params(folder)


def keyed(folder: Path, model: dict[str, Any], protocol: dict[str, Any] | None = None, digest: str = "") -> RunSpec:
    params = params_with(folder, model, protocol)
    return keyed_runs(params.experiments["own"], params, digest)[0].spec


@pytest.mark.parametrize(
    ("model", "top"),
    [
        (SMALL_VIT, "timm"),
        ({"name": "timm.models.resnet:resnet18", "in_chans": 3}, "timm"),
        ({"name": "torchvision.models:resnet18"}, "torchvision"),
        pytest.param(HF_VIT, "transformers", marks=pytest.mark.slow),
        ({"name": "my_net:Net", "width": 2}, None),
        ({"name": "my_net:make"}, None),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("own_file")
def test_model_of_another_package_trains_and_is_keyed_by_its_version(
    model: dict[str, Any], top: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    train, test = (
        ImageSet(draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10) for count in (12, 4)
    )
    info = pack_images(tmp_path / "noise", "noise", train, test, "abcdefghij")
    recipe = {"recipe": {"label_smoothing": 0.1, "class_weights": "balanced", "mix": [{"name": "MixUp", "alpha": 0.2}]}}
    recipe["recipe"]["transforms"] = [{"name": "RandAugment", "num_ops": 1}]
    optimizer = {"name": "torch.optim:RMSprop", "lr": 0.001, "alpha": 0.9, "momentum": 0.9, "clip_norm": 1.0}
    spec = keyed(tmp_path, model, recipe | {"optimizer": optimizer}, info.digest)
    assert RunSpec.from_dict(spec.to_dict()).run_key == spec.run_key and changed_modules(spec.to_dict()) == []
    packages = {name: version for name, version in spec.code.items() if "==" in version}
    assert packages.keys() == {"torchvision", *([top] if top else [])}, "the recipe's transforms, and the model's"
    done = train_run(Job(spec=spec, data=tmp_path / "noise", device="cpu"), FolderScratch(tmp_path / "work"))
    published = RunStore(tmp_path / "store").publish(spec.run_key, done.outcomes[spec.run_key])
    predictor = load_predictor(published / "weights.safetensors")
    assert predictor.probabilities(test.images).shape == (4, 10)
    assert FlopCounts(tmp_path / "flops.json").count(spec.model, (3, 32, 32), None) > 0
    if top:
        monkeypatch.setattr(fingerprint, "_version", lambda name: f"{name}==99")
        forget()
        assert {top} <= {*changed_modules(spec.to_dict())} and {top} <= {*unlike_loaded(spec.code)}
        assert dataclasses.replace(spec, code=code_today(spec.to_dict())).run_key != spec.run_key


def test_own_file_is_keyed_by_its_source(own_file: Path, tmp_path: Path) -> None:
    before = keyed(tmp_path, {"name": "my_net:Net"})
    assert "my_net" in before.code
    own_file.write_text(OWN.replace("width=4", "width=5"), encoding="utf-8")
    forget()
    assert changed_modules(before.to_dict()) == ["my_net"]
    own_file.write_text("import timm\n" + OWN, encoding="utf-8")
    forget()
    assert "timm" in keyed(tmp_path, {"name": "my_net:Net"}).code, "what a file imports is keyed, too"


@pytest.mark.parametrize("fault", ["KeyError: 'lost'", "SystemExit: 0"])
def test_broken_network_has_no_hours_and_stops_no_analysis(
    own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    own_file.write_text(OWN.replace("> 9", "> 0") if "Exit" in fault else OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert hours(params_with(tmp_path, {"name": "my_net:Broken"})) == {}
    shown = (
        f"own.own: its hours are unknown: my_net:Broken fails on a row of zeros [3, 32, 32]: {fault}; my_net.py, line "
    )
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "protocol", "words"),
    [
        ({"name": "timm.models.resnet:resnet81"}, {}, "timm.models.resnet has no 'resnet81'; did you mean resnet18"),
        ({"name": "torchvision.models:resnet18", "zero_init": 1}, {}, "model.zero_init .did you mean zero_init_res"),
        (HF_VIT | {"hidden_sise": 2}, {}, "model.hidden_sise .did you mean hidden_size"),
        ({"name": "no_such_package.nets:Net"}, {}, "no_such_package.nets can't be found; install it, or put"),
        (
            {"name": "my_net:Net", "width": "wide", "depth": 2},
            {},
            "unknown key arms.own.model.depth .did you mean width",
        ),
        (SMALL_VIT | {"pretrained": True}, {}, "model.pretrained loads weights, which no run key covers"),
        ({"name": "my_net:Net"}, {"name": "torch.optim:RMSProp"}, "torch.optim has no 'RMSProp'; did you mean RMSprop"),
        ({"name": "my_net:Net"}, {"name": "torch.optim:SGD", "momentun": 1}, "momentun .did you mean momentum"),
        ({"name": "my_net:Net"}, {"name": "torch.optim:LBFGS"}, "needs several passes per step"),
        ({"name": "my_net:Net"}, {"name": "kfac", "clip_norm": 1}, "clip_norm is set, but kfac doesn't use it"),
        ({"name": "my_net:Net"}, {"name": "imported"}, "write its package.module:name"),
    ],
)
@pytest.mark.usefixtures("own_file")
def test_wrong_names_are_refused_with_what_would_do(
    model: dict[str, Any], protocol: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ParamsError, match=words):
        params_with(tmp_path, model, {"optimizer": {"lr": 0.1, **protocol}} if protocol else None)


UNFIT = """
import torch
from torch import nn

class Whole(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.flat, self.linear, self.mix = nn.Flatten(), nn.LazyLinear(num_classes), torch.eye(num_classes)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]

    def forward(self, x):
        return {"logits": self.linear(self.flat(x)) @ self.mix}

class Drawn(Whole):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.mix = torch.rand(num_classes, num_classes)

class Drawing(Whole):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x)["logits"])

class Counting(Drawn):
    def forward(self, x):
        self.mix = self.mix + 1
        return super().forward(x)

class Empty(Whole):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.linear = nn.AvgPool1d(3 * 32 * 32 // num_classes)

class Wide(Whole):
    def __init__(self, num_classes):
        super().__init__(num_classes + 1)

class Flat(Whole):
    def forward(self, x):
        return super().forward(x)["logits"].sum(1)

class Several(Whole):
    def forward(self, x):
        return super().forward(x)["logits"], x
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Whole", None),
        ("Drawn", "other outputs for the same weights"),
        ("Drawing", "other outputs for the same weights"),
        ("Counting", "other outputs for the same weights"),
        ("Empty", "no parameters to train"),
        ("Wide", r"outputs are \[2, 11\] for 2 rows of noise; expected \[2, 10\], a logit for each class"),
        ("Flat", r"outputs are \[2\] for 2 rows of noise; expected \[2, 10\]"),
        ("Several", "returns a tuple; expected a Tensor of logits"),
    ],
)
def test_network_that_no_checkpoint_holds_is_refused(
    own_file: Path, name: str, words: str | None, tmp_path: Path
) -> None:
    own_file.write_text(UNFIT, encoding="utf-8")
    pixels = ImageSet(np.zeros((2, 3, 32, 32), np.uint8), np.arange(2))
    info = pack_images(tmp_path / "noise", "noise", pixels, pixels, "abcdefghij")
    spec = ModelSpec(path=IMPORTED_MODEL, arguments={"address": f"my_net:{name}", "arguments": {}, "num_classes": 10})
    before = torch.get_rng_state()
    with nullcontext() if words is None else pytest.raises((TypeError, ValueError), match=words):
        refuse_unfit(spec, info, has_task=False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_own_file_next_to_params_is_found_by_commands(tmp_path: Path) -> None:
    params_with(tmp_path, {"name": "torchvision.models:resnet18"})
    edit(tmp_path / "params/own.yaml", lambda content: content["arms"]["own"].update(model={"name": "my_net:Net"}))
    (tmp_path / "my_net.py").write_text(OWN, encoding="utf-8")
    command = [str(Path(sys.executable).parent / "claimcheck"), "plan", "own"]
    env = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "own" in done.stdout, done.stderr


@pytest.mark.usefixtures("own_file")
def test_only_modules_are_called() -> None:
    for address in ("os:system", "shutil:rmtree", "unittest.__main__:main", "torch.__main__:x"):
        with pytest.raises(ValueError, match="a module of Python's own"):
            ImportedModel(address=address, arguments={})
    for address in ("my_net:unannotated", "torch.hub:load", "torch:load"):
        with pytest.raises(ValueError, match=r"neither an nn\.Module nor a function annotated"):
            ImportedModel(address=address, arguments={})
    with pytest.raises(ValueError, match="my_net:Net can't be built: TypeError"):
        ImportedModel(address="my_net:Net", arguments={"width": "wide"}, num_classes=2)
    with pytest.raises(ValueError, match="loads weights"):
        ImportedModel(address="torchvision.models:resnet18", arguments={"weights": "DEFAULT"})
    with pytest.raises(TypeError, match=r"unknown argument widht; it takes .*width_per_group"):
        ImportedModel(address="torchvision.models:resnet18", arguments={"widht": 1})


def test_clipped_optimizer_steps_as_by_hand() -> None:
    with pytest.raises(ValueError, match=r"os:system is no torch\.optim\.Optimizer"):
        build_optimizer(torch.nn.Linear(1, 1), OptimizerSpec(name="imported", address="os:system", lr=1))
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    arguments = {"momentum": 0.9}
    spec = OptimizerSpec(name="imported", address="torch.optim:SGD", lr=0.5, weight_decay=0.1, clip_norm=0.25)
    ours = build_optimizer(models[0], dataclasses.replace(spec, decay="kernels", arguments=arguments))
    groups = [{"params": [models[1].weight], "weight_decay": 0.1}, {"params": [models[1].bias]}]
    by_hand = torch.optim.SGD(groups, lr=0.5, **arguments)
    for _ in range(3):
        for model in models:
            model.zero_grad()
            (100 * model(torch.ones(4, 3)).square().sum()).backward()
        torch.nn.utils.clip_grad_norm_(models[1].parameters(), 0.25)
        ours.step()
        by_hand.step()
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_recipe_changes_training_alone_and_draws_from_the_step_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=generator)
    data = LabelledImages(images, torch.tensor([0, 0, 0, 0, 0, 0, 1, 2]))
    optimizer = OptimizerSpec(name="sgd", lr=1)
    plain = ImageClassification(
        data, Protocol(optimizer=optimizer, batch_size=8, epochs=1, mean=(0.5,) * 3, std=(0.5,) * 3)
    )
    spec = RecipeSpec(label_smoothing=0.1, class_weights="balanced", transforms=({"name": "RandAugment"},))
    task = RecipeTask(
        learned(plain),
        dataclasses.replace(spec, mix=({"name": "MixUp", "alpha": 0.5}, {"name": "CutMix", "alpha": 1})),
        3,
        torch.arange(8),
    )
    some = RecipeTask(learned(plain), spec, 3, torch.tensor([0, 6, 7]))
    assert some.weights is not None and some.weights.tolist() == [1, 1, 1], "of the rows that are trained on"
    logits, weights = torch.randn(8, 3), torch.tensor([8 / 18, 8 / 3, 8 / 3])
    expected = torch.nn.functional.cross_entropy(logits, data.labels, weights, label_smoothing=0.1)
    assert torch.allclose(task.loss(logits, data.labels), expected)
    with torch.inference_mode():
        assert task.loss(logits, data.labels) == plain.loss(logits, data.labels)
    before, rows = torch.get_rng_state(), torch.arange(8)
    (inputs, labels), (again, _), (other, _) = (
        task.training_batch(rows, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(inputs, again) and not torch.equal(inputs, other)
    assert torch.equal(before, torch.get_rng_state()), "dropout goes on from where it was"
    assert labels.shape == (8, 3) and torch.allclose(labels.sum(1), torch.ones(8))
    assert torch.equal(next(task.plain_batches(rows, 8))[0], next(plain.plain_batches(rows, 8))[0])
    with pytest.raises(ValueError, match="can't be shared among devices"):
        with_recipe(None, 2)  # type: ignore[arg-type]  # refused before it is used


def test_tied_weights_of_a_language_model_are_kept(tmp_path: Path) -> None:
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16, "bos_token_id": 0, "eos_token_id": 0}
    address = "transformers.models.gpt2.modeling_gpt2:GPT2LMHeadModel"
    spec = ModelSpec(path=IMPORTED_MODEL, arguments={"address": address, "arguments": sizes, "context": 4})
    network, tokens = build_model(spec).eval(), torch.arange(8).view(2, 4)
    assert network.network.config.n_positions == 4, "as long as the data's windows"
    contract = InputContract(
        model=spec, shape=(4,), mean=(), std=(), classes=(), run_key="k", dataset="t", data_digest="d", kind="text"
    )
    (tmp_path / "weights.safetensors").write_bytes(dump_checkpoint(network, contract))
    again = load_predictor(tmp_path / "weights.safetensors").network
    assert torch.equal(network(tokens), again(tokens)) and network(tokens).shape == (2, 4, 16)
    assert again.network.lm_head.weight is again.network.transformer.wte.weight

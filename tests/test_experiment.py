"""Params contain the printed numbers, the plans derived from them are correct, and every mistake is one clear error."""

import dataclasses
import shutil
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.params.experiment import (
    ArmTemplate,
    ParamsError,
    describe_cut,
    expand_arms,
    load_params,
    plan_runs,
    resolve_protocol,
)
from tests.project import REPOSITORY, edit

EXPERIMENTS = ("ninformer-mnist", "ninformer-cifar10", "ninformer-cifar100", "nmn-gpt")
CIFAR10 = "params/ninformer-cifar10.yaml"
CIFAR100 = "params/ninformer-cifar100.yaml"  # inherits from it


@pytest.fixture(scope="module")
def index() -> str:
    """Index reduced to one paper's experiments, which load faster."""
    content = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    content["experiments"] = {name: content["experiments"][name] for name in EXPERIMENTS}
    return yaml.safe_dump(content, sort_keys=False)


@pytest.fixture
def project(index: str, tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text(index, encoding="utf-8")
    (tmp_path / "params").mkdir()
    for name in EXPERIMENTS:
        shutil.copy(REPOSITORY / "params" / f"{name}.yaml", tmp_path / "params")
    return tmp_path


def test_paper_profile_cuts_nothing() -> None:
    params = load_params(REPOSITORY)
    for experiment in params.experiments.values():
        assert describe_cut(experiment, params.profiles["paper"], params.datasets[experiment.dataset]) == ""
        assert resolve_protocol(experiment, params.profiles["paper"]) == experiment.printed


def test_cut_is_described() -> None:
    params = load_params(REPOSITORY)
    experiment = params.experiments["ninformer-cifar100"]
    cut = describe_cut(experiment, params.profiles["quick"], params.datasets["cifar100"])
    assert cut == "3 of 100 epochs, 12,500 of 50,000 training images, 1 of 5 replicates"
    folds = describe_cut(params.experiments["dac-vgg-cifar100"], params.profiles["quick"], params.datasets["cifar100"])
    assert folds == "3 of 256 epochs, 12,500 of 50,000 training images, 1 of 5 replicates"
    smoke = describe_cut(experiment, params.profiles["smoke"], params.datasets["cifar100"])
    assert smoke.startswith("placeholder data, ")


def test_partial_test_set_is_described() -> None:
    params = load_params(REPOSITORY)
    profile = dataclasses.replace(params.profiles["paper"], test_rows=2000, overrides={"observe_test": False})
    for name, part in (
        ("ninformer-cifar100", "2,000 of 10,000 test images"),
        ("dac-sgemm", "2,000 of 36,240 test rows"),
        ("nmn-gpt", "2,000 of 87,890 test windows of 1,024 tokens"),
    ):
        experiment = params.experiments[name]
        cut = describe_cut(experiment, profile, params.datasets[experiment.dataset])
        assert cut.removeprefix("no test curves, ") == part


def test_other_departures_from_the_paper_are_described(project: Path) -> None:
    changes = {"precision": "bfloat16", "compile": True}
    edit(project / "params.yaml", lambda p: p["profiles"]["paper"]["overrides"].update(changes))
    params = load_params(project)
    cut = describe_cut(params.experiments["ninformer-mnist"], params.profiles["paper"], params.datasets["mnist"])
    assert cut == "bfloat16 instead of float32, another compile"
    (gpt,) = [name for name in params.experiments if name.endswith("gpt")]
    assert describe_cut(params.experiments[gpt], params.profiles["paper"], params.datasets["openwebtext"]) == (
        "another compile"
    )


def test_arms_share_the_protocol_except_declared_fields() -> None:
    params = load_params(REPOSITORY)
    for experiment in params.experiments.values():
        runs = plan_runs(experiment, params.profiles["paper"], params.datasets[experiment.dataset])
        own = {name: getattr(experiment.printed, name) for name in experiment.varied}
        first, *others = [dataclasses.replace(run.spec.protocol, **own) for run in runs]
        assert all(other == first for other in others)
        assert len({(run.name.arm, run.spec.replicate) for run in runs}) == len(runs)


def test_arm_inherits_everything_that_it_does_not_override() -> None:
    arms = load_params(REPOSITORY).experiments["ninformer-cifar100"].arms
    assert arms["vit-no-dropout"].model == {**arms["vit"].model, "dropout": 0.0}
    assert arms["vit-positions"].model == {**arms["vit"].model, "name": "PositionedViT"}


def test_short_profiles_train_only_the_arms_of_the_table() -> None:
    params = load_params(REPOSITORY)
    experiment = params.experiments["ninformer-cifar100"]
    planned = {
        profile: {run.name.arm for run in plan_runs(experiment, params.profiles[profile], params.datasets["cifar100"])}
        for profile in params.profiles
    }
    assert planned["smoke"] == planned["quick"] == {"vit", "mlp-mixer", "local-vit", "ninformer"}
    assert planned["paper"] == set(experiment.arms)
    named = plan_runs(experiment, params.profiles["quick"], params.datasets["cifar100"], every_role=True)
    assert {run.name.arm for run in named} == set(experiment.arms)


def test_quick_bfloat16_differs_from_quick_only_in_precision() -> None:
    params = load_params(REPOSITORY)
    half, quick = params.profiles["quick-bfloat16"], params.profiles["quick"]
    assert half == dataclasses.replace(quick, overrides={**quick.overrides, "precision": "bfloat16"})
    # If both have results, those in the printed precision are shown.
    assert list(params.profiles).index("quick-bfloat16") < list(params.profiles).index("quick")


def test_arm_may_override_protocol_fields(project: Path) -> None:
    def set_sgd(params: Any) -> None:
        params["arms"]["vit"]["protocol"] = {"optimizer": {"name": "sgd", "lr": 0.1}}

    edit(project / CIFAR10, set_sgd)
    params = load_params(project)
    experiment = params.experiments["ninformer-cifar100"]
    assert experiment.varied == ("optimizer",)
    runs = plan_runs(experiment, params.profiles["quick"], params.datasets["cifar100"])
    names = {run.name.arm: run.spec.protocol.optimizer.name for run in runs}
    assert names == {"vit": "sgd", "mlp-mixer": "adam", "local-vit": "adam", "ninformer": "adam"}
    assert {run.spec.protocol.epochs for run in runs} == {3}, "the profile's cut applies to every arm"


def test_name_of_a_data_set_that_no_stage_can_have_is_refused(project: Path) -> None:
    edit(project / "params.yaml", lambda index: index["datasets"].update({"my data/1": index["datasets"]["mnist"]}))
    with pytest.raises(ParamsError, match=r"datasets\.my data/1 has other characters .* call it my-data-1"):
        load_params(project)


IN_INDEX = {
    "profile = smoek": "params.yaml: profile is 'smoek' (did you mean smoke?)",
    "seed = 1": "params.yaml: unknown key seed; known: ",
    "experiments.ninformer-mnist.paper = nin": "experiments.ninformer-mnist.paper is 'nin'",
    "experiments.ninformer-mnist.dataset = minst": "is 'minst' (did you mean mnist?); known: cifar10, cifar100, ",
    "experiments = {resnet1.5: {paper: ninformer, dataset: mnist}}": "files; call it resnet1-5",
    "experiments.-x = {paper: ninformer, dataset: mnist}": "experiments.-x has other characters than letters",
    "experiments.lost = {paper: ninformer, dataset: mnist}": "lost.yaml: no such file",
    "profiles.quick.overrides.epoch = 1": "profiles.quick.overrides.epoch (did you mean epochs?)",
    "profiles.paper.overrides.batch_size = 0": "overrides.batch_size is 0; expected",
    "profiles.paper.overrides.epochs = three": "overrides.epochs is 'three'",
    "profiles.quick.replicates = 0": "profiles.quick.replicates is 0",
    "profiles.quick.replicates = -1": "profiles.quick.replicates is -1",
    "profiles.quick.latency.repeats = 0": "quick.latency.repeats is 0",
    "profiles.quick.test_rows = 100": "quick.test_rows is set; its overrides need observe_test: false",
    "profiles.smoke.test_rows = 0": "profiles.smoke.test_rows is 0",
    "rates.cpu.usd_per_hour = -1": "rates.cpu.usd_per_hour is -1",
}
IN_EXPERIMENT = {
    "protocol.batchsize = 4": "unknown key protocol.batchsize (did you mean batch_size?)",
    "arms.vit.protocol = {epoch: 3}": "unknown key arms.vit.protocol.epoch (did you mean epochs?)",
    "protocol.optimizer.damping = 0.1": "protocol.optimizer.damping is set, but adam doesn't use it",
    "protocol.schedule = {name: steps}": "protocol.schedule is 'steps'; it needs milestones",
    "protocol.early_stop = {from_epoch: 1, patience: 1, min_delta: 0}": (
        "protocol.early_stop looks at validation images, but protocol.split.kind is 'none'"
    ),
    "protocol.epochs = many": "protocol.epochs is 'many'; input should be a valid integer",
    "protocol.optimizer.name = adamm": "name is 'adamm' (did you mean adam?); known: adam, adamw, cg_fac, kfac",
    "protocol.optimizer.learning_rate = 1": "unknown key protocol.optimizer.learning_rate",
    "-protocol.epochs": "protocol.epochs is missing",
    "-protocol.epochs; protocol.epoch = 100": "unknown key protocol.epoch (did you mean epochs?)",
    "protocol.mean = [0.5]": "protocol.mean has 1 values; images of cifar10 have 3 channels",
    "protocol.epochs = 0": "protocol.epochs is 0; expected at least 1",
    "protocol.split = {kind: folds}": "protocol.split.folds is None; expected at least 2",
    "protocol.seeds = [0, 0]": "protocol.seeds is [0, 0]",
    "protocol.seeds = [0, 2147483648]": "protocol.seeds has 2147483648; expected numbers below 2^31",
    "-protocol.seeds": "protocol.seeds is None",
    "arms.vit.role = hero": "arms.vit.role is 'hero'",
    "arms.vit.model.name = VIT": (
        "arms.vit.model.name is 'VIT' (did you mean ViT?); known: LocalViT, MLPMixer, NiNformer, PositionedViT, "
        "SeparableLocalViT, SharedNormNiNformer, SqueezeExciteLocalViT, ViT"
    ),
    "arms.vit.model.width = 512": "arms.vit.model.width (did you mean depth?); known: depth, dim, dropout, mlp_dim, ",
    "arms.vit.like = nobody": "arms.vit.like is 'nobody'; known above it: ",
    "arms.vit.model.depth = 4.5": "arms.vit.model.depth is 4.5; expected int",
    "arms.vit.model.depth = true": "arms.vit.model.depth is True; expected int",
    "-arms.vit.model.num_heads": "arms.vit.model.num_heads is missing",
    "arms.vit.model.num_classes = 7": "unknown key arms.vit.model.num_classes",
    "arms = {}": "arms is {}",
    "protocol.optimizer.lr = .nan": "protocol.optimizer.lr is nan; expected",
    "protocol.optimizer.lr = .inf": "protocol.optimizer.lr is inf; expected",
    "protocol.optimizer.lr = 0": "protocol.optimizer.lr is 0.0; expected above 0",
    "protocol.optimizer.betas = [0.9, 1]": "betas is [0.9, 1.0]; expected",
    "protocol.std = [0.5, 0, 0.5]": "protocol.std is [0.5, 0.0, 0.5]; expected above 0",
    "protocol.augmentation = {crop_padding: -4}": "protocol.augmentation.crop_padding is -4; expected at least 0",
    "arms.vit.protocol = {optimizer: {name: adam, lr: -1}}": "arms.vit.protocol.optimizer.lr is -1.0; expected above 0",
}


def apply(changes: str, document: Any) -> None:
    """Set `a.b = value`, or delete `-a.b`."""
    for change in changes.split("; "):
        path, _, value = change.partition(" = ")
        *above, key = path.removeprefix("-").split(".")
        part = reduce(getitem, above, document)
        if change.startswith("-"):
            del part[key]
        else:
            part[key] = yaml.safe_load(value)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        *(("params.yaml", changes, message) for changes, message in IN_INDEX.items()),
        *((CIFAR10, changes, message) for changes, message in IN_EXPERIMENT.items()),
    ],
)
def test_mistake_reports_file_path_and_choices(project: Path, file: str, changes: str, message: str) -> None:
    edit(project / file, partial(apply, changes))
    with pytest.raises(ParamsError) as caught:
        load_params(project)
    assert message in str(caught.value)
    assert file in str(caught.value) or "params" in str(caught.value)


def test_file_inherits_everything_that_it_does_not_override(project: Path) -> None:
    for name in (CIFAR10, CIFAR100):
        assert ("like" in yaml.safe_load((project / name).read_text(encoding="utf-8"))) is (name == CIFAR100)
    edit(project / CIFAR10, lambda p: p["protocol"].update(epochs=7))
    edit(project / CIFAR10, lambda p: p["protocol"].update(augmentation={"crop_padding": 2, "horizontal_flip": True}))
    edit(project / CIFAR100, lambda p: p.update(protocol={"augmentation": {"crop_padding": 3}}))
    edit(
        project / CIFAR100,
        lambda p: p.update(arms={"vit": {"role": "baseline", "title": "small", "model": {"name": "ViT"} | SMALL}}),
    )
    ten, hundred = (load_params(project).experiments[f"ninformer-cifar{classes}"] for classes in (10, 100))
    assert hundred.printed.epochs == ten.printed.epochs == 7
    crop = hundred.printed.augmentation
    assert (crop.crop_padding, crop.horizontal_flip) == (3, False), "a protocol field is replaced as a whole"
    assert hundred.arms["vit"].model["depth"] == 1 and hundred.arms["vit"].title == "small"
    assert list(hundred.arms) == list(ten.arms) and hundred.arms["ninformer"].model == ten.arms["ninformer"].model
    assert hundred.title != ten.title


SMALL = {"patch_size": 4, "dim": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8, "dropout": 0.0}


def test_file_may_inherit_from_one_outside_the_index(project: Path) -> None:
    edit(project / "params.yaml", lambda p: p["experiments"].pop("ninformer-cifar10"))
    assert load_params(project).experiments["ninformer-cifar100"].printed.batch_size == 128


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("ninformer-cifar01", "like is 'ninformer-cifar01' (did you mean ninformer-cifar10?); known: "),
        ("ninformer-cifar100", "like is 'ninformer-cifar100'"),
        ("ninformer-mnist", "like is 'ninformer-mnist', which is itself like 'ninformer-cifar10'; name that one"),
    ],
)
def test_invalid_like_is_reported(project: Path, like: str, message: str) -> None:
    edit(project / CIFAR100, lambda p: p.update(like=like))
    with pytest.raises(ParamsError) as caught:
        load_params(project)
    assert str(caught.value).startswith(f"{project / CIFAR100}: {message}")


def test_inherited_file_may_not_be_a_list(project: Path) -> None:
    """Even if the index doesn't list that file as an experiment."""
    edit(project / "params.yaml", lambda p: p["experiments"].pop("ninformer-cifar10"))
    (project / CIFAR10).write_text("[vit]\n", encoding="utf-8")
    with pytest.raises(ParamsError) as caught:
        load_params(project)
    assert str(caught.value) == f"{project / CIFAR10}: expected title, protocol and arms; found ['vit']"


def test_mistake_is_reported_in_the_file_that_contains_it(project: Path) -> None:
    """MNIST's file inherits from CIFAR-10's and comes first in the index."""
    edit(project / CIFAR10, lambda p: p["protocol"].update(epochs="many"))
    with pytest.raises(ParamsError) as caught:
        load_params(project)
    assert str(caught.value).startswith(f"{project / CIFAR10}: protocol.epochs")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("params.yaml", b"profile: [smoke", r"not YAML: while parsing a flow sequence at line 1, column 10 did"),
        ("params.yaml", b"# one\n# caf\xe9\n", r"params.yaml, line 2: byte 0xe9 is not UTF-8"),
        (CIFAR10, b"title: a\ntitle: b\n", r"line 2: key 'title' occurs twice, first in line 1; keep one"),
        *(
            (CIFAR10, content, r"ninformer-cifar10.yaml: the file is empty")
            for content in (b"", b"\n\n", b"# nothing\n")
        ),
    ],
)
def test_unreadable_file_is_one_error(project: Path, file: str, content: bytes, message: str) -> None:
    (project / file).write_bytes(content)
    with pytest.raises(ParamsError, match=message):
        load_params(project)


def test_documented_profile_works(project: Path) -> None:
    """Copied from the page into params.yaml, it plans runs."""
    page = (REPOSITORY / "docs" / "train.md").read_text(encoding="utf-8")
    own = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])["profiles"]
    edit(project / "params.yaml", lambda params: params["profiles"].update(own))
    params = load_params(project)
    experiment = params.experiments["ninformer-cifar100"]
    runs = plan_runs(experiment, params.profiles["evening"], params.datasets["cifar100"])
    assert {run.spec.protocol.epochs for run in runs} == {10}
    assert {run.name.replicate for run in runs} == {0, 1}


def template(**fields: Any) -> ArmTemplate:
    return ArmTemplate(**{"role": "baseline", "title": "A net"} | fields)


def test_grid_expands_to_every_combination() -> None:
    arms = expand_arms(
        {
            "net{depth}x{width}": template(
                title="Net {depth}", grid={"depth": [1, 2], "width": [3, 4]}, model={"name": "Net", "bias": True}
            )
        }
    )
    assert list(arms) == ["net1x3", "net1x4", "net2x3", "net2x4"]
    assert arms["net2x3"].model == {"name": "Net", "bias": True, "depth": 2, "width": 3}
    assert arms["net2x3"].title == "Net 2"


def test_grid_arms_inherit_from_and_compare_with_their_partner() -> None:
    arms = expand_arms(
        {
            "base{depth}": template(grid={"depth": [1, 2]}, model={"name": "Base"}, protocol={"epochs": 3}),
            "dac{depth}": template(
                role="proposed",
                like="base{depth}",
                against="base{depth}",
                grid={"depth": [1, 2]},
                model={"name": "DAC"},
            ),
        }
    )
    assert arms["dac2"].model == {"name": "DAC", "depth": 2}
    assert (arms["dac2"].protocol, arms["dac2"].against, arms["dac2"].role) == ({"epochs": 3}, "base2", "proposed")


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"net": template(grid={"depth": [1, 2]})}, "arms.net: net occurs twice"),
        ({"net{width}": template(grid={"depth": [1]})}, "arms.net{width}: 'net{width}' has braces for depth only"),
        ({"net": template(like="other")}, "arms.net.like is 'other'; known above it: "),
        ({"net": template(against="other")}, "arms.net.against is 'other'; known: net"),
        ({"net": template(against="net")}, "arms.net.against is the arm itself"),
        ({"net{width}": template(grid={"width": []})}, "grid.width is an empty list"),
    ],
)
def test_mistake_in_a_grid_is_reported(arms: dict[str, ArmTemplate], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{", r"\{").replace(".", r"\.")):
        expand_arms(arms)

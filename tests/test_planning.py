"""`claimcheck plan`: the cost of training, computed from the real params without training."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from stages.cli import main
from stages.datasets.manifest import Manifest
from stages.datasets.prepare import count_rows, prepare
from stages.evaluation.flops import FlopCounts
from stages.params.experiment import Params, describe_cut, load_params, plan_runs
from stages.results import describe_fidelity, kind_of_run
from stages.run import ModelSpec, Replicate, SplitSpec, training_counts
from stages.runs.evidence import EvidenceLine, read_lines
from stages.runs.store import RunStore
from stages.scheduling.planning import (
    PlannedCost,
    add_up,
    expected_epochs,
    in_other_profile,
    makespan,
    plan_costs,
    what_counts,
)
from stages.scheduling.runner import keyed_runs
from stages.training.protocol import training_rows
from stages.verdicts import Status
from tests.claims.lines import claims, judge, results, trials
from tests.project import EXPERIMENT, captured, edit, make_project
from tests.test_claims import FIVE

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(ROOT)


def one_flop(model: ModelSpec, shape: tuple[int, ...], vocabulary: int | None) -> int:
    return 1


def test_flops_of_a_model_equal_those_of_its_published_results(params: Params, tmp_path: Path) -> None:
    (line,) = (
        line.result
        for line in read_lines(ROOT / "data/evidence/ninformer-mnist.jsonl", EvidenceLine)
        if line.result.arm == "mlp-mixer"
    )
    published = next(row.value for row in line.metrics if row.metric == "flops_per_image")
    model = ModelSpec(**line.spec["model"])
    assert FlopCounts(tmp_path / "flops.json").count(model, params.datasets["mnist"].shape, None) == published


def test_cost_of_an_experiment_equals_a_hand_calculation(params: Params) -> None:
    """NiNformer as printed: 100 epochs of 391 steps, with tests after each epoch and at the end."""
    (cost,) = plan_costs(params, params.profiles["paper"], ["ninformer-cifar100"], one_flop).values()
    runs = len(params.experiments["ninformer-cifar100"].arms) * len(params.experiments["ninformer-cifar100"].seeds)
    assert (cost.runs, cost.epochs, cost.steps) == (runs, 100 * runs, 39_100 * runs)
    assert cost.flops == runs * (3 * 50_000 * 100 + 101 * 10_000)


def test_page_has_the_planned_trainings_and_steps(params: Params) -> None:
    """Those of the five papers; FLOPs and hours come from `claimcheck plan`, which is too slow for a test."""
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| [\w ]+ \| ([\d,]+) \| ([\d,]+) \| [\d.]+e\d+ \|", page, flags=re.MULTILINE)
    known = [name for name, experiment in params.experiments.items() if experiment.paper in FIVE]
    costs = plan_costs(params, params.profiles["paper"], known, one_flop)
    papers = dict.fromkeys(params.experiments[name].paper for name in costs)
    sums = [add_up([costs[name] for name in costs if params.experiments[name].paper == paper], []) for paper in papers]
    assert shown == [(f"{cost.runs:,}", f"{cost.steps:,}") for cost in (*sums, add_up(sums, []))]


@pytest.mark.parametrize(
    "split",
    [SplitSpec(), SplitSpec(kind="fraction", fraction=0.15, seed=1), SplitSpec(kind="folds", folds=5)],
    ids=["none", "fraction", "folds"],
)
@pytest.mark.parametrize("train_images", [None, 40])
def test_planned_training_and_validation_rows_equal_the_loops(
    params: Params, split: SplitSpec, train_images: int | None
) -> None:
    printed = params.experiments["dac-vgg-cifar10"].printed
    protocol = dataclasses.replace(printed, split=split, train_images=train_images)
    for fold in range(5) if split.kind == "folds" else [None]:
        for n in (203, 30):
            rows = training_rows(n, protocol, Replicate(seed=0, fold=fold))
            assert training_counts(n, protocol, Replicate(seed=0, fold=fold)) == tuple(map(len, rows))


@pytest.mark.parametrize("profile", ["smoke", "quick", "paper"])
def test_plan_has_one_training_per_run_key(params: Params, profile: str) -> None:
    params = dataclasses.replace(params, profile_name=profile)
    keys = {
        run.spec.run_key
        for experiment in params.experiments.values()
        for run in keyed_runs(experiment, params, experiment.dataset)
    }
    costs = plan_costs(params, params.profile, params.experiments, one_flop)
    assert add_up(costs.values(), params.rates).runs == len(keys)


def test_shared_runs_of_two_experiments_are_counted_once(params: Params) -> None:
    again = dataclasses.replace(params.experiments["ninformer-mnist"], name="again")
    shared = dataclasses.replace(params, experiments={**params.experiments, "again": again})
    costs = plan_costs(shared, params.profiles["paper"], ["ninformer-mnist", "again"], one_flop)
    assert costs["ninformer-mnist"].runs > 0
    assert costs["again"] == add_up([], params.rates)


def test_hours_follow_flops_with_a_minimum_per_step(params: Params) -> None:
    def time(flops: int) -> PlannedCost:
        profile = params.profiles["paper"]
        (cost,) = plan_costs(params, profile, ["ninformer-mnist"], lambda model, shape, vocabulary: flops).values()
        return cost

    small, large = time(1), time(10**10)
    for device, rate in params.rates.items():
        start = small.runs * rate.start_seconds
        assert small.seconds[device] == pytest.approx(start + small.steps * rate.step_seconds)
        assert large.seconds[device] == pytest.approx(start + large.flops / rate.flops_per_second["float32"])
        assert large.hours(device) == large.seconds[device] / 3600
        assert large.limit_hours(device) == pytest.approx(large.flops / rate.peak_flops_per_second["float32"] / 3600)
        assert large.limit_hours(device) < large.hours(device)


def test_stacked_networks_share_steps_if_a_rate_is_known(params: Params) -> None:
    """With five seeds per network of SGEMM, a GPU takes a fifth of the steps; a CPU runs each network separately."""
    experiment, profile = params.experiments["dac-sgemm"], params.profiles["paper"]
    assert len(experiment.seeds) == 5
    (cost,) = plan_costs(params, profile, ["dac-sgemm"], one_flop).values()
    (in_tf32,) = plan_costs(params, params.profiles["paper-tf32"], ["dac-sgemm"], one_flop).values()
    assert in_tf32.stacked == cost.stacked == cost.runs
    gpu = params.rates["cuda"]
    assert gpu.stack_step_seconds is not None
    assert cost.seconds["cuda"] == pytest.approx(cost.steps * gpu.stack_step_seconds / 5)
    assert cost.alone_seconds["cuda"] == pytest.approx(cost.steps * gpu.step_seconds)
    assert cost.starting_seconds == cost.seconds
    cpu = params.rates["cpu"]
    assert cost.seconds["cpu"] == cost.alone_seconds["cpu"]
    assert cost.seconds["cpu"] == pytest.approx(cost.steps * cpu.step_seconds + cost.runs * cpu.start_seconds)
    (other,) = plan_costs(params, profile, ["ninformer-mnist"], lambda model, shape, vocabulary: 10**10).values()
    assert (other.stacked, other.starting_seconds["cuda"]) == (0, 0.0) and other.seconds == other.alone_seconds


def test_plan_explains_its_counts(params: Params) -> None:
    (cost,) = plan_costs(params, params.profiles["paper"], ["dac-sgemm"], one_flop).values()
    said = list(what_counts(cost, params.rates))
    hours = f"{cost.hours('cuda'):.2g}"
    assert said[0].startswith("As printed, everything takes ") and said[1].endswith(
        "are counted as if each were trained alone"
    )
    assert (
        said[2].startswith(f"As printed, everything takes {hours} hours on cuda: ")
        and f" and {hours} to launch" in said[2]
    )
    assert said[3] == (
        f"  {cost.runs:,} stacked trainings share the steps of their stack; if each were trained alone, everything "
        f"would take {cost.alone_seconds['cuda'] / 3600:.0f} hours"
    )


def test_early_stopping_shortens_the_planned_epochs(params: Params) -> None:
    printed = params.experiments["dac-sgemm"].printed
    assert (printed.epochs, expected_epochs(printed)) == (1000, 350)
    assert expected_epochs(dataclasses.replace(printed, epochs=3)) == 3
    assert expected_epochs(params.experiments["dac-vgg-cifar10"].printed) == 256


@pytest.mark.parametrize("name", ["mnist", "stl10", "tinyimagenet32", "sgemm", "openwebtext"])
def test_placeholder_data_have_the_planned_numbers_of_rows(params: Params, name: str, tmp_path: Path) -> None:
    source = params.datasets[name]
    info = prepare(source, Manifest(dataset=name, source="embedded"), tmp_path, tmp_path / "packed")
    planned = count_rows(name, source, is_stand_in=True)
    window = info.shape[0] if source.kind == "text" else 1
    last = 1 if source.kind == "text" else 0
    assert planned.shape == info.shape
    assert (planned.train, planned.test) == tuple((n - last) // window for n in (info.train_images, info.test_images))


def test_flops_are_counted_once_per_model(params: Params, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "flops.json"
    arm = keyed_runs(params.experiments["ninformer-mnist"], params, "digest")[0].spec.model
    first = FlopCounts(path)
    flops = first.count(arm, (1, 28, 28), None)
    first.save()
    second = FlopCounts(path)
    assert (second.count(arm, (1, 28, 28), None), second.added) == (flops, 0)
    third = FlopCounts(path)
    for depth, counts in enumerate((second, third), start=1):
        counts.count(dataclasses.replace(arm, arguments={**arm.arguments, "depth": depth}), (1, 28, 28), None)
        assert counts.added == 1
        counts.save()
    assert len(FlopCounts(path).known) == 3, "saving keeps what others saved since the file was read"
    path.write_text("not ours", encoding="utf-8")
    assert FlopCounts(path).known == {}


@pytest.mark.slow
def test_plan_with_known_flops_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from stages.cli import main; main(['plan', 'ninformer-mnist']); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    runs = [captured(command, cwd=ROOT, env={"CLAIMCHECK_HOME": str(tmp_path)}) for _ in range(2)]
    assert [run.returncode for run in runs] == [1, 0], runs[1].stderr
    assert runs[0].stdout == runs[1].stdout


def test_plan_lists_experiments_and_papers_under_every_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CLAIMCHECK_HOME", str(tmp_path))
    monkeypatch.setattr(FlopCounts, "count", lambda self, model, shape, vocabulary: 10**9)
    assert main(["plan", "ninformer-mnist", "brownian-cifar10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["ninformer-mnist", "brownian-cifar10"]
    table = [line.split(", ")[1].split()[0] for line in lines if line.startswith(("smoke, ", "quick, ", "paper, "))]
    assert table == ["ninformer", "brownian", "all"] * 3
    assert any("one NVIDIA H100, 2.50 USD an hour" in line for line in lines)
    assert not any(line.startswith("Goal") for line in lines), "the goal covers all experiments together"


def test_plan_compares_the_total_with_the_goal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], params: Params
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CLAIMCHECK_HOME", str(tmp_path))
    monkeypatch.setattr(FlopCounts, "count", lambda self, *of_model: one_flop(*of_model))
    assert main(["plan"]) == 0
    total = add_up(
        plan_costs(params, params.profiles["paper"], params.experiments, one_flop).values(), params.rates
    ).hours("cuda")
    said = " ".join(capsys.readouterr().out.split())
    assert f" Goal: everything as printed within 40 hours of one NVIDIA H100; the plan takes {total:.0f}, " in said


def test_makespan_starts_the_longest_trainings_first() -> None:
    assert makespan([2, 3, 4, 5], 2) == 7
    assert makespan([10, 1, 1], 2) == 10
    assert makespan([], 3) == 0


def test_measured_plan_times_real_steps_once_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test's small networks take less than a second per step, and 20 epochs more than one."""

    def measured(epochs: int) -> tuple[float, str]:
        edit(project / "params.yaml", lambda index: index["profiles"]["smoke"]["overrides"].update(epochs=epochs))
        assert main(["plan", EXPERIMENT, "--measure", "--device", "cpu", "--json"]) == 0
        out, err = capsys.readouterr()
        plan = json.loads(out)["measured"]
        assert plan["experiments"][EXPERIMENT]["missing"] == 2
        return plan["seconds"], err

    project = make_project(tmp_path / "project", epochs=1)
    monkeypatch.chdir(project)
    one, said = measured(1)
    assert "measuring 2 networks, 1 at a time" in said
    twenty, again = measured(20)
    assert "measuring" not in again, "measured speeds don't depend on the number of epochs and are kept"
    assert 0 < one < twenty
    trained = RunStore(project / "data" / "store").root / "runs"
    assert not trained.exists(), "measuring publishes no outcome"


IN_BFLOAT16 = ("nmn-gpt",)
SPREAD = (0.0, 0.0004, -0.0004, 0.0002, -0.0002)
MNIST = {arm: [mean + step for step in SPREAD] for arm, mean in (("local-vit", 0.9779), ("ninformer", 0.9861))}
VALUE, LEAD = "ninformer.table2.mnist.ninformer", "ninformer.rank.mnist.ninformer"


def test_paper_tf32_differs_from_paper_only_in_float32_products(params: Params) -> None:
    tf32, paper = params.profiles["paper-tf32"], params.profiles["paper"]
    assert tf32 == dataclasses.replace(paper, float32_as="tf32")
    for name, experiment in params.experiments.items():
        planned = (plan_runs(experiment, profile, params.datasets[experiment.dataset]) for profile in (tf32, paper))
        for rounded, printed in zip(*planned, strict=True):
            precision = "bfloat16" if name in IN_BFLOAT16 else "tf32"
            protocol = dataclasses.replace(printed.spec.protocol, precision=precision)
            assert rounded.spec == dataclasses.replace(printed.spec, protocol=protocol)


def test_result_states_its_precision(params: Params) -> None:
    for name, experiment in params.experiments.items():
        cut = describe_cut(experiment, params.profiles["paper-tf32"], params.datasets[experiment.dataset])
        said = describe_fidelity("full", "paper-tf32", cut)
        if name in IN_BFLOAT16:
            assert (cut, said) == ("", "full-length training on official data (profile paper-tf32)")
        else:
            label = (
                "official data, in a run in another precision (tf32 instead of float32): a first look, not a verdict"
            )
            assert (cut, said) == ("tf32 instead of float32", label)
    assert kind_of_run("3 of 100 epochs, bfloat16 instead of float32") == "shortened run"
    assert kind_of_run("batches of 2 instead of 128") == "shortened run"


def test_tf32_results_decide_nothing_and_yield_to_printed_precision() -> None:
    in_tf32 = trials(results("ninformer-mnist", MNIST, profile="paper-tf32"))
    value, lead = judge(claims()[VALUE], claims()[LEAD], entered=in_tf32)
    assert (value.verdict.status, value.ours) == (Status.NOT_TESTED, None)
    assert value.verdict.explanation.startswith("Real data in tf32 instead of float32; a number needs all of it")
    assert lead.verdict.status is Status.AGREES
    assert "At 100% of the printed epochs, in tf32 instead of float32, the gain is" in lead.verdict.explanation
    few = {"local-vit": MNIST["local-vit"][:3], "ninformer": [value - 0.02 for value in MNIST["ninformer"][:3]]}
    printed = trials(results("ninformer-mnist", few))
    (lead,) = judge(claims()[LEAD], entered=[*in_tf32, *printed])
    assert (lead.verdict.status, lead.verdict.n) == (Status.REVERSED, 3)


def test_tf32_products_have_their_own_rate_and_launch_time_is_unchanged(params: Params) -> None:
    def plan(profile: str, flops: int) -> PlannedCost:
        counted = plan_costs(params, params.profiles[profile], ["ninformer-mnist"], lambda model, shape, text: flops)
        return add_up(counted.values(), params.rates)

    (tf32, printed), gpu = (plan(name, 10**10) for name in ("paper-tf32", "paper")), params.rates["cuda"]
    assert tf32.flops == printed.flops
    assert tf32.seconds["cuda"] == pytest.approx(tf32.flops / gpu.flops_per_second["tf32"])
    assert tf32.limit_seconds["cuda"] == pytest.approx(tf32.flops / gpu.peak_flops_per_second["tf32"])
    assert tf32.seconds["cpu"] > printed.seconds["cpu"], "emulated on a CPU"
    assert plan("paper-tf32", 1).seconds["cuda"] == plan("paper", 1).seconds["cuda"]
    (said,) = in_other_profile("paper-tf32", tf32, printed, params.rates)
    assert said.startswith("Under paper-tf32, everything takes ") and " hours on cuda (" in said

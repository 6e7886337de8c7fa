"""The paper's findings, and docs/papers/hyperbf.md compared with them and the code."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.finding import Finding
from stages.papers.hyperbf import HyperBF, HyperBFAsWritten, ViT
from stages.papers.hyperbf import findings as module
from stages.papers.hyperbf.findings import (
    AS_RUN,
    COMMON,
    DATASETS,
    HYPERBF,
    LAST_COMMIT_HYPERBF,
    LAST_COMMIT_VIT,
    VIT,
)
from stages.params.experiment import load_params


def test_equivalence_requires_keys_of_equal_norm(found: dict[str, Finding]) -> None:
    computed = found["hyperbf.identity.constnorm"].computed
    assert computed["max_abs_error_equal_key_norms_only"] < 1e-12
    assert computed["max_abs_difference_unequal_key_norms"] > 0.1
    assert [reading.holds for reading in found["hyperbf.identity.removed"].readings] == [True, False]


def test_appendix_is_exact_with_the_whole_expression_over_two(found: dict[str, Finding]) -> None:
    finding = found["hyperbf.identity.printed"]
    assert [reading.holds for reading in finding.readings] == [True, False, True]
    computed = finding.computed
    assert computed["identity_error_all_over_two"] < 1e-12
    assert computed["identity_error_last_term_over_two"] == pytest.approx(computed["half_sum_of_squared_norms"])


def test_sizes_match_with_and_without_the_unused_matrix(found: dict[str, Finding]) -> None:
    finding = found["hyperbf.params.match"]
    settings, *sizes = finding.readings
    assert settings.holds and settings.ours is None
    assert [(reading.holds, f"{reading.ours:.4f}") for reading in sizes] == [
        (True, "0.9997"),
        (True, "1.0149"),
        (False, "1.9259"),
    ]
    computed = finding.computed
    assert computed["ratio_cifar10_as_run"] == pytest.approx(12_179_806 / 12_182_874)
    assert computed["ratio_cifar10_without_the_unused_matrix"] == pytest.approx(9_820_510 / (9_823_578 - 4 * 192**2))
    assert computed["ratio_cifar10_last_public_commit"] == pytest.approx(14_486_842 / 18_207_914)


def test_two_of_five_public_pairs_have_matching_sizes(found: dict[str, Finding]) -> None:
    computed = found["hyperbf.params.match"].computed
    matching = {name for name, ratio in computed.items() if "_of_20" in name and abs(ratio - 1) < 0.05}
    assert matching == {"ratio_cifar10_of_2023_09_08", "ratio_cifar10_of_2023_09_26"}
    assert sum("_of_20" in name for name in computed) == 4, "plus the last commit's"


def test_negative_scores_change_no_weight_but_flatten_the_exponentials(found: dict[str, Finding]) -> None:
    finding = found["hyperbf.softmax.negative"]
    assert [reading.holds for reading in finding.readings] == [False, True]
    assert finding.computed["max_abs_error_negative_scores_made_positive"] < 1e-12


def test_only_the_normalised_form_reproduces_a_constant(found: dict[str, Finding]) -> None:
    computed = found["hyperbf.kernel_regression"].computed
    assert computed["constant_error_of_equation_2"] < 1e-12 < computed["constant_error_of_equation_3"]


def test_sizes_of_the_last_public_commit_would_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HYPERBF", module.HYPERBF | module.LAST_COMMIT_HYPERBF)
    monkeypatch.setattr(module, "VIT", module.VIT | module.LAST_COMMIT_VIT)
    assert [reading.holds for reading in module.matched_parameters().readings] == [True, False, False, False]


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "papers" / "hyperbf.md").read_text(encoding="utf-8")
ROWS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "ViT 20": (ViT, VIT),
    "HyperBF 20": (HyperBF, HYPERBF),
    "ViT 20, no unused matrix": (ViT, VIT | {"has_unused_matrix": False}),
    "HyperBF 20, both metrics": (HyperBF, HYPERBF | {"feedforward_metric": "factored"}),
    "ViT 1500": (ViT, VIT | {"hidden_dim": 1500}),
    "HyperBF 1500": (HyperBF, HYPERBF | {"num_centers": 1500}),
    "ViT 20, as-run positions": (ViT, VIT | AS_RUN),
    "HyperBF 20, as-run positions": (HyperBF, HYPERBF | AS_RUN),
    "ViT, last public commit": (ViT, VIT | LAST_COMMIT_VIT),
    "HyperBF, last public commit": (HyperBF, HYPERBF | LAST_COMMIT_HYPERBF),
}


def size_row(name: str) -> str:
    model_class, arguments = ROWS[name]
    with torch.device("meta"):
        models = [
            model_class(image_size=size, num_classes=classes, **COMMON, **arguments)
            for size, classes in DATASETS.values()
        ]
    numbers = [count_parameters(model) for model in models] + [flops_per_sample(models[0], (3, 32, 32))]
    return f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |"


@pytest.mark.parametrize("name", ROWS)
def test_sizes_and_work_equal_the_code(name: str) -> None:
    assert size_row(name) in PAGE.splitlines()


def test_every_row_of_sizes_is_checked() -> None:
    assert re.findall(r"^\| ([^|]+) \|(?: [\d,]+ \|){5}$", PAGE, flags=re.MULTILINE) == list(ROWS)


def test_documented_arms_are_the_trained_ones() -> None:
    rows = re.findall(r"^\| [^|]+ \| (`\w+`|both) \| ((?:`\w+: [^`]+`(?:, )?)*) ?\| ", PAGE, flags=re.MULTILINE)
    classes = {f"`{c.__name__}`": [c] for c in (ViT, HyperBF, HyperBFAsWritten)} | {"both": [ViT, HyperBF]}
    shown = []
    for names, arguments in rows:
        values = {key: yaml.safe_load(value) for key, value in re.findall(r"`(\w+): ([^`]+)`", arguments)}
        taken = [sorted(values.keys() & inspect.signature(model).parameters.keys()) for model in classes[names]]
        assert values.keys() == set().union(*taken), "an argument that its model doesn't take"
        for model, own in zip(classes[names], taken, strict=True):
            shown.append((model.__name__, [(key, values[key]) for key in own]))
    experiments = {name: found for name, found in load_params(ROOT).experiments.items() if found.paper == "hyperbf"}
    arms = experiments.pop("hyperbf-cifar10").arms
    trained = []
    for arm in arms.values():
        name, base = str(arm.model["name"]), arms["vit" if arm.model["name"] == "ViT" else "hyperbf"]
        changed = {key for key, value in arm.model.items() if key != "name" and base.model.get(key) != value}
        trained.append((name, [(key, arm.model[key]) for key in sorted(changed)]))
    pair: list[Any] = [("ViT", []), ("HyperBF", [])]
    assert sorted(shown + pair, key=repr) == sorted(trained, key=repr)
    others = {name: [*found.arms] for name, found in experiments.items()}
    assert others.pop("hyperbf64-tinyimagenet") == ["vit", "hyperbf"]
    assert all(names == ["vit", "hyperbf", "vit-as-run-scale"] for names in others.values())


def test_percentages_and_differences_equal_the_findings(found: dict[str, Finding]) -> None:
    sizes = found["hyperbf.params.match"].computed
    assert f"HyperBF has {1 - sizes['ratio_cifar10']:.2%} fewer".replace("%", " %") in PAGE
    assert f"or {sizes['ratio_cifar10_without_the_unused_matrix'] - 1:.1%} more".replace("%", " %") in PAGE
    others = ("ratio_cifar10_of_2023_09_20", "ratio_cifar10_of_2023_10_06", "ratio_cifar10_last_public_commit")
    assert "the ratios of the rest are {:.2f}, {:.2f} and {:.2f}".format(*map(sizes.get, others)) in PAGE
    unequal = found["hyperbf.identity.constnorm"].computed["max_abs_difference_unequal_key_norms"]
    assert f"differ by up to {unequal:.2f}" in PAGE
    work = [int(size_row(name).split(" | ")[-1].strip(" |").replace(",", "")) for name in ("HyperBF 20", "ViT 20")]
    assert f"does {work[0] / work[1] - 1:.0%} more work".replace("%", " %") in PAGE

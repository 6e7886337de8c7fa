from __future__ import annotations

import pytest

from stages.papers.finding import Finding
from stages.papers.hyperbf import findings as module
from stages.papers.hyperbf.findings import findings
from tests.project import MARGINS


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    return {finding.claim: finding for finding in findings(MARGINS)}


def test_every_claim_that_needs_no_training_has_one_finding(found: dict[str, Finding]) -> None:
    assert {claim: finding.status for claim, finding in found.items()} == {
        "hyperbf.identity.unitnorm": "holds",
        "hyperbf.identity.constnorm": "holds",
        "hyperbf.identity.printed": "holds under a reading",
        "hyperbf.identity.softmaxshift": "holds",
        "hyperbf.softmax.negative": "holds under a reading",
        "hyperbf.kernel_regression": "holds under a reading",
        "hyperbf.params.match": "holds under a reading",
    }


def test_findings_are_the_same_twice(found: dict[str, Finding]) -> None:
    assert {finding.claim: finding for finding in findings(MARGINS)} == found


def test_equivalence_needs_keys_of_one_norm_only(found: dict[str, Finding]) -> None:
    computed = found["hyperbf.identity.constnorm"].computed
    assert computed["max_abs_error_equal_key_norms_only"] < 1e-12
    assert computed["max_abs_difference_unequal_key_norms"] > 0.1


def test_appendix_is_exact_with_all_of_it_under_the_bar(found: dict[str, Finding]) -> None:
    finding = found["hyperbf.identity.printed"]
    assert [reading.holds for reading in finding.readings] == [True, False, True]
    computed = finding.computed
    assert computed["identity_error_all_over_two"] < 1e-12
    assert computed["identity_error_last_term_over_two"] == pytest.approx(computed["half_sum_of_squared_norms"])


def test_sizes_match_with_and_without_the_matrix_that_nothing_uses(found: dict[str, Finding]) -> None:
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
    assert sum("_of_20" in name for name in computed) == 4, "and the last commit's"


def test_negative_scores_change_no_weight_and_flatten_the_exponentials(found: dict[str, Finding]) -> None:
    finding = found["hyperbf.softmax.negative"]
    assert [reading.holds for reading in finding.readings] == [False, True]
    assert finding.computed["max_abs_error_negative_scores_made_positive"] < 1e-12


def test_only_the_normalised_form_gives_back_a_constant(found: dict[str, Finding]) -> None:
    computed = found["hyperbf.kernel_regression"].computed
    assert computed["constant_error_of_equation_2"] < 1e-12 < computed["constant_error_of_equation_3"]


def test_sizes_of_the_last_public_commit_would_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HYPERBF", module.HYPERBF | module.LAST_COMMIT_HYPERBF)
    monkeypatch.setattr(module, "VIT", module.VIT | module.LAST_COMMIT_VIT)
    assert [reading.holds for reading in module.matched_parameters().readings] == [True, False, False, False]

"""Notes that open each paper's page have the figures of params, claims and findings."""

import re
from fnmatch import fnmatchcase

from fastapi.testclient import TestClient

from service.pages.wording import captions, find_caption
from stages.claims import read_claims, read_deviations
from stages.params.experiment import load_params
from tests.service.results_factory import REPOSITORY
from tests.service.test_published_pages import text_of

PAPERS = ("hyperbf", "ninformer", "nmn", "brownian", "dac")


def computed(client: TestClient, claim: str) -> dict[str, float]:
    found: dict[str, float] = client.get(f"/api/v1/claims/{claim}").json()["finding"]["computed"]
    return found


def test_every_papers_page_opens_with_its_notes(computed_client: TestClient) -> None:
    for found in read_deviations(PAPERS):
        html = computed_client.get(f"/papers/{found.paper}").text
        head = text_of(html[: html.index("</section>")])
        assert 2 <= len(found.before_use) <= 3 and all(sentence in head for sentence in found.before_use)
        counts = computed_client.get(f"/api/v1/verdicts?paper={found.paper}").json()["papers"][0]["trained"]
        (sentence,) = re.findall(
            r"(?:None of the|Of the|The one) (?:\d+ )?claims? that needs? trained models[^.:]*", head
        )
        assert ("decided yet" in sentence) == (counts["in_favour"] + counts["opposed"] == 0)


def test_figures_agree_with_params_claims_and_findings(computed_client: TestClient) -> None:
    notes = {found.paper: " ".join(found.before_use) for found in read_deviations(PAPERS)}
    params, claims = (
        load_params(REPOSITORY),
        {claim.id: claim for claim in read_claims(REPOSITORY / "data" / "claims.csv")},
    )
    of_hyperbf = [item for item in params.experiments.values() if item.paper == "hyperbf"]
    hidden = {item.arms["vit"].model["hidden_dim"] for item in of_hyperbf}
    assert hidden == {20} and "have only 20 hidden units" in notes["hyperbf"]
    gaps = [abs(claim.value or 0) for name, claim in claims.items() if fnmatchcase(name, "hyperbf.text.*.gap")]
    assert f"by {100 * min(gaps):.2f} to {100 * max(gaps):.2f} pp" in notes["hyperbf"] and len(gaps) == 3
    (comparison,) = [
        item
        for item in computed_client.get("/compare?dataset=cifar10").json()["comparisons"]
        if item["experiment"] == "hyperbf-cifar10"
    ]
    flops = {arm["arm"]: arm["cost"]["flops_per_image"] for arm in comparison["arms"]}
    assert f"Our HyperBF costs {flops['hyperbf'] / flops['vit']:.2f} times our ViT’s operations" in notes["hyperbf"]

    numbers = computed(computed_client, "ninformer.compute.lower")
    over = {f"{numbers[f'ninformer_over_vit_{name}']:.1f}" for name in ("mnist", "c10", "c100")}
    assert over == {"1.5"} and "1.5 times the ViT’s operations" in notes["ninformer"]
    assert all(round(numbers[f"gating_over_attention_{name}"]) == 2 for name in ("mnist", "c10", "c100"))
    arms = params.experiments["ninformer-cifar10"].arms
    assert {arm.model.get("dropout") for arm in arms.values() if arm.role in ("baseline", "proposed")} == {0.5}
    assert "dropout of 0.5" in notes["ninformer"]

    of_nmn = params.experiments["nmn-resnet-cifar10"].arms
    assert "scale" not in of_nmn["aether-resnet18-printed"].model and "our AetherResNet-18 has none" in notes["nmn"]
    learnt = [name for name, arm in of_nmn.items() if arm.model.get("scale") == "multiplier"]
    assert learnt == ["aether-resnet18-as-run"] and "learns one, and one more model has it" in notes["nmn"]

    wide = computed(computed_client, "dac.table2.gflops.r20.dac")["increase_percent_bias_at_output"]
    parameters = computed(computed_client, "dac.wide.params_inc")["increase_percent"]
    assert f"{parameters:.0f} % more parameters and {wide:.1f} % more operations" in notes["dac"]


def test_highlights_are_about_the_papers_own_proposal(computed_client: TestClient) -> None:
    arguments = {found.paper: found.argument for found in read_deviations(PAPERS)}
    ids = {claim.id for claim in read_claims(REPOSITORY / "data" / "claims.csv")}
    for paper, patterns in arguments.items():
        assert patterns and all(any(fnmatchcase(name, one) for name in ids) for one in patterns), paper
        html = computed_client.get(f"/papers/{paper}").text
        for side, claim in re.findall(r'(?s)<span class="side">(For|As read)</span>.*?href="/claims/([^"]+)"', html):
            assert any(fnmatchcase(claim, one) for one in patterns), f"{side}: {claim}"


def test_every_computed_number_has_a_readable_caption(
    computed_client: TestClient,
) -> None:
    claims = computed_client.get("/api/v1/claims?limit=1000").json()
    names = {(claim["paper"], name) for claim in claims if claim["finding"] for name in claim["finding"]["computed"]}
    assert len(names) > 150
    for paper, name in sorted(names):
        found = find_caption(paper, name)
        assert found is not None, f"{paper}: {name} has no caption in {captions.__module__}"
        assert not re.search(r"_|\b(c10|c100|vit|k\d|n\d+|bf16|pct)\b|percent|\{", found[0]), found[0]


def test_every_caption_matches_a_computed_number(computed_client: TestClient) -> None:
    claims = computed_client.get("/api/v1/claims?limit=1000").json()
    names = {(claim["paper"], name) for claim in claims if claim["finding"] for name in claim["finding"]["computed"]}
    for row in captions():
        assert any(row.paper in ("", paper) and row.pattern.fullmatch(name) for paper, name in names), row.text

"""Pages without JavaScript; `test_browser` tests them with JavaScript."""

import json
import re
import shutil
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from urllib.parse import quote, unquote

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from service import routes
from service.app import create_app
from service.pages.formats import count, duration, memory, percent, points, print_value, ratio, value_in
from service.pages.wording import name_claim
from service.settings import Settings
from stages.recording.builder import record
from stages.results import Claim, JudgedClaim, VerdictRow
from tests.project import REPOSITORY
from tests.service.conftest import png, reading, serving
from tests.service.results_factory import PAPER_ACCURACY, add_results


class Page(HTMLParser):
    """Parser that collects the text of table rows without drawings, all addresses, and all inline code and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self._drawings = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._drawings += tag == "svg"
        if tag == "tr":
            self.rows.append([])
        for name, value in attrs:
            if name in ("href", "src", "action") and value:
                self.addresses.append(value)
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")
        if tag == "script" and not {"src", "type"} & {name for name, _ in attrs}:
            self.inline.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._drawings -= tag == "svg"

    def handle_data(self, data: str) -> None:
        if self.rows and data.strip() and not self._drawings:
            self.rows[-1].append(data.strip())


PAPERS = "https://arxiv.org/abs/"
EXTERNAL = (PAPERS, "https://github.com/")  # papers, and their authors' code
"""Addresses that pages may link to but don't load."""

PAGES = (
    *("/", "/?dataset=cifar10", "/?dataset=cifar100&metric=loss&profile=smoke", "/docs"),
    *("/claims", "/claims?q=vit&verdict=contradicted", "/method"),
    *("/papers/ninformer", "/papers/ninformer?verdict=contradicted", "/claims/ninformer.table2.c100.vit"),
    *("/experiments/ninformer-mnist", "/experiments/ninformer-cifar10"),
)


@pytest.mark.parametrize("path", PAGES)
def test_page_loads_nothing_external_and_runs_nothing_inline(client: TestClient, path: str) -> None:
    page = Page(client.get(path).text)
    assert page.inline == []
    assert [address for address in page.addresses if not address.startswith(("/", "#", *EXTERNAL))] == []
    for address in {address.partition("#")[0] for address in page.addresses} - {"", "/predict"}:
        if not address.startswith(EXTERNAL):
            assert client.get(address).status_code == 200, address


ODD = 'vit-b/16 "<b>" 100%?a=b&c#é 🙂\n.0'


def test_every_link_to_an_odd_name_leads_to_its_page(own_root: Path) -> None:
    """Only a name of an arm or a claim can be odd: papers are packages, and experiments are files."""
    quoted, params = json.dumps(ODD, ensure_ascii=False), own_root / "params" / "ninformer-cifar10.yaml"
    for file in (*own_root.glob("data/results/ninformer-cifar10*.jsonl"), params):
        text = file.read_text(encoding="utf-8")
        changed = text.replace('"arm":"vit"', f'"arm":{quoted}').replace("\n  vit:", f"\n  {quoted}:")
        assert changed != text
        file.write_text(changed, encoding="utf-8")
    claims = own_root / "data" / "claims.csv"
    text, (odd, claim) = claims.read_text(encoding="utf-8"), (ODD.replace('"', '""'), f"ninformer.{ODD}")
    before, after = "ninformer.table2.cifar10.vit", f'"ninformer.{odd}"'
    text = text.replace(before, after).replace("ninformer-cifar10,vit,", f'ninformer-cifar10,"{odd}",')
    claims.write_text(text, encoding="utf-8")
    record(own_root, "data/results.db")
    pages = {"/", "/claims", "/papers/ninformer", "/compare?dataset=cifar10", "/leaderboard?dataset=cifar10"}
    with reading(Settings(root=own_root)) as client:
        listed = client.get("/api/v1/claims?experiment=ninformer-cifar10").json()
        assert claim in [item["id"] for item in listed]
        seen: set[str] = set()
        while left := pages - seen:
            seen |= (new := {left.pop()})
            response = client.get(*new, headers={"accept": "text/html, */*;q=0.8"})
            assert response.status_code == 200, new
            found = (address.partition("#")[0] for address in Page(response.text).addresses)
            pages |= {address for address in found if address.startswith("/") and "vit-b/16" in unquote(address)}
        for start in (
            f"/claims/{quote(claim)}",
            f"/api/v1/claims/{quote(claim)}",
            f"/models/ninformer-cifar10.{quote(ODD)}",
        ):
            assert start in seen
        checkpoint = quote(f"ninformer-cifar10.{ODD}.0")
        assert client.get(f"/api/v1/checkpoints/{checkpoint}").status_code == 200


def test_paper_page_lists_every_claim_with_its_verdict(client: TestClient) -> None:
    html = client.get("/papers/ninformer").text
    claims = client.get("/api/v1/claims?paper=ninformer&limit=200").json()
    assert len(claims) == 16
    for claim in claims:
        assert f'href="/claims/{claim["id"]}"' in html
    rows = Page(html).rows
    assert ["Model", "MNIST", "CIFAR-10", "CIFAR-100"] in rows, "Table 2 as it is printed"
    vit = next(row for row in rows if row[0] == "ViT")
    assert vit[:3] == ["ViT", "MNIST", "97.12 %"] and "34.87 %" in vit and "not tested" in vit
    cut = client.get("/papers/ninformer?verdict=contradicted").text
    shown = set(re.findall(r'href="/claims/([^"]+)"', cut))
    assert shown == {claim["id"] for claim in claims if claim["verdict"]["status"] == "contradicted"} != set()


def test_claim_page_shows_computed_numbers_and_rules_digest(client: TestClient) -> None:
    claim = client.get("/api/v1/claims/ninformer.table3.mnist.vit").json()
    html = client.get("/claims/ninformer.table3.mnist.vit").text
    facts = {row[0]: row[1] for row in Page(html).rows if len(row) > 1}
    assert facts["over the card’s peak"] == "113.3 times"
    assert (
        "excluded by the paper’s other numbers" in html
        and "141.62 ns" in html
        and claim["verdict"]["rules"][:12] in html
    )


def test_untested_claim_links_to_its_experiments(client: TestClient) -> None:
    first = client.get("/api/v1/claims", params={"verdict": "not tested", "paper": "ninformer"}).json()[0]["id"]
    claim, html = client.get(f"/api/v1/claims/{first}").json(), client.get(f"/claims/{first}").text
    assert not claim["runs"]
    links = set(re.findall(r'href="(/experiments/[^"]+)"', html))
    assert links == {f"/experiments/{name}" for name in claim["experiments"]} != set()
    assert client.get(links.pop()).status_code == 200
    computed = client.get("/claims/ninformer.table3.mnist.vit").text
    assert not re.search(r'href="/experiments/', computed), "it was computed without training"


def comparison_rows(client: TestClient, dataset: str) -> dict[str, list[str]]:
    """Return the first row of each model; its later rows are in the table of costs."""
    rows = Page(client.get(f"/?dataset={dataset}").text).rows
    return {row[0]: row for row in reversed(rows) if row}


def test_table_of_shortened_runs_shows_ranks_instead_of_differences(client: TestClient) -> None:
    rows = comparison_rows(client, "cifar100")
    assert rows["ViT"][1:6] == ["34.87 %", "21.42 %", "n = 1", "4", "/ 4"]
    assert rows["NiNformer"][1] == "proposed"
    assert "shortened run" in client.get("/?dataset=cifar100").text
    mnist = comparison_rows(client, "mnist")
    ours = ["97.22 %", "± 0.17 %, n = 3", "96.47 to 97.97 %"]
    assert mnist["ViT"][1:6] == ["97.12 %", *ours, "+0.10 pp"]


def test_verdict_in_table_names_its_claim(client: TestClient) -> None:
    html = client.get("/?dataset=mnist").text
    named = dict(re.findall(r'<a href="/claims/([^"]+)" title="([^"]+)"', html))
    assert named["ninformer.table2.mnist.vit"] == "ViT: test accuracy, last epoch (MNIST; the paper names no epoch)"
    word = client.get("/api/v1/claims/ninformer.table2.mnist.vit").json()["verdict"]["word"]
    assert f'aria-label="{word}: ViT: test accuracy, last epoch (MNIST; the paper names no epoch)"' in html


def test_placeholder_result_is_marked_and_its_number_is_hidden(client: TestClient) -> None:
    html = client.get("/?dataset=cifar10").text
    row = next(row for row in Page(html).rows if row[:1] == ["ViT"])
    assert row[1:3] == ["65.74 %", "placeholder"] and "–" not in row
    key = client.get("/compare?dataset=cifar10").json()["comparisons"][0]["arms"][0]["run_keys"][0]
    (accuracy,) = [
        row["value"]
        for row in client.get(f"/api/v1/runs/{key}").json()["results"][0]["metrics"]
        if row["metric"] == "accuracy"
    ]
    assert percent(accuracy) not in html
    assert "says nothing about the claim" in html
    assert '<svg class="of-paper"' in html and '<circle class="of-ours"' not in html


def test_model_order_is_a_headline_only_for_full_runs(client: TestClient) -> None:
    assert "<strong>The models finish in" in client.get("/?dataset=mnist").text
    short = client.get("/?dataset=cifar100").text
    assert "<strong>The models finish in" not in short and "So far the models are in" in short
    assert "with one run each, this may be chance" in short


def test_results_of_older_code_are_labelled(own_root: Path) -> None:
    add_results(own_root, "ninformer-cifar10", "smoke", "embedded", code={"stages.gone": "0" * 16})
    record(own_root, "data/results.db")
    with reading(Settings(root=own_root)) as client:
        (comparison,) = client.get("/compare?dataset=cifar10").json()["comparisons"]
        assert [arm["changed_code"] for arm in comparison["arms"]] == [["stages.gone"]] * 4
        sentence = "measured with older code: stages.gone changed since"
        assert sentence in client.get("/?dataset=cifar10").text
        run = client.get(f"/runs/{comparison['arms'][0]['run_keys'][0]}").text
        assert sentence in run.lower()


def test_run_page_shows_curves_spec_and_provenance(client: TestClient) -> None:
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    html = client.get(f"/runs/{comparison['arms'][0]['run_keys'][0]}").text
    facts = {row[0]: row[1] for row in Page(html).rows if len(row) == 2}
    assert facts["protocol.batch_size"] == "128"
    assert facts["code revision"] == "0" * 40
    assert facts["device"] == "cpu"
    assert html.count('<figure class="panel">') == 2 and "96.92 %" in html


def test_form_works_without_javascript(client: TestClient) -> None:
    names = [f"ninformer-cifar10.{arm}.0" for arm in ("vit", "mlp-mixer", "local-vit", "ninformer")]
    assert checked(client, "cifar10") == [], "placeholder models are never preselected"
    assert checked(client, "&checkpoint=".join(["cifar10", *names])) == names
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    response = client.post("/predict", data={"checkpoint": names}, files={"file": png()}, headers={"accept": accept})
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text.count('class="card is-stand-in"') == 4
    assert "its answer means nothing" in response.text


def checked(client: TestClient, dataset: str) -> list[str]:
    return re.findall(r'name="checkpoint" value="([^"]+)" checked', client.get(f"/?dataset={dataset}").text)


def test_form_preselects_the_default_models_of_predict(own_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first experiment also has real results, but weights only of placeholder models."""
    index, protocol = (
        (own_root / "params.yaml").read_text(encoding="utf-8"),
        (own_root / "params" / "ninformer-cifar10.yaml").read_text(encoding="utf-8"),
    )
    own, other = "  ninformer-cifar10:", "  other-cifar10: {paper: ninformer, dataset: cifar10}\n"
    (own_root / "params.yaml").write_text(index.replace(own, other + own), encoding="utf-8")
    (own_root / "params" / "other-cifar10.yaml").write_text(
        protocol.replace("batch_size: 128", "batch_size: 64"), encoding="utf-8"
    )
    monkeypatch.setitem(PAPER_ACCURACY, "other-cifar10", PAPER_ACCURACY["ninformer-cifar10"])
    add_results(own_root, "other-cifar10", "smoke", "embedded")
    for line in add_results(own_root, "other-cifar10", "quick", "subset", published="2026-11-01T10:00:00Z"):
        shutil.rmtree(own_root / "data" / "runs" / "other-cifar10" / line.run_key)
    add_results(own_root, "ninformer-cifar10", "quick", "subset", published="2026-11-01T10:00:00Z")
    record(own_root, "data/results.db")
    with serving(Settings(root=own_root)) as client:
        models = client.post("/predict?dataset=cifar10", files={"file": png()}).json()["models"]
        assert checked(client, "cifar10") == [model["checkpoint"] for model in models]
        assert {model["experiment"] for model in models} == {"ninformer-cifar10"}
        assert "other-cifar10.vit.0" not in client.get("/?dataset=cifar10").text


def test_reference_lists_every_operation_and_every_problem(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    html = client.get("/docs").text
    statuses = set()
    for item in document["paths"].values():
        for operation in item.values():
            assert f'id="{operation["operationId"]}"' in html
            statuses |= set(operation["responses"]) - {"200"}
    for status in statuses | {"405"}:
        assert f'id="problem-{status}"' in html


def test_every_response_has_security_headers(client: TestClient) -> None:
    for path in ("/", "/compare", "/static/style.css", "/nothing"):
        headers = client.get(path).headers
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a dense layer has 2 - 1/n times the parameters", "A dense layer has 2 - 1/n times the parameters"),
        ("second-order methods also give", "Second-order methods also give"),
        ("train/test loss curves over 100 epochs", "Train/test loss curves over 100 epochs"),
        *((formula, formula) for formula in ("dS_i/da_j = S_i", "q.k = 1 - |q-k|^2/2", "sigma(attention) < sigma(FF)")),
    ],
)
def test_statement_is_capitalised_unless_it_begins_with_a_formula(statement: str, expected: str) -> None:
    judged = JudgedClaim(claim=Claim(id="x", statement=statement), verdict=VerdictRow(), experiments=(), datasets=())
    assert name_claim(judged, {}, {}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (value_in("images")(60_000), "60,000 images"),
        (value_in("relative gain")(-0.0123456), "1.235 % loss"),
        (value_in("of the baseline")(2.0), "2 times the baseline’s"),
        (value_in("of the baseline")(1.0), "equal to the baseline’s"),
        (print_value(Claim(kind="value", unit="ns", value=141.62)), "141.62 ns"),
        (percent(0.5378), "53.78 %"),
        (percent(None), "–"),
        (points(-0.1345), "−13.45 pp"),
        (points(0.001), "+0.10 pp"),
        (count(2_143_588), "2.14 M"),
        (memory(3_221_225_472), "3.22 GB"),
        (duration(842.5), "14 min 2 s"),
        (duration(1.4e-4), "140 µs"),
        (duration(0.98), "980 ms"),
        (duration(7300), "2 h 1 min"),
        (duration(0), "0 s"),
        (ratio(1.5), "1.50 ×"),
    ],
)
def test_numbers_are_formatted_for_readers(text: str, expected: str) -> None:
    assert text == expected


def test_run_of_equivalent_older_code_links_to_its_evidence(published_client: TestClient) -> None:
    (run,) = published_client.get("/api/v1/runs?experiment=hyperbf-cifar10&limit=1").json()
    page = published_client.get(f"/runs/{run['run_key']}").text
    (trail,) = published_client.get(f"/api/v1/runs/{run['run_key']}/trail").json()["trails"]
    first, *more = lines = trail["code"]["equivalences"]
    assert (trail["code"]["changed_code"], first) == ([], 1) and more == sorted(more)
    path = "data/evidence/equivalences.jsonl"
    assert (
        f'<a href="/files/{path}"><code>{path}</code></a>, line' in page and f" {', '.join(map(str, lines))}, " in page
    )


@pytest.mark.parametrize("is_stripped", [True, False])
def test_every_link_starts_with_the_root_path(settings: Settings, is_stripped: bool) -> None:
    """A proxy serves the app under `/claimcheck` and forwards the path with or without that prefix."""
    app = create_app(settings.model_copy(update={"root_path": "/claimcheck"}))

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert f"{scope['path']}/".startswith("/claimcheck/"), "this path belongs to another service"
            if is_stripped:
                scope["path"] = scope["path"].removeprefix("/claimcheck") or "/"
        await app(scope, receive, send)

    with TestClient(proxy, "http://127.0.0.1") as client:
        left = {"": "/claimcheck"}  # one address of each kind
        seen: set[str] = set()
        while left.keys() - seen:
            seen.add(kind := min(left.keys() - seen))
            answer = client.get(left[kind], headers={"accept": "text/html, */*"})
            assert answer.status_code == 200, answer.url
            addresses = Page(answer.text).addresses if "text/html" in answer.headers["content-type"] else []
            addresses += re.findall(r"<(/[^>]*)>", answer.headers.get("link", ""))
            paths = [address for address in addresses if address.startswith("/") and "/predict" not in address]
            for address in {path.partition("#")[0] for path in paths}:
                assert address.startswith("/claimcheck/"), (answer.url, address)
                left.setdefault(address.partition("?")[0].split("/")[2], address)
        assert {"", "papers", "claims", "experiments", "runs", "static", "docs", "api"} <= seen
        assert str(client.get("/claimcheck/claims/").url) == "http://127.0.0.1/claimcheck/claims"
        assert client.get("/claimcheck/openapi.json").json()["servers"] == [{"url": "/claimcheck"}]
        problem = client.get("/claimcheck/v2/nothing")
        assert (problem.status_code, problem.json()["type"]) == (404, "/claimcheck/docs#problem-404")
        assert "error" in problem.json()
        assert client.get("/claimcheck/static/nothing").json()["type"] == "/claimcheck/docs#problem-404"
        page = client.get("/claimcheck/nothing", headers={"accept": "text/html"})
        assert '<a href="/claimcheck/">All papers' in page.text
        address = "/claimcheck/predict?checkpoint=ninformer-cifar100.vit.0"
        answer = client.post(address, files={"file": png()}, headers={"accept": "text/html"})
        assert 'href="/claimcheck/runs/' in answer.text


MAX_PAGE_BYTES = 120_000
"""Limit of the compressed size of a page with everything that it loads."""


with (REPOSITORY / "data/evidence/dac-sgemm.jsonl").open(encoding="utf-8") as evidence:
    RUN = json.loads(next(evidence))["result"]["run_key"]
CLAIMS = {
    "supported at sizes": "dac.sgemm.crossover_low",
    "inconclusive": "dac.sgemm.depth",
    "waiting": "ninformer.table2.mnist.vit",
    "at chance": "nmn.ext.resnet18.c10.aether",
    "plotted": "dac.fig3",
    "holds by computation": "dac.eq7",
    "depends on reading": "dac.fig7b",
    "contradicted": "ninformer.table3.mnist.vit",
}
KINDS = {
    "front": "/",
    "compare": "/compare?dataset=cifar100",
    **{f"paper {name}": f"/papers/{name}" for name in ("ninformer", "dac")},
    **{f"claim {kind}": f"/claims/{claim}" for kind, claim in CLAIMS.items()},
    "claim as cited": "/claims/dac.sgemm.gain?cited=0123456789ab",
    **{f"data {name}": f"/?dataset={name}" for name in ("cifar10", "sgemm", "openwebtext")},
    "an answer": "/?dataset=mnist&sample=3",
    **{f"experiment {name}": f"/experiments/{name}" for name in ("dac-sgemm", "nmn-gpt")},
    "no runs": "/curves",
    "runs overlaid": "/curves?line=ninformer-mnist.vit&line=dac-sgemm.mlp-18x5",
    "leaderboard": "/leaderboard?dataset=sgemm",
    "claims": "/claims",
    "search": "/claims?q=activation",
    "method": "/method",
    "versus": "/versus?dataset=sgemm&a=dac-mlp-141x5&b=mlp-141x5",
    "versus of shortened runs": "/versus?dataset=mnist&a=ninformer&b=vit",
    "versus without models": "/versus",
    "documentation": "/docs",
    "file": "/files/docs/operators/yat.md",
    **{f"model {name}": f"/models/{name}" for name in ("ninformer-mnist.local-vit", "dac-sgemm.mlp-141x5")},
    "run": f"/runs/{RUN}",
    "invalid query": "/leaderboard?sort=nothing",
}
"""One address of each kind of page, for the published evidence."""


def test_every_page_route_is_among_the_kinds() -> None:
    modules = [import_module(f"service.routes.{module.name}") for module in iter_modules(routes.__path__)]
    routers = [item for module in modules for item in vars(module).values() if isinstance(item, APIRouter)]
    pages = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    missing = {
        route.path
        for route in pages
        if not route.include_in_schema and not route.path.endswith((".svg", ".json"))
        if not any(route.path_regex.fullmatch(path.partition("?")[0]) for path in KINDS.values())
    }
    assert missing == set()


@pytest.mark.parametrize("path", KINDS.values(), ids=KINDS)
def test_page_stays_below_its_size_limit(published_client: TestClient, path: str) -> None:
    page = published_client.get(path, headers={"accept": "text/html", "accept-encoding": "gzip"})
    parts = re.findall(r'<(?:script src|link rel="stylesheet" href|link rel="icon" href|img src)="([^"]+)"', page.text)
    fonts = re.findall(r'url\("(\w+\.woff2)"\)', published_client.get("/static/fonts.css").text)
    parts += [f"/static/{font}" for font in fonts]
    answers = [published_client.get(part, headers={"accept-encoding": "gzip"}) for part in parts if part[0] == "/"]
    weight = page.num_bytes_downloaded + sum(answer.num_bytes_downloaded for answer in answers)
    assert 40_000 < weight < MAX_PAGE_BYTES, (path, weight)

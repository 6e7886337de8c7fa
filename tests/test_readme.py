"""README and documents are short, build as a site, and agree with evidence, params and code."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.settings import Settings
from stages.claims import read_claims
from stages.cli import COMMANDS
from stages.commands.status import write_metrics
from stages.params.experiment import load_params
from stages.recording.reporting import results_page
from stages.results import WORD_OF, Word, open_results, tally
from tests.doc_examples import differences, read_examples
from tests.project import REPOSITORY, computed_findings

DOCS = REPOSITORY / "docs"
PICTURE = re.compile(r"!\[([^\]]*)\]\(([\w/.-]+\.png)\)")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_table_of_papers_agrees_with_the_verdicts(published: str) -> None:
    """Trained and data claims count by evidence, computed claims by findings; claims that share an error count once."""
    with open_results(published)() as session:
        tallies = {row.paper: row for row in tally(session)}
    claims = {claim.id: claim for claim in read_claims(REPOSITORY / "data" / "claims.csv")}
    once = {finding.error or name: (name, finding) for name, finding in computed_findings().items()}
    for paper, row in tallies.items():
        counts = Counter(row.trained.by_word) + Counter(row.data.by_word)
        for name, finding in once.values():
            if name.startswith(f"{paper}."):
                word, claim = WORD_OF[finding.status], claims[name]
                is_trained = claim.experiment is not None and claim.facts.by not in ("computing", "data")
                counts[word] += not is_trained or word is Word.FAILS  # fails regardless of training
        waiting = counts[Word.NOT_TESTED] - (paper == "ninformer")  # the gain that fails regardless of training
        cells = f"| {counts[Word.HOLDS]} | {counts[Word.FAILS]} | {counts[Word.OPEN]} | {waiting} |"
        (line,) = re.findall(rf"^\| \[[^]]+\]\(docs/papers/{paper}\.md\) .*$", README, re.MULTILINE)
        assert cells in line, (paper, cells)


def test_pictures_are_small_and_have_alternative_text() -> None:
    pages = [REPOSITORY / "README.md", *DOCS.glob("*.md")]
    shown = [
        (page.parent / path, words)
        for page in pages
        for words, path in PICTURE.findall(page.read_text(encoding="utf-8"))
    ]
    assert {path for path, _ in shown} == {*DOCS.glob("*.png")}
    assert [path.name for path, words in shown if not words or path.stat().st_size > 100_000] == []


def test_documents_are_short_and_name_the_columns_of_tables() -> None:
    """Handwritten words: at most 10,000, plus 1,500 per paper."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("shape", REPOSITORY / ".ci" / "shape.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(shape := module_from_spec(spec))
    texts = {
        path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
        for pattern in ("*.md", "docs/**/*.md", "data/*/README.md")
        for path in REPOSITORY.glob(pattern)
    }
    unlabelled = re.compile(r"^\|(.*\|)? *\|.*\n\|[-:| ]+\|$", re.MULTILINE)
    assert [name for name, text in texts.items() if unlabelled.search(text)] == [], "a column without a name"
    words = {name: shape.count_words(text) for name, text in texts.items()}
    of_papers = {name: words.pop(name) for name in list(words) if name.startswith(shape.PAPERS)}
    assert sum(number for name, number in words.items() if name not in shape.NO_DOCUMENTS) <= 10_000
    assert max(of_papers.values()) <= 1_500


@pytest.mark.timeout(300)
def test_site_builds_without_warnings(published: str, tmp_path: Path) -> None:
    """Every link resolves, including those of generated pages."""
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "docs" / "results.md").write_text(results_page(published), encoding="utf-8")
    (tmp_path / "docs" / "findings.md").write_text("# Findings\n", encoding="utf-8")
    config = (
        (REPOSITORY / "mkdocs.yml")
        .read_text(encoding="utf-8")
        .replace(".ci/pages.py", str(REPOSITORY / ".ci" / "pages.py"))
    )
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", tmp_path / "mkdocs.yml"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build" / "site"
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in site.glob("*.html")}
    for page, words in {"cli": COMMANDS, "service": Settings.model_fields, "data": load_params().datasets}.items():
        html = (site / f"{page}.html").read_text(encoding="utf-8").lower()
        assert [word for word in words if word not in html and page != "data"] == []
    assert "our training agrees" in (site / "verdicts.html").read_text(encoding="utf-8").lower()


def test_metrics_of_dashboard_and_alerts_exist_and_are_documented(published: str, tmp_path: Path) -> None:
    with TestClient(create_app(Settings(root=REPOSITORY, database=published)), base_url="http://127.0.0.1") as client:
        exported = client.get("/metrics").text
    numbers = dict.fromkeys(("samples_per_second", "seconds", "left_seconds", "usd", "left_usd"), 1.0)
    rows = [{"experiment": "x", "node": "x", "runs": {"done": 1}, **numbers}]
    write_metrics(tmp_path / "x.prom", [{"paper": "x", "by_word": {"holds": 1}}], {"rows": rows}, 0.0)
    families = [*text_string_to_metric_families(exported + (tmp_path / "x.prom").read_text(encoding="utf-8"))]
    known = {family.name for family in families}
    named = re.compile(r"claimcheck_[a-z_]+?(?=(?:_total|_bucket|_sum|_count)?\b)")
    monitoring = REPOSITORY / "deploy" / "monitoring"
    dashboard = json.loads((monitoring / "grafana.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    groups = yaml.safe_load((monitoring / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    expressions += [rule["expr"] for group in groups for rule in group["rules"]]
    assert {name for text in expressions for name in named.findall(text)} <= known
    documented = set(named.findall((DOCS / "monitoring.md").read_text(encoding="utf-8")))
    assert documented == {name for name in known if name.startswith("claimcheck_") and not name.endswith("_created")}


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 90


def test_experiment_in_the_readme_is_valid_and_changes_only_the_rate(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "params", tmp_path / "params")
    (block,) = (block for block in read_examples(REPOSITORY / "README.md") if block.file)
    (line,) = re.findall(r"`(half-rate: [^`]+)`", README)
    (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    index = (REPOSITORY / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(
        index.replace("\nexperiments:\n", f"\nexperiments:\n  {line}\n"), encoding="utf-8"
    )
    experiments = load_params(tmp_path).experiments
    ours, other = experiments["half-rate"], experiments["ninformer-cifar10"]
    assert ours.printed.optimizer.lr == other.printed.optimizer.lr / 2
    assert replace(ours.printed, optimizer=other.printed.optimizer) == other.printed
    assert list(ours.arms) == list(other.arms)


def test_documented_answers_equal_the_services(published: str) -> None:
    """The comparison, and the claim's status."""
    shown = [json.loads(block.text) for block in read_examples(DOCS / "quickstart.md") if block.language == "json"]
    (comparison,) = (answer for answer in shown if "comparisons" in answer)
    app = create_app(Settings(root=REPOSITORY, database=published))
    client = TestClient(app, base_url="http://127.0.0.1")
    assert list(differences(comparison, client.get("/compare?dataset=cifar100").json())) == []
    (claim,) = (answer for answer in shown if "finding" in answer)
    assert computed_findings()[claim["id"]].status == claim["verdict"]["status"]


def test_readme_counts_claims_correctly() -> None:
    """Claims from papers, from their authors' web pages, and orders implied by tables."""
    claims = read_claims(REPOSITORY / "data" / "claims.csv")
    implied = {claim.id for claim in claims if claim.id.endswith(".order") or claim.id.startswith("ninformer.rank.")}
    elsewhere = {claim.id for claim in claims if claim.place == "authors' web pages"} - implied
    shown = r"Of our (\d+) claims, (\d+) are from the papers, (\d+) from web pages .*?, and (\d+) are orders"
    (counts,) = re.findall(shown, README, re.DOTALL)
    assert [*map(int, counts)] == [
        *(len(claims), len(claims) - len(elsewhere) - len(implied)),
        *(len(elsewhere), len(implied)),
    ]


def test_readme_and_plan_agree_on_remaining_hours() -> None:
    costs = (DOCS / "train.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| all \|.*$", costs, re.MULTILINE)
    header = next(line for line in costs.splitlines() if "hours of one H100" in line)
    hours = dict(zip(header.split(" | "), row.split(" | "), strict=True))["hours of one H100"]
    assert f"{hours} hours of an H100" in README


def test_links_of_the_readme_are_files_in_git() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert target.startswith("http") or (REPOSITORY / target).exists(), target


def test_documented_make_targets_and_commands_exist() -> None:
    makefile, text = (
        (REPOSITORY / "Makefile").read_text(encoding="utf-8"),
        "".join(p.read_text(encoding="utf-8") for p in DOCS.glob("*.md")) + README,
    )
    for target in set(re.findall(r"\bmake ([a-z-]+)`", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert set(re.findall(r"`claimcheck ([a-z]+)\b", text)) <= set(COMMANDS)

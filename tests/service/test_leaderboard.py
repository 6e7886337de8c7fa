"""All models of all papers on one data set in one table."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.service.conftest import reading
from tests.service.test_pages import Page


def models(client: TestClient, address: str) -> list[str]:
    body = client.get(address).text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [row[0] for row in Page(body).rows]


def test_models_of_all_experiments_share_one_ranking(published_client: TestClient) -> None:
    found = published_client.get("/compare?dataset=cifar10&metric=accuracy").json()["comparisons"]
    results = {
        (arm["title"], item["title"]): arm["ours"]["value"] for item in found for arm in item["arms"] if arm["ours"]
    }
    expected = [title for (title, _), _ in sorted(results.items(), key=lambda pair: -pair[1])]
    assert len({experiment for _, experiment in results}) > 3
    assert models(published_client, "/leaderboard?dataset=cifar10") == expected
    assert models(published_client, "/leaderboard?dataset=cifar10&reverse=true") == expected[::-1]


def test_lowest_error_is_ranked_first(published_client: TestClient) -> None:
    assert models(published_client, "/leaderboard?dataset=sgemm")[0] == "DAC, 5 layers of 141 units"


def test_leaderboard_sorts_by_cost_and_omits_empty_columns(published_client: TestClient) -> None:
    html = published_client.get("/leaderboard?dataset=sgemm&sort=parameters").text
    assert Page(html).rows[1][0] == "5 layers of 18 units"
    assert "FLOP per sample" not in html and "–" not in html.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.search(r'aria-sort="ascending"><a href="[^"]*sort=parameters&amp;reverse=true"', html)


def test_models_are_filtered_by_their_data(published_client: TestClient) -> None:
    everything = models(published_client, "/leaderboard?dataset=cifar10&provenance=")
    found = {
        kind: published_client.get(f"/compare?dataset=cifar10&metric=accuracy&provenance={kind}").json()["comparisons"]
        for kind in ("full", "subset")
    }
    for kind, comparisons in found.items():
        titles = [arm["title"] for item in comparisons for arm in item["arms"] if arm["ours"]]
        html = published_client.get(f"/leaderboard?dataset=cifar10&provenance={kind}").text
        assert ("No model has a result" in html) == (not titles)
        assert sorted(models(published_client, f"/leaderboard?dataset=cifar10&provenance={kind}")) == sorted(titles)
        assert len(titles) < len(everything) or kind == "full"


def test_placeholder_results_are_not_ranked(client: TestClient) -> None:
    assert "No model has a result" in client.get("/leaderboard?dataset=cifar10").text
    assert len(models(client, "/leaderboard?dataset=cifar100&profile=quick")) == 4
    assert "No model has a result" in client.get("/leaderboard?dataset=cifar100&profile=smoke").text
    assert "MNIST" in client.get("/leaderboard").text, "the first data set with results"


def test_empty_database_is_not_an_error(own_root: Path) -> None:
    with closing(sqlite3.connect(own_root / "data" / "results.db")) as database, database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if name != "meta":
                database.execute(f'DELETE FROM "{name}"')
    with reading(Settings(root=own_root)) as client:
        for path in ("/leaderboard", "/", "/claims", "/compare", "/runs", "/api/v1/runs", "/api/v1/papers"):
            assert client.get(path).status_code in (200, 404), path


def test_models_are_filtered_by_size(published_client: TestClient) -> None:
    found = published_client.get("/compare?dataset=cifar10&metric=accuracy").json()["comparisons"]
    sizes = [arm["cost"]["parameters"] for item in found for arm in item["arms"] if arm["ours"]]
    html = published_client.get("/leaderboard?dataset=cifar10").text
    offered = [int(most) for most in re.findall(r'<option value="(\d+)"[^>]*>up to ', html)]
    assert offered, "the models have several sizes"
    for most in offered:
        smaller = [size for size in sizes if size <= most]
        assert 0 < len(smaller) < len(sizes)
        page = f"/leaderboard?dataset=cifar10&provenance=&parameters={most}"
        assert len(models(published_client, page)) == len(smaller)
        assert f"parameters={most}&amp;" in published_client.get(page).text, "sorting keeps the size"
    nothing = published_client.get("/leaderboard?dataset=cifar10&parameters=1").text
    assert "No model has a result" in nothing and "with at most 1 parameters" in nothing
    assert len(models(published_client, "/leaderboard?dataset=cifar10&parameters=")) == len(sizes)


@pytest.mark.parametrize("dataset", ["cifar10", "sgemm"])
def test_times_in_one_table_share_machine_threads_and_precision(published_client: TestClient, dataset: str) -> None:
    compared = published_client.get(f"/compare?dataset={dataset}").json()["comparisons"]
    timed = Counter(
        (arm["cost"]["latency_device"], arm["cost"]["latency_threads"], "bfloat16" in (item["cut"] or ""))
        for item in compared
        for arm in item["arms"]
        if arm["ours"] and arm["cost"]["latency_seconds_per_sample"]
    )
    html = published_client.get(f"/leaderboard?dataset={dataset}").text
    choices = re.findall(r"<option[^>]*>([^<]+batches[^<]+)<", html)
    assert len(choices) == len(timed) > 1
    for (device, threads, is_half), number in timed.items():
        (name,) = [
            name
            for name in choices
            if name.startswith(f"{device}, {threads} thread") and is_half == ("bfloat16" in name)
        ]
        page = published_client.get("/leaderboard", params={"dataset": dataset, "timed": name}).text
        assert len(re.findall(r'data-label="Time per sample">[\d.]+ .?s<', page)) == number
        assert f"<small>{name}</small>" in page


def test_models_that_differ_only_in_optimiser_are_labelled_by_it(
    published_client: TestClient,
) -> None:
    rows = re.findall(r"(?s)<tr>(.*?)</tr>", published_client.get("/leaderboard?dataset=cifar10").text)
    recipes = {
        match[1]: match[2]
        for row in rows
        if (match := re.search(r'"Choose ([^"]+), [^"]*small ViT[^"]*".*?</span>, ([^<]+), <a', row))
    }
    assert recipes["Adam"] == "ViT, trained by Adam at a rate of 0.001"
    assert len(recipes) > 3 and len(set(recipes.values())) == len(recipes)

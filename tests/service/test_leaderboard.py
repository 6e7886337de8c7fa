"""All models of all papers on one data set in one table."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.service.conftest import reading
from tests.service.test_pages import Page
from tests.service.test_published_pages import text_of


def models(client: TestClient, address: str) -> list[str]:
    body = client.get(address).text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [row[0] for row in Page(body).rows]


def test_models_of_all_experiments_stand_in_one_order(published_client: TestClient) -> None:
    found = published_client.get("/compare?dataset=cifar10&metric=accuracy").json()["comparisons"]
    results = {
        (arm["title"], item["title"]): arm["ours"]["value"] for item in found for arm in item["arms"] if arm["ours"]
    }
    expected = [title for (title, _), _ in sorted(results.items(), key=lambda pair: -pair[1])]
    assert len({experiment for _, experiment in results}) > 3
    assert models(published_client, "/leaderboard?dataset=cifar10") == expected
    assert models(published_client, "/leaderboard?dataset=cifar10&reverse=true") == expected[::-1]


def test_the_least_error_comes_first_where_lower_is_better(published_client: TestClient) -> None:
    assert models(published_client, "/leaderboard?dataset=sgemm")[0] == "DAC, 5 layers of 141 units"


def test_it_is_sorted_by_cost_and_a_column_without_numbers_is_left_out(published_client: TestClient) -> None:
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


def test_placeholders_have_no_place_in_it(client: TestClient) -> None:
    assert "No model has a result" in client.get("/leaderboard?dataset=cifar10").text
    assert len(models(client, "/leaderboard?dataset=cifar100&profile=quick")) == 4
    assert "No model has a result" in client.get("/leaderboard?dataset=cifar100&profile=smoke").text
    assert "MNIST" in client.get("/leaderboard").text, "the first data set with results"


def test_an_emptied_database_is_no_fault(own_root: Path) -> None:
    with closing(sqlite3.connect(own_root / "data" / "results.db")) as database, database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if name != "meta":
                database.execute(f'DELETE FROM "{name}"')
    with reading(Settings(root=own_root)) as client:
        for path in ("/leaderboard", "/", "/claims", "/compare", "/runs", "/api/v1/runs", "/api/v1/papers"):
            assert client.get(path).status_code in (200, 404), path


@pytest.mark.parametrize(
    ("query", "status"), [("dataset=x", 404), ("metric=x", 422), ("sort=x", 422), ("profile=x", 422)]
)
def test_missing_samples_are_explained(client: TestClient, query: str, status: int) -> None:
    assert client.get(f"/leaderboard?{query}").status_code == status


def test_one_network_never_has_two_times_of_other_conditions_and_times_have_two_digits(
    published_client: TestClient,
) -> None:
    page = text_of(published_client.get("/leaderboard?dataset=cifar10").text)
    entries = published_client.get("/compare?dataset=cifar10").json()["comparisons"]
    (resnets,) = [item["arms"] for item in entries if item["experiment"] == "nmn-resnet-cifar10"]
    threads = {arm["title"]: arm["cost"]["latency_threads"] for arm in resnets}
    assert threads["ResNet-18"] != threads["ResNet-18, a tenth of the rate"], "which is why their times differ"
    assert not ("9.8 ms" in page and "22 ms" in page)
    assert not re.search(r"\d\.\d\d ms|\d\d\.\d ms", page)
    for name, other in (("vit", "ViT"), ("mixer", "MLP-Mixer"), ("localvit", "LocalViT")):
        claim = text_of(published_client.get(f"/claims/ninformer.text.c10.time_vs_{name}").text)
        assert re.search(rf"takes about \d\.\d times as long as {other}; .* 2 threads, in bfloat16\.", claim), name


def test_models_are_filtered_by_their_size(published_client: TestClient) -> None:
    found = published_client.get("/compare?dataset=cifar10&metric=accuracy").json()["comparisons"]
    sizes = [arm["cost"]["parameters"] for item in found for arm in item["arms"] if arm["ours"]]
    html = published_client.get("/leaderboard?dataset=cifar10").text
    offered = [int(most) for most in re.findall(r'<option value="(\d+)"[^>]*>up to ', html)]
    assert offered, "the models are of several sizes"
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
def test_times_in_one_table_are_of_one_machine_as_many_threads_and_one_precision(
    published_client: TestClient, dataset: str
) -> None:
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


def test_models_that_differ_in_their_optimiser_alone_say_by_which_and_of_what_network(
    published_client: TestClient,
) -> None:
    rows = re.findall(r"(?s)<tr>(.*?)</tr>", published_client.get("/leaderboard?dataset=cifar10").text)
    told = {
        match[1]: match[2]
        for row in rows
        if (match := re.search(r'"Choose ([^"]+), [^"]*small ViT[^"]*".*?</span>, ([^<]+), <a', row))
    }
    assert told["Adam"] == "ViT, trained by Adam at a rate of 0.001"
    assert told["CG-FAC on attention, Adam elsewhere"] == (
        "ViT, trained by CG-FAC at a rate of 0.01, elsewhere Adam at 0.001"
    )
    assert len(told) > 3 and len(set(told.values())) == len(told)
    rates = [row for row in rows if "ResNet-18" in row and "trained by AdamW at a rate of 0.0003" in row]
    assert rates and all("a tenth of the rate" in row for row in rates)


def test_a_model_at_chance_says_so_in_its_row_and_above(published_client: TestClient) -> None:
    html = published_client.get("/leaderboard?dataset=cifar10").text
    rows = [row for row in html.split("<tr>") if "no better than guessing" in row]
    assert len(rows) == 1 and "10.02 %" in rows[0]
    scaled = "AetherResNet-18 with the guide's scale in convolutions"
    assert f"{scaled} is at chance" in unescape(html)
    assert f"With one thing changed it learns: {scaled}, a tenth of the rate (46.60 %)" in unescape(html)
    small = published_client.get("/leaderboard?dataset=cifar10&parameters=1000000").text
    assert "no better than guessing" not in small and "is at chance" not in small

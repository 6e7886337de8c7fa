import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from service.database.queries import ServedCheckpoint
from service.inference.engine import Choices
from service.settings import Settings
from service.slots import SessionPool, Slots
from stages.checkpoint.predictor import load_predictor
from stages.images import decode_image
from stages.recording.builder import record
from stages.results import UnknownCheckpoint, open_results
from tests.polling import wait_until
from tests.service.conftest import png, serving
from tests.service.hostile_images import png_of

VIT = "ninformer-cifar100.vit.0"


def weights(client: TestClient, root: Path, checkpoint: str) -> tuple[Path, str]:
    run_key = client.get(f"/api/v1/checkpoints/{checkpoint}").json()["run_key"]
    sha256 = client.get(f"/api/v1/checkpoints/{checkpoint}").json()["sha256"]
    return root / "data" / "runs" / checkpoint.split(".")[0] / run_key / "weights.safetensors", sha256


def test_predict_gives_the_predictors_answer(client: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256 = weights(client, root, VIT)
    predictor = load_predictor(path, expected_sha256=sha256)
    images = [png(seed) for seed in range(4)]
    expected = predictor.probabilities(np.stack([decode_image(image, predictor.contract.shape) for image in images]))
    files = [("file", (f"{number}.png", image)) for number, image in enumerate(images)]
    answer = client.post(f"/predict?checkpoint={VIT}&top_k=100", files=files).json()
    for number, image in enumerate(answer["images"]):
        assert image["file"] == f"{number}.png"
        (said,) = image["answers"]
        assert said["top"][0]["index"] == expected[number].argmax()
        found = np.zeros(100)
        found[[item["index"] for item in said["top"]]] = [item["probability"] for item in said["top"]]
        np.testing.assert_allclose(found, expected[number], rtol=0, atol=1e-6)
        probabilities = [item["probability"] for item in said["top"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert [item["name"] for item in said["top"]] == [f"digits-{item['index']}" for item in said["top"]]
    monkeypatch.setattr("service.inference.engine.MOST_CLASSES", 399)
    large = client.post(f"/predict?checkpoint={VIT}&top_k=100", files=files)
    assert large.status_code == 413, "it would be written on the event loop"
    assert large.json()["detail"] == "the answer would have 400 classes; at most 399: lower top_k"


@pytest.mark.parametrize("query", [f"checkpoint={VIT}", f"checkpoint={VIT}&top_k=1", "dataset=cifar100&arm=vit"])
def test_fast_path_and_full_path_give_the_same_answer(client: TestClient, query: str) -> None:
    files = {"file": ("a.png", png())}
    short = client.post(f"/predict?{query}", files=files)
    long = client.post("/predict?" + query.replace("a", "%61"), files=files)
    assert short.status_code == long.status_code == 200
    assert {name: value for name, value in short.headers.items() if name not in ("x-request-id", "content-length")} == {
        name: value for name, value in long.headers.items() if name not in ("x-request-id", "content-length")
    }
    first, second = short.json(), long.json()
    for answer in (first, second):
        assert answer.pop("seconds") > answer["models"][0].pop("seconds") > 0
    assert first == second


def test_answer_identifies_its_model(client: TestClient, root: Path) -> None:
    (model,) = client.post(f"/predict?checkpoint={VIT}", files={"file": png()}).json()["models"]
    path, sha256 = weights(client, root, VIT)
    assert (model["checkpoint"], model["run_key"], model["weights_sha256"]) == (VIT, path.parent.name, sha256)
    assert (model["profile"], model["provenance"], model["our_accuracy"]) == ("quick", "subset", 0.2142)
    assert (model["paper_accuracy"], model["paper_claim"]) == (0.3487, "ninformer.table2.cifar100.vit")
    assert "not a verdict" in model["label"]
    assert model["seconds"] > 0


def test_models_are_loaded_before_the_first_request(settings: Settings) -> None:
    with serving(settings.model_copy(update={"workers": 2})) as client:
        workers = client.app.state.claimcheck.engine.workers  # type: ignore[attr-defined]
        digests = {row["sha256"] for row in client.get("/api/v1/checkpoints").json()}
        wait_until(lambda: {digest for worker in workers for digest in worker._loaded} == digests)


def test_single_request_wakes_one_worker(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.post(f"/predict?checkpoint={VIT}", files={"file": png()}).status_code == 200
    woken: list[None] = []
    for waker in client.app.state.claimcheck.engine.batcher._wakers.values():  # type: ignore[attr-defined]
        monkeypatch.setattr(waker, "notify", lambda notify=waker.notify: woken.append(notify()))
    assert client.post(f"/predict?checkpoint={VIT}", files={"file": png()}).status_code == 200
    assert len(woken) == 1


def test_dataset_query_asks_all_or_the_named_arms(client: TestClient) -> None:
    every = client.post("/predict?dataset=cifar100", files={"file": png()}).json()
    assert [model["arm"] for model in every["models"]] == ["vit", "mlp-mixer", "local-vit", "ninformer"]
    assert [answer["checkpoint"] for answer in every["images"][0]["answers"]] == [
        f"ninformer-cifar100.{arm}.0" for arm in ("vit", "mlp-mixer", "local-vit", "ninformer")
    ]
    named = client.post("/predict?dataset=cifar100&arm=ninformer&arm=vit", files={"file": png()}).json()
    assert [model["arm"] for model in named["models"]] == ["vit", "ninformer"]


def test_names_may_be_form_fields(client: TestClient) -> None:
    by_query = client.post(f"/predict?checkpoint={VIT}", files={"file": png()}).json()
    by_form = client.post("/predict", files={"file": png()}, data={"checkpoint": VIT}).json()
    assert by_form["images"][0]["answers"] == by_query["images"][0]["answers"]
    form = {"dataset": "cifar100", "arm": ["vit"]}
    assert client.post("/predict", files={"file": png()}, data=form).json()["models"][0]["checkpoint"] == VIT


def test_bad_file_does_not_affect_the_other_files(client: TestClient) -> None:
    files = [("file", (f"{number}.png", png(number))) for number in range(3)]
    whole = client.post(f"/predict?checkpoint={VIT}", files=files).json()["images"]
    for bad, words in (
        (b"junk", "not a PNG, JPEG or WebP"),
        (png_of(50_000, 50_000), "scale it down"),
        (b"", "empty"),
        (bytes(300_001), "larger than"),
    ):
        mixed = [files[0], ("file", ("bad.png", bad)), files[2]]
        images = client.post(f"/predict?checkpoint={VIT}", files=mixed).json()["images"]
        assert [image["file"] for image in images] == ["0.png", "bad.png", "2.png"]
        assert (
            images[1]["answers"] == [] and words in images[1]["problem"] and images[1]["problem"].startswith("bad.png")
        )
        for mine, alone in ((images[0], whole[0]), (images[2], whole[2])):
            assert mine["problem"] is None
            assert [top["index"] for top in mine["answers"][0]["top"]] == [
                top["index"] for top in alone["answers"][0]["top"]
            ]
        page = client.post(f"/predict?checkpoint={VIT}", files=mixed, headers={"accept": "text/html"})
        assert page.status_code == 200 and words in page.text
        none = client.post(f"/predict?checkpoint={VIT}", files=[mixed[1]] * 2)
        assert none.status_code in (413, 422) and words in none.json()["detail"]


def test_file_name_is_only_displayed(client: TestClient) -> None:
    name = "../<b>\u202eevil.png"
    answer = client.post(f"/predict?checkpoint={VIT}", files={"file": (name, png())})
    assert answer.json()["images"][0]["file"] == "../<b>evil.png"
    page = client.post(f"/predict?checkpoint={VIT}", files={"file": (name, png())}, headers={"accept": "text/html"})
    assert "&lt;b&gt;evil.png" in page.text and "<b>evil" not in page.text


def test_models_are_selected_again_after_results_are_rebuilt(root: Path, tmp_path: Path) -> None:
    own = shutil.copytree(root, tmp_path / "root")
    with closing(sqlite3.connect(own / "data" / "results.db")) as database, database:
        database.execute("REPLACE INTO meta VALUES ('record', 'a1b2')")
    address = "/predict?dataset=mnist&arm=vit"
    with serving(Settings(root=own)) as client:
        assert client.get("/health/ready").json()["detail"].endswith("; record a1b2")
        assert client.post(address, files={"file": png()}).json()["models"][0]["replicate"] == 0
        evidence = own / "data" / "evidence" / "ninformer-mnist.jsonl"
        lines = evidence.read_text(encoding="utf-8").splitlines(keepends=True)
        evidence.write_text(
            "".join(line for line in lines if json.loads(line)["result"]["arm"] != "vit"), encoding="utf-8"
        )
        record(own, "data/results.db")
        response = client.post(address, files={"file": png()})
        assert response.status_code == 409, "the arm's results are gone"
        evidence.write_text("".join(lines), encoding="utf-8")
        record(own, "data/results.db")
        assert client.post(address, files={"file": png()}).json()["models"][0]["replicate"] == 0


@pytest.mark.anyio
async def test_failed_selection_of_models_is_not_cached(root: Path) -> None:
    asked = []

    def find(_session: Session) -> list[ServedCheckpoint]:
        asked.append(None)
        if len(asked) == 1:
            raise UnknownCheckpoint("x")
        return []

    place = str(root / "data" / "results.db")
    choices = Choices(place, SessionPool(open_results(place), Slots("asking", 1, max_waiting=0, seconds=1)))
    with pytest.raises(UnknownCheckpoint):
        await choices.get(("x",), find)
    assert await choices.get(("x",), find) == []
    assert await choices.get(("x",), find) == []
    assert len(asked) == 2, "an answer is cached, an error is not"

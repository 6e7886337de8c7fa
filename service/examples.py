"""Real requests with their answers for the reference: from a database of the evidence and the models in git.

`python -m service --examples > service/examples.json` asks them again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

FILE = Path(__file__).with_name("examples.json")
MODEL = "ninformer-mnist.ninformer"
SEVEN, SEVEN_AS_TENSOR = "seven.png", "seven.json"
"""`draw_seven`, which the service has among its static files."""
GETS: Mapping[str, str] = {
    "compare": "/compare?dataset=mnist",
    "listPapers": "/api/v1/papers",
    "getPaper": "/api/v1/papers/ninformer",
    "listDatasets": "/api/v1/datasets",
    "getDataset": "/api/v1/datasets/mnist",
    "listExperiments": "/api/v1/experiments?dataset=mnist",
    "getExperiment": "/api/v1/experiments/ninformer-mnist",
    "listCurves": "/api/v1/experiments/ninformer-mnist/curves?curve=test_accuracy&arm=ninformer",
    "listClaims": "/api/v1/claims?paper=dac&verdict=supported",
    "getClaim": "/api/v1/claims/dac.sgemm.gain",
    "listVerdicts": "/api/v1/verdicts?paper=dac",
    "listRuns": "/api/v1/runs?experiment=ninformer-mnist&arm=ninformer",
    "listCheckpoints": "/api/v1/checkpoints?dataset=mnist",
    "getCheckpoint": f"/api/v1/checkpoints/{MODEL}.0",
    "serverMetadata": "/v2",
    "modelMetadata": f"/v2/models/{MODEL}",
    "modelReady": f"/v2/models/{MODEL}/ready",
    "live": "/health/live",
}
OF_A_RUN: Mapping[str, str] = {"getRun": "/api/v1/runs/{}", "getTrail": "/api/v1/runs/{}/trail"}
MOST_ITEMS, MOST_NAMES = 1, 4
OPEN = ("modules", "code", "facts", "environment", "spec", "protocol", "by_kind", "by_verdict", "computed", "errors")
"""Objects whose names are data: an example holds only the first few."""


class Ask:
    """Asks for JSON by a client of httpx, or of tests.

    Raises:
        ValueError: the answer is an error.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, address: str) -> Any:
        return self._read(address, self._client.get(address))

    def post(self, address: str, **content: Any) -> Any:
        return self._read(address, self._client.post(address, **content))

    def _read(self, address: str, response: Any) -> Any:
        if response.status_code != 200:
            raise ValueError(f"{address}: {response.status_code}, {response.text[:200]}")
        return response.json()


def load_examples() -> dict[str, dict[str, Any]]:
    """`{operation: {curl, answer}}` as committed."""
    read: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def collect(ask: Ask) -> dict[str, dict[str, Any]]:
    """Ask everything; the answers are cut to what shows their shape."""
    (run,) = ask.get(f"{GETS['listRuns']}&limit=1")
    gets = {**GETS, **{name: address.format(run["run_key"][:10]) for name, address in OF_A_RUN.items()}}
    found = {name: {"curl": f"curl '127.0.0.1:8000{at}'", "answer": cut(ask.get(at))} for name, at in gets.items()}
    at = f"/predict?checkpoint={MODEL}.0&top_k=2"
    found["predict"] = {
        "curl": f"curl -sO 127.0.0.1:8000/static/{SEVEN}\ncurl -F file=@{SEVEN} '127.0.0.1:8000{at}'",
        "answer": cut(ask.post(at, files={"file": (SEVEN, draw_seven(), "image/png")}), most_items=2),
    }
    at, body = f"/v2/models/{MODEL}/infer", {"inputs": [tensor_of(draw_seven())]}
    found["modelInfer"] = {
        "curl": f"curl -sO 127.0.0.1:8000/static/{SEVEN_AS_TENSOR}\n"
        f"curl -H 'Content-Type: application/json' -d @{SEVEN_AS_TENSOR} '127.0.0.1:8000{at}'",
        "body": {"inputs": [{**tensor_of(draw_seven()), "data": ["784 numbers from 0 to 255, row by row"]}]},
        "answer": cut(ask.post(at, json=body), most_items=10),
    }
    return found


def cut(value: Any, *, most_items: int = MOST_ITEMS, name: str = "") -> Any:
    """`value` with lists and open objects shortened, as deep as it goes."""
    if isinstance(value, list):
        return [cut(item, most_items=most_items) for item in value[:most_items]]
    if isinstance(value, dict):
        names = list(value)[:MOST_NAMES] if name in OPEN else list(value)
        return {key: cut(value[key], most_items=most_items, name=key) for key in names}
    return value


def draw_seven() -> bytes:
    """A drawn seven, white on black, 28 x 28 pixels, as PNG."""
    image = Image.new("L", (28, 28))
    ImageDraw.Draw(image).line([(7, 7), (20, 7), (12, 22)], fill=255, width=3)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def tensor_of(content: bytes) -> dict[str, Any]:
    """A picture as an input of the Open Inference Protocol."""
    image = Image.open(io.BytesIO(content))
    return {"name": "image", "datatype": "UINT8", "shape": [1, 1, 28, 28], "data": list(image.tobytes())}

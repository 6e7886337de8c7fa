"""`POST /predict`: ask trained models about images.

The most frequent request, one small file answered as JSON, takes a fast path (`FastPathRoute`) past FastAPI's general
form parser, dependencies and validation.  Every other request, and every refused one, continues to the route itself
with its body unchanged, so that all rules and errors are in one place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Query, Request, Response, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from service.database import queries
from service.database.samples import Samples
from service.database.schemas import ImageAnswersOut, PredictionOut, SampleOut
from service.dependencies import AppState, app_state_of, cancel_on_disconnect, render_page
from service.http.errors import Problem, declared, preferred
from service.http.strict import FormRoute, only_file
from service.inference.decoding import Upload
from service.inference.engine import predict
from service.settings import Settings

MAX_BYTES = 64 * 1024
"""Largest body for the fast path; larger ones take so long to decode that it wouldn't matter."""
MAX_NAMES, MAX_TOP, TOP = 64, 1000, 5
JSON = frozenset({b"", b"*/*", b"application/json"})
_PLAIN = re.compile(rb"(checkpoint|dataset|arm|top_k)=([0-9A-Za-z._-]{1,200})")
_DIGITS = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True)
class PlainQuery:
    """Query parameters of `create_prediction`."""

    checkpoints: tuple[str, ...]
    dataset: str | None
    arms: tuple[str, ...]
    top_k: int


class FastPathRoute(FormRoute):
    """A form's route with a fast path."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        is_short = length.isdigit() and int(length[:9]) <= MAX_BYTES  # and of known length
        is_plain = scope["method"] == "POST" and len(headers) == len(scope["headers"]) and is_short
        is_plain = is_plain and headers.get(b"accept", b"") in JSON
        query = read_query(scope["query_string"]) if is_plain else None
        if query is None:
            await super().handle(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body", False):
            messages.append(await receive())
        parts: AppState = scope["app"].state.claimcheck
        body = b"".join(message.get("body", b"") for message in messages)
        form = only_file(headers.get(b"content-type", b""), body)
        if form is None or form[0] != "file" or len(form[2]) > parts.settings.max_image_bytes:
            await super().handle(scope, _again(messages, receive), send)
            return
        answer = await cancel_on_disconnect(receive, _predict(parts, query, Upload(*form[1:])))
        fields = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": answer})


async def _predict(parts: AppState, query: PlainQuery, upload: Upload) -> bytes:
    served = await parts.choices.named(query.checkpoints, query.dataset, query.arms)
    parts.engine.require_capacity(1, served)
    return (await predict([upload], served, parts.engine, top_k=query.top_k)).model_dump_json().encode()


@lru_cache(1024)
def read_query(text: bytes) -> PlainQuery | None:
    """Parse a plain query; None if it isn't plain or must be refused."""
    given: dict[bytes, list[str]] = {b"checkpoint": [], b"dataset": [], b"arm": [], b"top_k": []}
    for part in text.split(b"&"):
        plain = _PLAIN.fullmatch(part)
        if plain is None:
            return None
        given[plain[1]].append(plain[2].decode("ascii"))
    checkpoints, datasets, arms, tops = given.values()
    top_k = int(tops[0]) if tops and _DIGITS.fullmatch(tops[0]) else TOP
    is_fit = len(datasets) + bool(checkpoints) == 1 and len(checkpoints) <= MAX_NAMES >= len(arms)
    if not is_fit or len(tops) > 1 or tops not in ([], [str(top_k)]) or top_k > MAX_TOP:
        return None
    return PlainQuery(tuple(checkpoints), datasets[0] if datasets else None, tuple(arms), top_k)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Replay `messages` before receiving more."""
    left = iter(messages)

    async def received() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return received


router = APIRouter(route_class=FastPathRoute)
SAMPLE = re.compile(r"([a-z0-9-]{1,64})/([0-9]{1,12})")
Checkpoints = Annotated[
    list[str], Query(max_length=MAX_NAMES, description="ids of checkpoints", examples=[["ninformer-cifar100.vit.0"]])
]
DatasetName = Annotated[
    str | None, Query(description="instead of checkpoints: all models of a data set", examples=["cifar100"])
]
Arms = Annotated[
    list[str], Query(max_length=MAX_NAMES, description="with `dataset`: only these arms", examples=[["vit"]])
]
SUCCESS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/html": {}}},
}


async def choose_served_checkpoints(
    request: Request,
    checkpoint: Checkpoints = [],  # noqa: B006
    dataset: DatasetName = None,
    arm: Arms = [],  # noqa: B006
    form_checkpoint: Annotated[list[str], Form(alias="checkpoint", description="checkpoint ids, as in the query")] = [],  # noqa: B006
    form_dataset: Annotated[str | None, Form(alias="dataset", description="data set, as in the query")] = None,
    form_arm: Annotated[list[str], Form(alias="arm", description="arms, as in the query")] = [],  # noqa: B006
) -> list[queries.ServedCheckpoint]:
    """Choose the models that the query or the form names."""
    names, arms = (*checkpoint, *form_checkpoint), (*arm, *form_arm)
    for what, given in (("checkpoints", names), ("arms", arms)):
        if len(given) > MAX_NAMES:
            raise Problem(422, f"{len(given)} {what}; one request takes at most {MAX_NAMES}")
    wanted = dataset or form_dataset
    if names and wanted:
        raise Problem(422, "name models with either checkpoint= or dataset=, not both")
    if not names and not wanted:
        raise Problem(422, "no model is named; use checkpoint=<id>, or dataset=<name> with arm=<name>")
    return await app_state_of(request).choices.named(names, wanted, arms)


Image = tuple[Upload, SampleOut | None, str | None]
"""An image to predict, its description if it is a test image, and the problem if it is too large."""


async def read_images(files: Sequence[UploadFile], samples: Sequence[str], settings: Settings) -> list[Image]:
    """Read the images of a form: its files, and the test images that it names as `<data set>/<position>`.

    Raises:
        NoSample: a test image doesn't exist here.
    """
    files = [file for file in files if file.filename or file.size]  # a form without a chosen file sends an empty one
    if not files and not samples:
        raise Problem(422, "no image; send a file as file=, or name a test image by sample=<data set>/<position>")
    if len(files) + len(samples) > settings.max_images:
        raise Problem(413, f"{len(files) + len(samples)} images; one request takes at most {settings.max_images}")
    images: list[Image] = []
    for file in files:
        content = await file.read(settings.max_image_bytes + 1)
        name = "".join(letter for letter in (file.filename or "image")[:120] if letter.isprintable())
        fault = f"larger than {settings.max_image_bytes:,} bytes" if len(content) > settings.max_image_bytes else None
        images.append((Upload(name, content), None, fault and f"{name}: {fault}"))
    if not samples and all(fault for *_, fault in images):
        raise Problem(413, str(images[0][2]))
    return images + [await run_in_threadpool(_read_sample, settings, name) for name in samples]


def _read_sample(settings: Settings, name: str) -> Image:
    parts = SAMPLE.fullmatch(name)
    if parts is None:
        raise Problem(422, f"sample is {name[:80]!r}; expected <data set>/<position>, as mnist/7")
    packed, index = Samples(settings.root, parts[1], settings.root_path), int(parts[2])
    return Upload(f"{parts[1]}-{index}.png", packed.png(index)), packed.describe(index), None


@router.post(
    "/predict",
    tags=["inference"],
    operation_id="predict",
    response_model=PredictionOut,
    responses=SUCCESS | declared(400, 401, 404, 406, 408, 409, 413, 415, 422, 429, as_pages=True),
)
async def create_prediction(
    request: Request,
    served_checkpoints: Annotated[list[queries.ServedCheckpoint], Depends(choose_served_checkpoints)],
    file: Annotated[list[UploadFile], File(description="PNG, JPEG or WebP, any size; repeat it for more images")] = [],  # noqa: B006
    sample: Annotated[list[str], Form(description="instead of files: test images, as <data set>/<position>")] = [],  # noqa: B006
    top_k: Annotated[
        int,
        Query(
            ge=1, le=MAX_TOP, description="number of classes to return, most likely first; other answers are complete"
        ),
    ] = TOP,
) -> PredictionOut | Response:
    """Predict images with one or more models.

    The data set of a model decides its answer: the likeliest classes of the image (`top`), the probability of each of
    its `labels`, `numbers`, or a `mask` with the class of each pixel.  Models of tables and texts don't answer here.

    `checkpoint` names trained models; models trained on placeholder data answer only if named this way.  `dataset` asks
    all models of a data set, or those that `arm` names; each arm answers with its lowest replicate with the best
    evidence on real data.  If arms of several experiments match, the response is 409 with the ids of their checkpoints.
    Requests are batched; 503 with Retry-After means that too many are waiting.  An unreadable file has a `problem`
    instead of answers; if no file can be read, the request is rejected.
    """
    parts = app_state_of(request)
    wanted = preferred(request.headers.get("accept", "*/*"), {"json": "application/json", "html": "text/html"})
    images = await read_images(file, sample, parts.settings)
    uploads = [upload for upload, _, fault in images if not fault]
    parts.engine.require_capacity(len(uploads), served_checkpoints)
    prediction = await cancel_on_disconnect(
        request.receive, predict(uploads, served_checkpoints, parts.engine, top_k=top_k)
    )
    answers = iter(prediction.images)
    prediction.images = [
        ImageAnswersOut(file=upload.name, answers=[], problem=fault)
        if fault
        else next(answers).model_copy(update={"sample": known})
        for upload, known, fault in images
    ]
    if wanted == "html":
        return render_page(request, "prediction.html", prediction=prediction)
    return prediction

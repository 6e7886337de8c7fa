"""`POST /predict`: what do the trained models see in an image?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Query, Request, Response, UploadFile
from starlette.concurrency import run_in_threadpool

from service.database import queries
from service.database.samples import Samples
from service.database.schemas import PredictionOut, SampleOut
from service.dependencies import app_state_of
from service.express import MAX_NAMES, MAX_TOP, TOP, ExpressRoute
from service.http.disconnects import unless_gone
from service.http.errors import Problem, declared
from service.http.negotiation import preferred
from service.inference.decoding import Upload
from service.inference.engine import predict
from service.settings import Settings

router = APIRouter(route_class=ExpressRoute)
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
    """Names come in the query or in the form."""
    names, arms = (*checkpoint, *form_checkpoint), (*arm, *form_arm)
    for what, given in (("checkpoints", names), ("arms", arms)):
        if len(given) > MAX_NAMES:
            raise Problem(422, f"{len(given)} {what}; one request takes at most {MAX_NAMES}")
    wanted = dataset or form_dataset
    if names and wanted:
        raise Problem(422, "models are named either by checkpoint= or by dataset=, not by both")
    if not names and not wanted:
        raise Problem(422, "no model is chosen; name some by checkpoint=<id>, or by dataset=<name> with arm=<name>")
    return await app_state_of(request).choices.named(names, wanted, arms)


Image = tuple[Upload, SampleOut | None]
"""An image to be looked at; of a test image, what is known of it."""


async def read_images(files: Sequence[UploadFile], samples: Sequence[str], settings: Settings) -> list[Image]:
    """The images of a form: its files, and the test images that it names as `<data set>/<position>`.

    Raises:
        NoSample: there is no such test image here.
    """
    files = [file for file in files if file.filename or file.size]  # a form without a chosen file sends an empty one
    if not files and not samples:
        raise Problem(422, "no image came; send it as file=, or name a test image by sample=<data set>/<position>")
    if len(files) + len(samples) > settings.max_images:
        raise Problem(413, f"{len(files) + len(samples)} images; one request takes at most {settings.max_images}")
    images: list[Image] = []
    for file in files:
        content = await file.read(settings.max_image_bytes + 1)
        name = "".join(letter for letter in (file.filename or "image")[:120] if letter.isprintable())
        if len(content) > settings.max_image_bytes:
            raise Problem(413, f"{name}: larger than {settings.max_image_bytes:,} bytes")
        images.append((Upload(name, content), None))
    return images + [await run_in_threadpool(_read_sample, settings, name) for name in samples]


def _read_sample(settings: Settings, name: str) -> Image:
    parts = SAMPLE.fullmatch(name)
    if parts is None:
        raise Problem(422, f"sample is {name[:80]!r}; expected <data set>/<position>, as mnist/7")
    packed, index = Samples(settings.root, parts[1], settings.root_path), int(parts[2])
    return Upload(f"{parts[1]}-{index}.png", packed.png(index)), packed.describe(index)


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
    top_k: Annotated[int, Query(ge=1, le=MAX_TOP, description="number of classes to return, most likely first")] = TOP,
) -> PredictionOut | Response:
    """Classify images with one or more models.

    `checkpoint` names trained models; models trained on placeholder data answer only if named this way.  `dataset` asks
    all models of a data set, or those that `arm` names; each arm answers with its lowest replicate with the best
    evidence on real data.  If arms of several experiments match, the response is 409 with the ids of their checkpoints.
    Requests are batched; 503 with Retry-After means that too many are waiting.  An unreadable file has a `problem`
    instead of answers; if no file can be read, the request is rejected.
    """
    parts = app_state_of(request)
    wanted = preferred(request.headers.get("accept", "*/*"), {"json": "application/json", "html": "text/html"})
    images = await read_images(file, sample, parts.settings)
    parts.engine.require_room(len(images), served_checkpoints)
    uploads = [upload for upload, _ in images]
    prediction = await unless_gone(request.receive, predict(uploads, served_checkpoints, parts.engine, top_k=top_k))
    for answered, (_, known) in zip(prediction.images, images, strict=True):
        answered.sample = known
    if wanted == "html":
        return parts.templates.TemplateResponse(request, "prediction.html", {"prediction": prediction})
    return prediction

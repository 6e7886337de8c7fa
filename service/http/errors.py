"""Every error as problem details (RFC 9457), in one format for every status and route; browsers get a page.

A problem says what was expected and what was received, without stack traces, paths or internal names.
"""

from __future__ import annotations

import difflib
import errno
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.templating import Jinja2Templates
from pydantic import BaseModel, ConfigDict, Field
from python_multipart.multipart import DEFAULT_MAX_HEADER_COUNT as MAX_PART_HEADERS
from python_multipart.multipart import DEFAULT_MAX_HEADER_SIZE as MAX_PART_HEADER
from python_multipart.multipart import MAX_BOUNDARY_LENGTH
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from service.database.queries import AmbiguousCheckpoint, NoRealCheckpoint
from service.database.samples import NoSample
from service.inference.batching import AnswerFailed, InferenceStopped, ModelUnavailable
from service.inference.engine import TooManyAnswers, UnknownModel
from service.inference.tensors import TensorError
from service.slots import Busy
from stages.checkpoint.contract import CheckpointError
from stages.images import ImageError, ImageTooLarge
from stages.results import (
    ResultsUnavailable,
    SameModel,
    UnknownCheckpoint,
    UnknownClaim,
    UnknownMetric,
    UnknownName,
    UnknownProfile,
    UnknownRun,
)

_QUALITY = re.compile(r"q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.ASCII)


def preferred(accept: str, offers: dict[str, str]) -> str:
    """Return the offer (name to media type) that an Accept header prefers, or the first one if it has no preference.

    Raises:
        Problem: no offer is accepted (406).
    """
    weights = [(weight(accept, media), name) for name, media in offers.items()]
    best = max(found for found, _ in weights)
    if best <= 0:
        raise Problem(406, f"this address offers {', '.join(offers.values())}; Accept is {accept[:80]!r}")
    return next(name for found, name in weights if found == best)


def weight(accept: str, media: str) -> float:
    """Return the q value of the most specific range in `accept` that covers `media` (RFC 9110, 12.5.1)."""
    accept = accept if "/" in accept else "*/*"  # isn't a media type
    found: list[tuple[int, float]] = [(0, 0.0)]
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        specificity = {media: 3, f"{media.split('/')[0]}/*": 2, "*/*": 1}.get(name)
        if specificity is not None:
            qualities = (float(given[1]) for one in parameters if (given := _QUALITY.fullmatch(one)))
            found.append((specificity, next(qualities, 1.0)))
    return max(found)[1]


MEDIA_TYPE = "application/problem+json"
FOR_PROGRAMS = ("/api/", "/health/", "/metrics", "/static/", "/v2")
"""Prefixes of addresses without pages; `/predict` and unknown addresses have pages."""

FOR_MACHINES = ("/health/", "/metrics", "/v2/health/")
"""Prefixes of addresses for probes and Prometheus, which use a host's IP address as its name."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

logger = logging.getLogger("claimcheck")


class ProblemOut(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "/docs#problem-404",
                "title": "Not Found",
                "status": 404,
                "detail": "unknown dataset 'cifar1000'; known: mnist, cifar10, cifar100",
                "instance": "/compare",
            }
        }
    )
    type: str = Field(description="stable URI of this kind of problem")
    title: str
    status: int
    detail: str = Field(description="what happened and what was expected")
    instance: str = Field(description="path of the request")


class Problem(HTTPException):
    """An error with its own status that has no domain error; form parsers pass only HTTPException on."""


def title_of(status: int) -> str:
    """Return the name of a status in RFC 9110; Python renamed two of them in 3.13."""
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status) or HTTPStatus(status).phrase


def problem_of(status: int, detail: str, instance: str, root: str = "") -> ProblemOut:
    address = f"{root}/docs#problem-{status}"
    return ProblemOut(type=address, title=title_of(status), status=status, detail=detail, instance=instance)


def root_path(scope: Scope) -> str:
    """Return the path below which a proxy serves this application; static files have their own."""
    return str(scope.get("app_root_path", scope.get("root_path", "")))


def own_path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(root_path(scope))


def problem_response(
    request: Request,
    status: int,
    detail: str,
    headers: dict[str, str] | None = None,
    error: Exception | None = None,
) -> Response:
    """Return problem details, or a page if a browser asks for it. Below `/v2`, the detail is also in `error`."""
    path, root = own_path(request.scope), root_path(request.scope)
    problem = problem_of(status, detail, request.scope["path"], root)
    if not path.startswith(FOR_PROGRAMS):
        varies = [headers["vary"]] if headers and "vary" in headers else []
        headers = {**(headers or {}), "vary": ", ".join([*varies, "Accept"])}
        accept = request.headers.get("accept", "*/*")
        if weight(accept, "text/html") > weight(accept, MEDIA_TYPE):
            templates: Jinja2Templates = request.app.state.claimcheck.templates
            shown = {"problem": problem, "explained": explain(status, detail, error, request)}
            return templates.TemplateResponse(request, "problem.html", shown, status, headers)
    content = problem.model_dump()
    if path == "/v2" or path.startswith("/v2/"):
        content["error"] = detail
    return JSONResponse(content, status, headers, MEDIA_TYPE)


STATUS: dict[type[Exception], int] = {
    SameModel: 422,
    UnknownMetric: 422,
    UnknownProfile: 422,
    UnknownName: 404,
    NoSample: 404,
    AmbiguousCheckpoint: 409,
    NoRealCheckpoint: 409,
    ResultsUnavailable: 503,
    TensorError: 400,
    Busy: 503,
    InferenceStopped: 503,
    ModelUnavailable: 503,
    AnswerFailed: 500,
    TooManyAnswers: 413,
    ImageTooLarge: 413,
    ImageError: 422,
}
"""Domain errors with a message for clients."""

LISTED_AT: dict[type[Exception], str] = {
    UnknownCheckpoint: "/api/v1/checkpoints lists those that answer",
    UnknownModel: "/api/v1/checkpoints lists each as `model_name`, with its `model_version`",
    UnknownClaim: "/api/v1/claims lists them",
    UnknownRun: "/api/v1/runs lists them",
}
"""Places that list the names if there are too many for a message."""

RETRY_AFTER: dict[type[Exception], dict[str, str]] = {
    InferenceStopped: {"retry-after": "1"},
    Busy: {"retry-after": "2"},
}

FORM_FAULTS = {
    "Too many fields": (413, ""),
    "Part exceeded": (
        413,
        "a text field of the form is larger than 4 KB; a file needs a filename in its part's header",
    ),
    "Maximum header size": (400, f"a part's header has more than {MAX_PART_HEADER:,} bytes; send a shorter file name"),
    "Maximum header count": (400, f"a part of the form has more than {MAX_PART_HEADERS} headers"),
    "Boundary length": (400, f"the boundary in Content-Type has more than {MAX_BOUNDARY_LENGTH} bytes"),
    "Missing boundary": (400, "Content-Type lacks the form's boundary; let your HTTP library write this header"),
    "Expected boundary": (400, "the form doesn't begin with the boundary that Content-Type names"),
    "The Content-Disposition": (
        400,
        'a part of the form lacks its name, as in Content-Disposition: form-data; name="file"',
    ),
}
"""Status and detail of a form's faults by the beginning of the parser's message, which is the detail if it is empty."""


def fault_response(request: Request, error: BaseException) -> Response:
    """Return 500 for our own error, or 503 if the machine is out of resources. The log has the reason."""
    is_full = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in NO_ROOM)
    if is_full:
        logger.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
        detail = "this machine has run out of disk space, memory or file handles"
        return problem_response(request, 503, detail, {"retry-after": "10"})
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(request, 500, "the service failed; its log says why")


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers that run on the event loop, so that errors are answered even if all threads are busy."""

    async def domain(request: Request, error: Exception) -> Response:
        status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
        if isinstance(error, ResultsUnavailable):
            logger.error("%s %s: %s", request.method, request.url.path, error)
        listed = LISTED_AT.get(type(error))
        said = str(error)
        detail = f"{said}{'' if said.endswith('?') else ';'} {listed}" if listed else said
        return problem_response(request, status, detail, RETRY_AFTER.get(type(error)), error)

    async def http(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, OSError | MemoryError):  # the form parser's message blames the client
            return fault_response(request, error.__cause__)
        detail, status = error.detail, error.status_code
        if isinstance(form := error.__context__, MultiPartException):
            said = str(form.__cause__ or detail)
            status, ours = next((found for start, found in FORM_FAULTS.items() if said.startswith(start)), (400, ""))
            detail = ours or f"the form isn't valid multipart/form-data: {said}"
        headers = dict(error.headers or {})
        if status == 405:
            allowed = set(headers.get("Allow", "").split(", "))
            headers["Allow"] = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
            detail = f"{request.method} is not allowed here"
        elif detail == HTTPStatus(status).phrase:
            models = "; /api/v1/checkpoints lists the models" if own_path(request.scope).startswith("/v2/") else ""
            detail = f"there is nothing at this address{models}; /docs lists what there is" if status == 404 else detail
        return problem_response(request, status, detail, headers)

    async def validation(request: Request, error: RequestValidationError) -> Response:
        details = []
        for item in error.errors():
            field, message = ".".join(str(part) for part in item["loc"]), item["msg"][0].lower() + item["msg"][1:]
            got = f", got {item['input'][:80]!r}" if isinstance(item.get("input"), str) else ""
            is_text = "UploadFile" in item["msg"]
            reason = "this is text; send a file, in a part with a filename" if is_text else f"{message}{got}"
            details.append(f"{field}: {reason}")
        return problem_response(request, 422, "; ".join(details))

    async def unavailable(request: Request, error: Exception) -> Response:
        logger.error("%s %s: %s", request.method, request.url.path, error)
        if isinstance(error, NoConnection):
            return problem_response(request, 503, "too many requests read the database", {"retry-after": "2"})
        what = "the checkpoint's weights" if isinstance(error, CheckpointError) else "the results database"
        return problem_response(request, 503, f"{what} can't be read at the moment", {"retry-after": "10"})

    async def cut(request: Request, _error: Exception) -> Response:
        return problem_response(request, 400, "the body ended before it was complete")

    for kind in STATUS:
        app.add_exception_handler(kind, domain)
    app.add_exception_handler(HTTPException, http)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, validation)  # type: ignore[arg-type]
    for kind in (CheckpointError, DBAPIError, NoConnection):
        app.add_exception_handler(kind, unavailable)
    app.add_exception_handler(ClientDisconnect, cut)


def declared(*statuses: int, as_pages: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return the errors that a route may answer with, for OpenAPI; every route may also answer 500 and 503."""
    content: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}}
    return {
        status: {"description": title_of(status), "content": content | {"text/html": {}} if as_pages else content}
        for status in (*statuses, 500, 503)
    }


_NOUNS = {"dataset": "data set", "arm": "model"}
_TITLES: Mapping[int, str] = {
    400: "This request can’t be understood",
    401: "This needs an API key",
    404: "No such page",
    405: "This address has no page",
    408: "That took too long",
    409: "This is ambiguous",
    413: "This is too large",
    415: "This kind of file isn’t supported",
    422: "This can’t be answered as asked",
    429: "Too many requests; please wait a little",
    500: "Something went wrong here",
    503: "Not available at the moment",
}
_PAGES = {"paper": "/papers/{}", "dataset": "/compare?dataset={}", "experiment": "/experiments/{}"}
"""Path of the page of each kind of resource."""
MOST_OFFERED = 24


def explain(status: int, detail: str, error: Exception | None, request: Request) -> dict[str, Any]:
    """Explain the status to users; `detail` is for programs.

    `offers` are suggested (address, name), likeliest first; `asked` fills the search field.
    """
    path = request.scope["path"]
    if isinstance(error, UnknownName):
        noun = _NOUNS.get(error.kind, error.kind)
        lead = f"There is no {noun} with the name “{error.name[:80]}”. The address may have a typo or be outdated."
        near = [error.nearest] if error.nearest else difflib.get_close_matches(error.name, error.known, n=3)
        names = [*near, *(name for name in error.known if name not in near)][:MOST_OFFERED]
        offers = [(address, name) for name in names if (address := _address(error.kind, name, request))]
        return {"title": f"No such {noun}", "lead": lead, "asked": _words(error.name), "offers": offers}
    if status == 404:
        lead = "Nothing is at this address. It may have a typo or be outdated."
        return {"title": _TITLES[404], "lead": lead, "asked": _words(path.rpartition("/")[2])}
    return {"title": _TITLES.get(status, "This didn’t work"), "lead": f"{detail[:1].upper()}{detail[1:]}"}


def _address(kind: str, name: str, request: Request) -> str:
    """Return the page of a resource or, for a choice on a page, this page with the other choice."""
    if kind == "claim":
        return f"/claims/{quote(name)}"
    if kind in _PAGES:
        return _PAGES[kind].format(quote(name))
    if kind not in request.query_params:
        return ""
    query = request.url.include_query_params(**{kind: name}).query
    return f"{quote(request.scope['path'])}?{query}"


def _words(name: str) -> str:
    """Turn an identifier into words to search for."""
    return " ".join(re.findall(r"[^\W_]+", name))[:100]

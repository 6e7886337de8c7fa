"""Every error as problem details (RFC 9457): one shape for every status on every route.

A problem says what was expected and what came.  It never holds a stack trace, a path or the name of an internal.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

from service.batching import AnswerFailed, InferenceStopped, QueueFull
from service.headers import SECURITY_HEADERS
from service.queries import AmbiguousCheckpoint, NoRealCheckpoint
from service.tensors import TensorError
from stages.checkpoint.contract import CheckpointError
from stages.images import ImageError, ImageTooLarge
from stages.results import ResultsUnavailable, UnknownMetric, UnknownName, UnknownProfile

MEDIA_TYPE = "application/problem+json"
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
    type: str = Field(description="a stable address of this kind of problem")
    title: str
    status: int
    detail: str = Field(description="what was expected and what came")
    instance: str = Field(description="path of the request")


class Problem(Exception):
    """An error with a status of its own, raised where no domain error fits."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class BodyTooLarge(HTTPException):
    """Raised while a body is being received; an HTTPException, since form parsers let no other one through."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the request body is larger than {limit:,} bytes")


class BodyTooSlow(HTTPException):
    """Raised while a body is being received, as `BodyTooLarge`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(408, f"the request body didn't arrive within {seconds:g} s")


def title_of(status: int) -> str:
    """The name of a status in RFC 9110; Python renamed two of them in 3.13."""
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status) or HTTPStatus(status).phrase


def problem_response(instance: str, status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """`instance` is the request's path.  Below `/v2` the detail is `error`, too, for its clients."""
    problem = ProblemOut(
        type=f"/docs#problem-{status}",
        title=title_of(status),
        status=status,
        detail=detail,
        instance=instance,
    )
    content = problem.model_dump()
    if instance == "/v2" or instance.startswith("/v2/"):
        content["error"] = detail
    return JSONResponse(content, status, headers, MEDIA_TYPE)


STATUS: dict[type[Exception], int] = {
    UnknownMetric: 422,
    UnknownProfile: 422,
    UnknownName: 404,
    AmbiguousCheckpoint: 409,
    NoRealCheckpoint: 409,
    ResultsUnavailable: 503,
    TensorError: 400,
    QueueFull: 503,
    InferenceStopped: 503,
    AnswerFailed: 500,
    ImageTooLarge: 413,
    ImageError: 422,
}
"""Domain errors whose message is fit to be shown."""

FORM_LIMITS = ("Too many files", "Too many fields", "Part exceeded")
"""How the form parser begins what it says of a form beyond its limits, as a 400."""

HTTP_DETAILS = {404: "there is nothing at this address; /docs lists what there is"}


def install_error_handlers(app: FastAPI) -> None:
    def domain(request: Request, error: Exception) -> JSONResponse:
        status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
        headers = {"retry-after": "1"} if isinstance(error, QueueFull) else None
        return problem_response(request.url.path, status, str(error), headers)

    def explicit(request: Request, error: Problem) -> JSONResponse:
        return problem_response(request.url.path, error.status, error.detail, error.headers)

    def http(request: Request, error: HTTPException) -> JSONResponse:
        detail, status = error.detail, error.status_code
        if status == 400 and detail.startswith(FORM_LIMITS):
            status = 413
        if status == 405:
            detail = f"{request.method} is not allowed here"
        elif detail == HTTPStatus(status).phrase:
            detail = HTTP_DETAILS.get(status, detail)
        return problem_response(request.url.path, status, detail, dict(error.headers or {}))

    def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem_response(request.url.path, 422, "; ".join(_explain(item) for item in error.errors()))

    def unavailable(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s: %s", request.method, request.url.path, error)
        what = "the checkpoint's weights" if isinstance(error, CheckpointError) else "the results database"
        return problem_response(request.url.path, 503, f"{what} can't be read at the moment")

    def unexpected(request: Request, _error: Exception) -> JSONResponse:
        # outside of every middleware, hence the headers; the server logs the traceback after this answer
        return problem_response(request.url.path, 500, "the service failed; its log says why", SECURITY_HEADERS)

    for kind in STATUS:
        app.add_exception_handler(kind, domain)
    app.add_exception_handler(Problem, explicit)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, http)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, validation)  # type: ignore[arg-type]
    app.add_exception_handler(CheckpointError, unavailable)
    app.add_exception_handler(DBAPIError, unavailable)
    app.add_exception_handler(Exception, unexpected)


def _explain(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    message = item["msg"][0].lower() + item["msg"][1:]
    value = item.get("input")
    return f"{place}: {message}" + (f", got {value[:80]!r}" if isinstance(value, str) else "")


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for OpenAPI; every route may also answer 500 and 503."""
    return {
        status: {
            "description": title_of(status),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}},
        }
        for status in (*statuses, 500, 503)
    }

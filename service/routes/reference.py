"""`/docs`: the API's reference, rendered from its own OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from service.dependencies import TURN, render_page
from service.http.errors import root_path

router = APIRouter(include_in_schema=False)
METHODS = ("get", "post", "put", "patch", "delete")
PROBLEMS = {
    400: "The body doesn't match its Content-Type, a tensor doesn't match the model, or the request isn't valid HTTP.",
    401: "This service needs an API key: Authorization: Bearer <key>.",
    404: "Unknown name or address. The detail lists the known names if there are few.",
    405: "The address doesn't support this method; Allow lists those that it does.",
    406: "Accept has none of the media types that the address offers.",
    408: "The request's headers or its body didn't arrive in time.",
    409: "Models of several experiments fit; the detail lists the checkpoints to choose from. "
    "Or only models trained on placeholder data fit, and those must be named by checkpoint.",
    410: "The results were rebuilt since the first page; start again without a cursor.",
    413: "The request, a file, the number of files or an image is larger than the limit in the detail.",
    415: "Send images as multipart/form-data, and tensors without a Content-Encoding.",
    416: "The range begins after the end; Content-Range has the size.",
    421: "The service doesn't serve the host that the request names.",
    422: "A parameter or a file is invalid; the detail says what was expected and what came.",
    429: "The key or client exceeded its requests per minute or day; Retry-After says when to try again.",
    431: "The request's headers are too large.",
    500: "The service failed; its log says why. Please report it.",
    503: "The results database or a checkpoint's weights can't be read at the moment, the service is starting or "
    "stopping, too many requests or images are waiting, or the machine lacks resources. Try again after Retry-After.",
}


@router.get("/openapi.json")
async def redirect_schema(request: Request) -> RedirectResponse:
    """Redirect FastAPI's usual address to ours."""
    return RedirectResponse(f"{request.scope['root_path']}/api/v1/openapi.json", 308)


@router.get("/api/v1/openapi.json", dependencies=[TURN])
def read_schema(request: Request) -> Response:
    """Return the OpenAPI document, with the path prefix of the proxy."""
    document, root = request.app.openapi(), root_path(request.scope)
    return JSONResponse(document | {"servers": [{"url": root}]} if root else document)


@router.get("/docs", dependencies=[TURN])
def show_reference(request: Request) -> Response:
    """Show every operation with its parameters, an example answer and its errors."""
    document = request.app.openapi()
    operations = [
        describe(document, method, path, item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for operation in operations:
        groups.setdefault(operation["tag"], []).append(operation)
    return render_page(
        request,
        "reference.html",
        document=document,
        groups=groups,
        problems=PROBLEMS,
        address=str(request.base_url).rstrip("/"),
    )


def describe(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    """Describe one operation for readers."""
    success = operation["responses"]["200"].get("content", {}).get("application/json", {})
    sample = operation.get("x-codeSamples", [{}])[0].get("source")
    sent = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("x-example")
    body = operation.get("requestBody", {}).get("content", {}).get("multipart/form-data", {}).get("schema")
    fields = resolve(document, body)["properties"] if body else {}
    return {
        "id": operation["operationId"],
        "tag": operation["tags"][0],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("description", operation["summary"]),  # `python -OO` drops docstrings
        "parameters": [
            {
                "name": parameter["name"],
                "where": parameter["in"],
                "required": parameter["required"],
                "type": type_of(document, parameter["schema"]),
                "text": parameter.get("description", ""),
            }
            for parameter in operation.get("parameters", [])
        ]
        + [
            {
                "name": name,
                "where": "form",
                "required": name in resolve(document, body or {}).get("required", []),
                "type": "files" if name == "file" else type_of(document, schema),
                "text": schema.get("description", ""),
            }
            for name, schema in fields.items()
        ],
        "curl": sample,
        "sent": json.dumps(sent, ensure_ascii=False) if sent else "",
        "answer": json.dumps(success["example"], indent=2, ensure_ascii=False) if "example" in success else "",
        "errors": sorted(status for status in operation["responses"] if status != "200"),
    }


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def type_of(document: dict[str, Any], schema: dict[str, Any]) -> str:
    schema = resolve(document, schema)
    if "anyOf" in schema:
        return " or ".join(kind for item in schema["anyOf"] if (kind := type_of(document, item)) != "null")
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"{type_of(document, schema.get('items', {}))}, repeatable"
    return str(schema.get("type", "any"))

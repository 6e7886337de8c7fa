"""The OpenAPI document, with our single error shape where FastAPI would describe its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.examples import load_examples
from service.http.errors import ProblemOut, declared


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the document once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ProblemOut"] = ProblemOut.model_json_schema()
        problem = declared(422)[422]
        for item in document["paths"].values():
            for operation in item.values():
                if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                    operation["responses"]["422"] = problem
        _add_examples(document, load_examples())
        app.openapi_schema = document
    return app.openapi_schema


def _add_examples(document: dict[str, Any], examples: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds real requests as commands, and their answers as examples."""
    for item in document["paths"].values():
        for operation in item.values():
            example = examples.get(operation["operationId"])
            if example is None:
                continue
            operation["x-codeSamples"] = [{"lang": "shell", "source": example["curl"]}]
            operation["responses"]["200"]["content"]["application/json"]["example"] = example["answer"]
            if "body" in example:
                operation["requestBody"]["content"]["application/json"]["x-example"] = example["body"]

"""Routes that refuse query parameters they don't have: a misspelt filter would answer with everything."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from service.errors import Problem, declared


class StrictRoute(APIRoute):
    """A route that answers 422 to a query parameter of another name, with the names that it knows."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["responses"] = declared(422) | (options.get("responses") or {})
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        known = {field.alias for field in get_flat_params(self.dependant) if isinstance(field.field_info, Query)}
        names = f"known: {', '.join(sorted(known))}" if known else "it takes none"

        async def checked(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    raise Problem(422, f"unknown query parameter {name[:80]!r}; {names}")
            return await handler(request)

        return checked

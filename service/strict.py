"""Routes that refuse unknown or repeated query parameters rather than answer something else.

Otherwise a misspelt filter would be ignored, and of two data sets the last would count.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, get_origin

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from service.errors import Problem, declared


class StrictRoute(APIRoute):
    """A route that answers 422 to an unknown query parameter, naming those it knows, or to one given too often."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["responses"] = declared(422) | (options.get("responses") or {})
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        fields = [field for field in get_flat_params(self.dependant) if isinstance(field.field_info, Query)]
        known = {field.alias for field in fields}
        repeatable = {field.alias for field in fields if get_origin(field.field_info.annotation) is list}
        names = f"known: {', '.join(sorted(known))}" if known else "it takes none"

        async def checked(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    raise Problem(422, f"unknown query parameter {name[:80]!r}; {names}")
                times = len(request.query_params.getlist(name))
                if times > 1 and name not in repeatable:
                    raise Problem(422, f"query parameter {name!r} is given {times} times; expected once")
            return await handler(request)

        return checked

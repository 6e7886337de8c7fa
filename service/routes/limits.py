"""How much of a list one request gets."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

Limit = Annotated[int, Query(ge=1, le=1000, description="at most this many")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="after this many")]

"""Headers of every answer, and the limit on those of a request.

The page runs no inline script, uses no inline style and loads nothing from another host.
"""

from __future__ import annotations

from starlette.datastructures import Headers

MAX_REQUEST_HEADER_BYTES = 32 * 1024
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def known_tags(headers: Headers) -> list[str]:
    """The entity tags of If-None-Match, without the W/ of weak ones: a weak comparison (RFC 9110, section 13.1.2)."""
    tags = ",".join(headers.getlist("if-none-match")).split(",")
    return [tag.strip().removeprefix("W/") for tag in tags]

"""Choose the media type of ours that a client prefers (RFC 9110, section 12.5.1)."""

from __future__ import annotations

import re

_QUALITY = re.compile(r"(0(\.\d{0,3})?|1(\.0{0,3})?)")


class NotAcceptable(ValueError):
    """The client accepts none of our media types."""


def preferred(accept: str, offers: dict[str, str]) -> str:
    """The offer (name to media type) that an Accept header prefers; the first one if it has no preference.

    Raises:
        NotAcceptable: none of the offers is accepted.
    """
    weights = [(weight(accept, media), name) for name, media in offers.items()]
    best = max(found for found, _ in weights)
    if best <= 0:
        raise NotAcceptable(f"this address offers {', '.join(offers.values())}; Accept is {accept[:80]!r}")
    return next(name for found, name in weights if found == best)


def weight(accept: str, media: str) -> float:
    """Q of the most specific range in `accept` that covers `media` (RFC 9110, 12.5.1)."""
    accept = accept if "/" in accept else "*/*"  # doesn't name a type
    found: list[tuple[int, float]] = [(0, 0.0)]
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        specificity = {media: 3, f"{media.split('/')[0]}/*": 2, "*/*": 1}.get(name)
        if specificity is not None:
            found.append((specificity, _quality(parameters)))
    return max(found)[1]


def _quality(parameters: list[str]) -> float:
    """The q of a range; 1 if there is none, or none that is a number from 0 to 1."""
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q" and _QUALITY.fullmatch(value.strip()):
            return float(value)
    return 1.0

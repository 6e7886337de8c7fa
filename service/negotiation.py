"""Which of our media types does a client want?  (RFC 9110, section 12.5.1)"""

from __future__ import annotations

from service.errors import Problem


def preferred(accept: str, offers: dict[str, str]) -> str:
    """The offer (name to media type) that an Accept header likes best; the first one where it doesn't care.

    Raises:
        Problem: none of the offers is acceptable (406).
    """
    weights = [(_weight(accept, media), name) for name, media in offers.items()]
    best = max(weight for weight, _ in weights)
    if best <= 0:
        raise Problem(406, f"this address offers {', '.join(offers.values())}; Accept is {accept[:80]!r}")
    return next(name for weight, name in weights if weight == best)


def _weight(accept: str, media: str) -> float:
    """Q of the most specific range in `accept` that covers `media` (RFC 9110, 12.5.1)."""
    found: list[tuple[int, float]] = [(0, 0.0)]
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        specificity = {media: 3, f"{media.split('/')[0]}/*": 2, "*/*": 1}.get(name)
        if specificity is not None:
            found.append((specificity, _quality(parameters)))
    return max(found)[1]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0

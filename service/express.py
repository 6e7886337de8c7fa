"""The short way through `POST /predict` for the request that is sent most often: one small file, answered as JSON.

It skips what FastAPI does for any form: a parser for all of them, dependencies, validation of what was validated.  A
request of any other kind, all that are refused among them, goes on to the route itself with its body as it came, so
every rule and every error stands there alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from starlette.types import Message, Receive, Scope, Send

from service.dependencies import AppState
from service.http.disconnects import unless_gone
from service.http.forms import only_file
from service.http.strict import FormRoute
from service.inference.decoding import Upload
from service.inference.engine import predict

MAX_BYTES = 64 * 1024
"""Of a body; a larger one takes so long to decode that the way to it doesn't count."""
MAX_NAMES, MAX_TOP, TOP = 64, 1000, 5
JSON = frozenset({b"", b"*/*", b"application/json"})
_PLAIN = re.compile(rb"(checkpoint|dataset|arm|top_k)=([0-9A-Za-z._-]{1,200})")
_DIGITS = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True)
class Query:
    """As `create_prediction` takes it."""

    checkpoints: tuple[str, ...]
    dataset: str | None
    arms: tuple[str, ...]
    top_k: int


class ExpressRoute(FormRoute):
    """A form's route with the short way in front."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        is_plain = scope["method"] == "POST" and len(headers) == len(scope["headers"]) and _is_plain(headers)
        query = read_query(scope["query_string"]) if is_plain else None
        if query is None:
            await super().handle(scope, receive, send)
            return
        messages, body = await _received(receive)
        parts: AppState = scope["app"].state.claimcheck
        form = only_file(headers.get(b"content-type", b""), body)
        if form is None or form[0] != "file" or len(form[2]) > parts.settings.max_image_bytes:
            await super().handle(scope, _again(messages, receive), send)
            return
        answer = await unless_gone(receive, _predict(parts, query, Upload(*form[1:])))
        fields = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": answer})


async def _predict(parts: AppState, query: Query, upload: Upload) -> bytes:
    served = await parts.choices.named(query.checkpoints, query.dataset, query.arms)
    parts.engine.require_room(1, served)
    return (await predict([upload], served, parts.engine, top_k=query.top_k)).model_dump_json().encode()


def _is_plain(headers: dict[bytes, bytes]) -> bool:
    """True for a short body of known length, to be answered as JSON."""
    length = headers.get(b"content-length", b"")
    return length.isdigit() and int(length[:9]) <= MAX_BYTES and headers.get(b"accept", b"") in JSON


@lru_cache(1024)
def read_query(text: bytes) -> Query | None:
    """The models and number of classes that a plain query asks for; None for one that is refused, or not plain."""
    given: dict[bytes, list[str]] = {b"checkpoint": [], b"dataset": [], b"arm": [], b"top_k": []}
    for part in text.split(b"&"):
        plain = _PLAIN.fullmatch(part)
        if plain is None:
            return None
        given[plain[1]].append(plain[2].decode("ascii"))
    checkpoints, datasets, arms, tops = given.values()
    top_k = int(tops[0]) if tops and _DIGITS.fullmatch(tops[0]) else TOP
    is_fit = len(datasets) + bool(checkpoints) == 1 and len(checkpoints) <= MAX_NAMES >= len(arms)
    if not is_fit or len(tops) > 1 or tops not in ([], [str(top_k)]) or top_k > MAX_TOP:
        return None
    return Query(tuple(checkpoints), datasets[0] if datasets else None, tuple(arms), top_k)


async def _received(receive: Receive) -> tuple[list[Message], bytes]:
    """The whole body, and the messages in which it came."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages, b"".join(message.get("body", b"") for message in messages)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Receives `messages` once more before what comes after them."""
    left = iter(messages)

    async def received() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return received

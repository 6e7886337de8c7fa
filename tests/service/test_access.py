from __future__ import annotations

import hmac
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from service.access import Gate, Refused, digest_of, new_key
from service.settings import Settings
from tests.service.conftest import png, serving
from tests.service.test_errors import VIT, assert_problem

OIP = "/v2/models/ninformer-cifar100.vit/infer"


def ask(client: TestClient, key: str | None = None, *, path: str = VIT) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return client.post(path, files={"file": png()}, headers=headers).status_code


def test_a_key_opens_inference_and_reading_needs_none(settings: Settings) -> None:
    (key, digest), (other, _) = new_key(), new_key()
    assert digest_of(key) == digest and len(key) >= 40
    with serving(settings.model_copy(update={"api_keys": (digest_of("another"), digest)})) as client:
        assert ask(client, key) == 200
        for wrong in (None, "", other, key[:-1], key + "x", digest, "é"):
            headers = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
            response = client.post(VIT, files={"file": png()}, headers=headers)
            assert_problem(response, 401, "send Authorization: Bearer <key>")
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.post(VIT, files={"file": png()}, headers={"authorization": f"Basic {key}"}).status_code == 401
        assert client.post(OIP, json={}).status_code == 401
        assert client.get("/compare").status_code == client.get("/health/ready").status_code == 200


def test_a_key_is_compared_with_every_digest_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In constant time: neither the position of a key in the list nor a common prefix shows in the time taken."""
    compared: list[tuple[str, str]] = []

    def watched(found: str, digest: str) -> bool:
        compared.append((found, digest))
        return hmac.compare_digest(found, digest)

    monkeypatch.setattr("service.access.hmac", SimpleNamespace(compare_digest=watched))
    digests = [digest_of(key) for key in ("first", "second", "third")]
    for key in ("first", "third"):
        compared.clear()
        Gate(digests, None).admit(f"Bearer {key}", "127.0.0.1")
        assert compared == [(digest_of(key), digest) for digest in digests]


def test_a_body_is_not_received_without_a_key(settings: Settings) -> None:
    with serving(settings.model_copy(update={"api_keys": (digest_of("key"),)})) as client:
        sent = 0

        def body() -> bytes:
            nonlocal sent
            sent += 1
            return b"x" * 100_000

        chunks = iter(body, b"")
        headers = {"content-length": str(10**6 - 1), "content-type": "multipart/form-data; boundary=b"}
        assert client.post(VIT, content=(next(chunks) for _ in range(9)), headers=headers).status_code == 401


def test_a_client_that_asks_too_often_is_told_when_to_come_back(settings: Settings) -> None:
    with serving(settings.model_copy(update={"requests_per_minute": 2})) as client:
        assert [ask(client), ask(client)] == [200, 200]
        response = client.post(VIT, files={"file": png()})
        assert_problem(response, 429, "more than 2 requests in a minute")
        assert 25 <= int(response.headers["retry-after"]) <= 30
        assert client.get("/compare").status_code == 200


def test_each_key_has_a_rate_of_its_own_that_fills_again() -> None:
    now = 0.0
    gate = Gate([digest_of("a"), digest_of("b")], 60, clock=lambda: now)

    def admitted(key: str) -> bool:
        try:
            gate.admit(f"Bearer {key}", "127.0.0.1")
        except Refused as refused:
            return refused.status != 429
        return True

    assert [admitted("a") for _ in range(61)] == [True] * 60 + [False]
    assert admitted("b")
    now = 1.0
    assert [admitted("a"), admitted("a")] == [True, False], "one a second"
    now = 1e6
    assert [admitted("a") for _ in range(61)] == [True] * 60 + [False], "never more than a minute's worth"


def test_clients_come_and_go_without_filling_memory() -> None:
    gate = Gate([], 1, clock=lambda: 0.0)
    for number in range(20_000):
        gate.admit("", f"client {number}")
    assert len(gate._buckets) == 10_000


@pytest.mark.parametrize("digest", ["x", "F" * 64, "0" * 63, "my secret key"])
def test_a_key_in_the_clear_is_no_setting(digest: str) -> None:
    with pytest.raises(ValueError, match="api_keys"):
        Settings(api_keys=(digest,))


def test_other_sites_may_call_where_the_operator_says_so(settings: Settings) -> None:
    origin = {"origin": "https://friend.example"}
    with serving(settings.model_copy(update={"cors_origins": ("https://friend.example",)})) as client:
        assert client.get("/compare", headers=origin).headers["access-control-allow-origin"] == "https://friend.example"
        stranger = client.get("/compare", headers={"origin": "https://stranger.example"})
        assert "access-control-allow-origin" not in stranger.headers


def test_lists_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMCHECK_ALLOWED_HOSTS", "claimcheck.example, localhost")
    assert Settings().allowed_hosts == ("claimcheck.example", "localhost")

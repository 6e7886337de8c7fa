import asyncio
import hmac
import itertools
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.__main__ import warn_if_open
from service.http.access import (
    AccessDenied,
    AccessPolicy,
    CountsError,
    Key,
    KeyFile,
    KeysError,
    RequestCounter,
    client_of,
    digest_of,
    new_key,
    read_keys,
)
from service.http.middleware import KeysAndRates
from service.settings import Settings
from tests.preloaded import python
from tests.project import REPOSITORY
from tests.service.conftest import keys_file, png, reading, serving
from tests.service.test_errors import VIT, assert_problem

pytestmark = pytest.mark.slow

OIP = "/v2/models/ninformer-cifar100.vit/infer"
UNKNOWN = "/predict?checkpoint=nothing"
"""404 for clients that may use inference, without starting it."""


def ask(client: TestClient, key: str, *, path: str = UNKNOWN) -> int:
    return client.post(path, files={"file": png()}, headers={"authorization": f"Bearer {key}"}).status_code


def policy_of(per_minute: int | None, *keys: str, **options: Any) -> AccessPolicy:
    named = {key: Key(sha256=(digest_of(key),)) for key in keys}
    return AccessPolicy((lambda: named) if keys else None, per_minute, **options)


def is_admitted(policy: AccessPolicy, key: str) -> bool:
    try:
        policy.admit(f"Bearer {key}", "127.0.0.1")
    except AccessDenied as refused:
        return refused.status_code != 429
    return True


def test_only_inference_requires_a_key(settings: Settings, tmp_path: Path) -> None:
    (key, digest), (other, _) = new_key(), new_key()
    assert digest_of(key) == digest and len(key) >= 40
    with serving(settings.model_copy(update={"keys": keys_file(tmp_path, another="another", mine=key)})) as client:
        assert ask(client, key, path=VIT) == 200
        for wrong in (None, "", other, key[:-1], key + "x", digest, "é"):
            headers = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
            response = client.post(VIT, files={"file": png()}, headers=headers)
            assert_problem(response, 401, "send Authorization: Bearer <key>")
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.post(VIT, files={"file": png()}, headers={"authorization": f"Basic {key}"}).status_code == 401
        assert client.post(OIP, json={}).status_code == 401
        assert client.get("/compare").status_code == client.get("/health/ready").status_code == 200


def test_key_is_compared_with_every_digest_even_after_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant time: neither a key's position in the list nor a common prefix may affect the response time."""
    compared: list[tuple[str, str]] = []

    def watched(given: str, digest: str) -> bool:
        compared.append((given, digest))
        return hmac.compare_digest(given, digest)

    monkeypatch.setattr("service.http.access.hmac", SimpleNamespace(compare_digest=watched))
    keys = ("first", "second", "third")
    for key in ("first", "third"):
        compared.clear()
        assert policy_of(None, *keys).admit(f"Bearer {key}", "127.0.0.1") == key
        assert compared == [(digest_of(key), digest_of(one)) for one in keys]


def test_post_from_another_site_is_403(settings: Settings) -> None:
    friend = "https://friend.example"
    strangers = ("https://stranger.example", "http://127.0.0.1:3000", "null", "javascript:", "x" * 5000)
    with reading(settings.model_copy(update={"cors_origins": (friend,)})) as client:
        for origin, path in itertools.product(strangers, (UNKNOWN, OIP)):
            refused = client.post(path, files={"file": png()}, headers={"origin": origin})
            assert refused.status_code == 403 and "may not send this" in refused.json()["detail"]
            assert client.get("/compare", headers={"origin": origin}).status_code == 200
        for own in (friend, "http://127.0.0.1", "https://127.0.0.1"):
            answer = client.post(UNKNOWN, files={"file": png()}, headers={"origin": own})
            assert answer.status_code == 404
        shown = [client.get("/compare", headers={"origin": origin}).headers for origin in (friend, strangers[0])]
    assert [head.get("access-control-allow-origin") for head in shown] == [friend, None]


def test_each_key_has_its_own_rate_limit_that_refills() -> None:
    now = 0.0
    policy = policy_of(60, "a", "b", clock=lambda: now)
    assert [is_admitted(policy, "a") for _ in range(61)] == [True] * 60 + [False]
    assert is_admitted(policy, "b")
    now = 1.0
    assert [is_admitted(policy, "a"), is_admitted(policy, "a")] == [True, False], "one request per second refills"
    now = 1e6
    assert [is_admitted(policy, "a") for _ in range(61)] == [True] * 60 + [False], "never more than a minute's worth"


def test_key_file_can_set_rate_and_daily_quota_of_a_key() -> None:
    now = 86_400.0 * 20_000 - 30
    named = {
        "a": Key(sha256=(digest_of("a"),), requests_per_minute=1),
        "b": Key(sha256=(digest_of("b"),), requests_per_day=3),
    }
    policy = AccessPolicy(lambda: named, 100, clock=lambda: now)
    assert [is_admitted(policy, "a"), is_admitted(policy, "a")] == [True, False]
    assert [is_admitted(policy, "b") for _ in range(4)] == [True] * 3 + [False]
    with pytest.raises(AccessDenied, match="more than 3 requests in a day") as refused:
        policy.admit("Bearer b", "")
    assert refused.value.headers == {"retry-after": "30"}
    now += 31
    assert is_admitted(policy, "b"), "a new day has begun"


def test_old_and_new_key_of_a_name_share_its_rate_limit() -> None:
    named = {"a": Key(sha256=(digest_of("old"), digest_of("new")))}
    policy = AccessPolicy(lambda: named, 2, clock=lambda: 0.0)
    assert [is_admitted(policy, key) for key in ("old", "new", "old", "new")] == [True, True, False, False]


def test_changed_key_file_is_read_without_a_restart(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = keys_file(tmp_path, ann="first")
    with reading(settings.model_copy(update={"keys": file})) as client:
        assert [ask(client, "first"), ask(client, "second")] == [404, 401]
        keys_file(tmp_path, ann=f'sha256 = ["{digest_of("first")}", "{digest_of("second")}"]')
        assert [ask(client, "first"), ask(client, "second")] == [404, 404]
        other = tmp_path / "other.toml"
        os.replace(keys_file(tmp_path, ann="second"), other)  # missing for a moment, as when it is replaced
        assert [ask(client, "first"), ask(client, "second")] == [404, 404], "the previous keys stay valid"
        os.replace(other, file)
        assert [ask(client, "first"), ask(client, "second")] == [401, 404]
        file.write_text("not a [table", encoding="utf-8")
        assert [ask(client, "first"), ask(client, "second")] == [401, 404], "the previous keys stay valid"
        assert "keys.toml: " in caplog.text and "the previous keys stay valid" in caplog.text
        text = client.get("/metrics").text
    assert 'claimcheck_key_requests_total{key="ann",status="404"} 7.0' in text
    assert digest_of("second") not in caplog.text + text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it contains no key"),
        ("x", "Expected '='"),
        ("[ann]\n", "ann.sha256: Field required"),
        ('[ann]\nsha256 = "my secret key"\n', "ann.sha256: Input should be a valid tuple"),
        ('[ann]\nsha256 = ["my secret key"]\n', "ann.sha256.0: String should match pattern"),
        (f'[ann]\nsha256 = ["{"F" * 64}"]\n', "ann.sha256.0: String should match pattern"),
        (
            f'[ann]\nsha256 = ["{"0" * 64}"]\nrequests_per_minute = 0\n',
            "ann.requests_per_minute: Input should be greater",
        ),
        (f'[ann]\nsha256 = ["{"0" * 64}"]\nrequests = 5\n', "ann.requests: Extra inputs are not permitted"),
        (f'["a b"]\nsha256 = ["{"0" * 64}"]\n', "String should match pattern"),
    ],
    ids=range(9),
)
def test_invalid_key_file_is_rejected_in_one_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(KeysError) as refused:
        KeyFile(file)
    assert words in str(refused.value) and "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def start(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "CLAIMCHECK_ROOT": str(tmp_path), **environment}
    return python("-m", "service", *arguments, cwd=REPOSITORY, env=own)


def test_missing_key_file_or_unknown_key_setting_prevents_start(tmp_path: Path) -> None:
    process = start(tmp_path, CLAIMCHECK_KEYS="nothing.toml")
    assert (process.returncode, process.stderr) == (
        1,
        "service: CLAIMCHECK_KEYS: nothing.toml: No such file or directory\n",
    )
    process = start(tmp_path, CLAIMCHECK_API_KEYS=digest_of("x"))
    assert process.returncode == 1 and "CLAIMCHECK_KEYS names a file of keys" in process.stderr


def test_new_key_is_printed_with_its_key_file_entry(tmp_path: Path) -> None:
    printed = start(tmp_path, "--new-key", "ann").stdout
    file = tmp_path / "keys.toml"
    file.write_text(printed.partition("\n\n")[2], encoding="utf-8")
    key = printed.partition("client): ")[2].partition("\n")[0]
    assert read_keys(file) == {"ann": Key(sha256=(digest_of(key),))}


@pytest.mark.parametrize(
    ("host", "keys", "is_open"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("::", False, True), ("127.0.0.1", False, False)],
)
def test_public_service_without_keys_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, keys: bool, is_open: bool
) -> None:
    settings = Settings(root=tmp_path, keys=keys_file(tmp_path, ann="key") if keys else None)
    warn_if_open(host, settings)
    assert (f"OPEN TO ALL: {host}" in caplog.text) == is_open


def test_number_of_counted_clients_is_bounded() -> None:
    policy = policy_of(1, clock=lambda: 0.0)
    for number in range(20_000):
        policy.admit("", f"client {number}")
    kept = policy.counts._database.execute("SELECT count(*), min(holder) FROM buckets WHERE holder = 'client 19999'")
    assert kept.fetchone() == (1, "client 19999"), "the latest clients are kept"
    assert policy.counts._database.execute("SELECT count(*) FROM buckets").fetchone() == (10_000,)


def test_servers_share_rates_and_quotas_through_a_file(settings: Settings, tmp_path: Path) -> None:
    keys = keys_file(tmp_path, ann=f'sha256 = ["{digest_of("ann")}"]\nrequests_per_day = 5')
    shared = settings.model_copy(update={"keys": keys, "counts": tmp_path / "counts.db"})
    with reading(shared) as one, reading(shared) as two:
        assert [ask(client, "ann") for client in (one, two) * 4] == [404] * 5 + [429] * 3
    with reading(shared) as again:
        assert ask(again, "ann") == 429, "a restart forgets nothing"


def test_processes_with_a_shared_file_respect_one_rate_limit(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from service.http.access import RequestCounter; "
        "counts = RequestCounter(Path(sys.argv[1])); "
        "print(sum(counts.admit('a', per_minute=100, per_day=None, now=0.0) is None for _ in range(100)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "counts.db")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert sum(int(process.communicate(timeout=60)[0]) for process in started) == 100


def test_invalid_counts_file_is_rejected_at_start(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database " * 100, encoding="utf-8")
    with pytest.raises(CountsError, match=r"notes\.txt: file is not a database; expected a file of counts"):
        RequestCounter(tmp_path / "notes.txt")
    with pytest.raises(CountsError, match="unable to open database file"):
        RequestCounter(tmp_path / "nowhere" / "counts.db")


def test_locked_counts_file_does_not_block_the_event_loop(tmp_path: Path) -> None:
    """Requests that can't be counted are rejected within seconds, even if there are many."""
    policy = policy_of(10, "a", counts=RequestCounter(tmp_path / "counts.db"))
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - before)

    async def scenario() -> None:
        ticking = asyncio.create_task(tick())
        middleware = KeysAndRates(None, policy)  # type: ignore[arg-type]
        scope = {"type": "http", "method": "POST", "path": "/v2/x", "state": {}}
        scope["headers"] = [(b"authorization", b"Bearer a")]
        began = time.monotonic()
        asked = (middleware({**scope, "state": {}}, None, None) for _ in range(8))  # type: ignore[arg-type]
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(error, AccessDenied) and error.status_code for error in errors] == [503] * 8
        assert time.monotonic() - began < 5
        ticking.cancel()

    with closing(sqlite3.connect(tmp_path / "counts.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        asyncio.run(scenario())
    assert max(gaps) < 0.5


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "x", False),
    ],
)
def test_client_is_an_ipv4_address_or_an_ipv6_network(one: str, other: str, is_same: bool) -> None:
    assert (client_of(one) == client_of(other)) == is_same


FORGED = [f"192.0.2.{number}" for number in range(6)]


def statuses(settings: Settings, *forwarded: str) -> list[int]:
    with reading(settings, peer="127.0.0.1") as client:
        sent = [{"x-forwarded-for": value} for value in forwarded]
        return [client.post(UNKNOWN, files={"file": png()}, headers=headers).status_code for headers in sent]


def test_forwarded_address_is_used_only_from_a_trusted_proxy(settings: Settings) -> None:
    """This machine isn't trusted by default, and addresses beyond the last trusted proxy are ignored."""
    limited = settings.model_copy(update={"requests_per_minute": 2})
    assert statuses(limited, *FORGED) == [404, 404, 429, 429, 429, 429]
    other = Settings(**limited.model_dump() | {"proxies": "192.0.2.9"})
    assert statuses(other, *FORGED) == [404, 404, 429, 429, 429, 429]
    named = Settings(**limited.model_dump() | {"proxies": "127.0.0.0/8, 198.51.100.7"})
    forged = [f"{address}, 203.0.113.5, 198.51.100.7" for address in FORGED]
    assert statuses(named, *FORGED, *forged) == [*[404] * 6, 404, 404, 429, 429, 429, 429]
    with pytest.raises(ValueError, match="proxies"):
        Settings(proxies="*")

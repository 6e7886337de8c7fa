"""Every status on every route is problem details (RFC 9457); routes come from the application's own list."""

import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from service import routes
from service.app import create_app
from service.dependencies import _hold_slot, _session
from service.http.caching import Exports
from service.http.monitoring import Metrics
from service.http.tabular import PageRoute
from service.inference.engine import Choices
from service.routes import export, inference, oip, reference
from service.settings import Settings
from service.slots import SessionPool
from tests.service.conftest import keys_file, png, serving
from tests.service.test_errors import assert_problem

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
NAMES = {
    "name": "ninformer-mnist",
    "claim_id": "ninformer.table2.mnist.vit",
    "checkpoint_id": "ninformer-mnist.vit.0",
    "table": "metrics",
    "run_key": "0" * 64,
    "model": "ninformer-mnist.vit",
    "version": "0",
    "position": "0",
    "path": "LICENSE",
}
ROUTES = [
    route
    for module in pkgutil.iter_modules(routes.__path__)
    for route in import_module(f"service.routes.{module.name}").router.routes
    if isinstance(route, APIRoute)
]
GETS = [route for route in ROUTES if "GET" in route.methods]
POSTS = [route for route in ROUTES if "POST" in route.methods]
WITHOUT_DATABASE = (
    *("/api/v1/openapi.json", "/docs", "/files/LICENSE", "/health/live", "/metrics", "/openapi.json", "/v2"),
    "/v2/health/live",
)


def test_routes_that_need_a_thread_queue_for_a_slot() -> None:
    """One thread per client would starve the event loop. The other modules read results."""

    def calls(dependant: Dependant) -> set[object]:
        return {dependant.call}.union(*(calls(part) for part in dependant.dependencies))

    for module in (export, inference, oip, reference):
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            if not iscoroutinefunction(route.endpoint):
                assert calls(route.dependant) & {_session, _hold_slot}, route.path


def test_metrics_are_cached_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times, written = iter((0.0, 0.1, 0.9, 1.1, 1.2)), iter((b"first", b"second"))
    monkeypatch.setattr("service.http.monitoring.time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr("service.http.monitoring.generate_latest", lambda _registry: next(written))
    metrics = Metrics()
    assert [metrics.text() for _ in range(3)] == [b"first", b"first", b"second"]


def address(route: APIRoute) -> str:
    return route.path_format.format_map(NAMES | {"model_name": "ninformer-mnist.vit", "model_version": "0"})


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{sorted(route.methods)[0]} {route.path_format}")
def test_unsupported_method_is_405(client: TestClient, route: APIRoute) -> None:
    taken = {method for other in ROUTES if other.path_format == route.path_format for method in other.methods}
    for method in METHODS:
        if method not in taken:
            response = client.request(method, address(route))
            assert_problem(response, 405)
            allowed = set(response.headers["allow"].split(", "))
            assert allowed & taken and ("HEAD" in allowed) == ("GET" in allowed)


@pytest.mark.parametrize("route", [route for route in ROUTES if "{" in route.path_format], ids=lambda r: r.path_format)
def test_unknown_name_is_404(client: TestClient, route: APIRoute) -> None:
    method = next(iter(route.methods))
    names = dict.fromkeys([*NAMES, "model_name", "model_version"], "nothing") | {"position": "0"}
    unknown = route.path_format.format_map(names)
    assert_problem(client.request(method, unknown, json={"inputs": []} if method == "POST" else None), 404)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{sorted(route.methods)[0]} {route.path_format}")
def test_foreign_host_is_421_and_giant_headers_are_431(client: TestClient, route: APIRoute) -> None:
    method = next(iter(route.methods))
    by_another_name = client.request(method, address(route), headers={"host": "10.1.2.3:8000"})
    if address(route).startswith(("/health/", "/v2/health/", "/metrics")):
        assert by_another_name.status_code == 200, "probes and Prometheus only know a pod's address"
    else:
        assert_problem(by_another_name, 421)
    assert_problem(client.request(method, address(route), headers={"x-junk": "y" * 40_000}), 431)


@pytest.mark.parametrize("route", GETS, ids=lambda route: route.path_format)
def test_parameters_of_the_wrong_type_are_422(client: TestClient, route: APIRoute) -> None:
    allowed = {field.name for field in route.dependant.query_params}
    for dependency in route.dependant.dependencies:
        allowed |= {field.name for field in dependency.query_params}
    for name, wrong in (("limit", "many"), ("format", "xml"), ("curve", "x"), ("sort", "x"), ("verdict", "x")):
        if name in allowed:
            assert_problem(client.get(address(route), params={name: wrong}), 422)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{sorted(route.methods)[0]} {route.path_format}")
def test_unknown_query_parameter_is_422_or_ignored(client: TestClient, route: APIRoute) -> None:
    """Other sites add `utm_source` to a page's address; probes and Prometheus may be configured to send some."""
    method, headers = next(iter(route.methods)), {"accept": "text/html"} if isinstance(route, PageRoute) else {}
    files = {"file": png()} if method == "POST" else None
    if route.path.startswith(("/api/v1/", "/compare", "/predict")) and not headers:
        for name in ("utm_source", "dataset[]", "é", "x" * 1000, ""):
            response = client.request(method, address(route), params={name: "1"}, files=files)
            assert_problem(response, 422, f"unknown query parameter {name[:80]!r}; ")
    else:
        response = client.request(method, address(route), params={"utm_source": "1"}, headers=headers, files=files)
        assert response.status_code != 422, response.text


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path_format)
def test_invalid_bodies_are_413_415_or_422(client: TestClient, settings: Settings, route: APIRoute) -> None:
    huge = {"content-length": str(settings.max_body_bytes + 1), "content-type": "multipart/form-data; boundary=b"}
    assert_problem(client.post(address(route), content=b"x", headers=huge), 413)
    wrong = {"content-type": "text/plain"} if route.path == "/predict" else {"content-encoding": "gzip"}
    assert_problem(client.post(address(route), content=b"x", headers=wrong), 415)
    if route.path == "/predict":
        assert_problem(client.post("/predict", files={"file": png()}), 422)
    else:
        assert_problem(client.post(address(route), content=b"{"), 400)


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path_format)
def test_missing_key_is_401_and_exceeded_rate_429(settings: Settings, route: APIRoute, tmp_path: Path) -> None:
    closed = settings.model_copy(update={"keys": keys_file(tmp_path, all="key"), "requests_per_minute": 1})
    client = TestClient(create_app(closed), base_url="http://127.0.0.1", raise_server_exceptions=False)
    assert_problem(client.post(address(route)), 401)
    key = {"authorization": "Bearer key"}
    client.post(address(route), headers=key)
    response = client.post(address(route), headers=key)
    assert_problem(response, 429)
    assert int(response.headers["retry-after"]) > 0


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service without a database."""
    with serving(Settings(root=tmp_path_factory.mktemp("empty"))) as client:
        yield client


@pytest.fixture(scope="module")
def broken(settings: Settings) -> Iterator[TestClient]:
    """A service with an internal fault in every session."""

    def fail() -> Any:
        raise RuntimeError("SELECT secret FROM internals")

    with serving(settings) as client:
        parts = client.app.state.claimcheck  # type: ignore[attr-defined]
        turns = SessionPool(fail, parts.reading.slots)  # type: ignore[arg-type]
        changed = {"reading": turns, "asking": turns, "choices": Choices(settings.database_address, turns)}
        exports = Exports(turns, turns, making=turns.slots, sending=turns.slots)
        client.app.state.claimcheck = replace(parts, exports=exports, **changed)  # type: ignore[attr-defined]
        yield client


@pytest.mark.parametrize(
    "route", [one for one in GETS if one.path_format not in WITHOUT_DATABASE], ids=lambda route: route.path_format
)
def test_missing_database_is_503_and_internal_fault_is_500(
    empty: TestClient, broken: TestClient, route: APIRoute
) -> None:
    assert_problem(empty.get(address(route)), 503)
    response = broken.get(address(route))
    assert_problem(response, 500)
    assert "secret" not in response.text

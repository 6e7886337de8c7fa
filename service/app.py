"""Application factory: `create_app(settings)` wires the parts of the service together."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cachetools import LRUCache
from fastapi import Depends, FastAPI, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from markupsafe import Markup
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.database import queries
from service.database.comparing import Comparisons
from service.dependencies import AppState, conditional, dated
from service.http.access import AccessPolicy, KeyFile, RequestCounter
from service.http.caching import SHEET, Exports, KnownAnswer, NotModified, edition_of
from service.http.errors import ProblemOut, declared, install_error_handlers
from service.http.middleware import (
    AnswerCache,
    BodyLimit,
    KeysAndRates,
    ProblemDetailsMiddleware,
    Readiness,
    RequestCheckMiddleware,
    RequestContextMiddleware,
)
from service.http.monitoring import Metrics
from service.inference import decoding
from service.inference.batching import Batcher
from service.inference.engine import Choices, Engine
from service.inference.workers import Models, Worker, cores_here, memory_here
from service.pages import repository, wording
from service.pages.citing import read_project
from service.routes import claim_pages, experiment_pages, export, inference, oip, pages, reference, results
from service.settings import Settings
from service.slots import SessionPool, Slots
from stages.device import device_for
from stages.results import Question, ResultsUnavailable, open_results

HERE = Path(__file__).parent
CPU_BATCH, GPU_BATCH = 8, 32  # on a CPU, larger batches are no faster and delay the other workers
QUERY_CONNECTIONS = 4  # for short database queries, which take milliseconds
SHOWN = {"repository", "address", "contact", "max_images", "keys", "root_path"}  # settings that pages show
ASK_SECONDS = 5.0  # timeout of a short query
GZIP_LEVEL = 4  # the default, 9, takes two to three times as long and saves 5 % of the bytes
PRELOADED_SHARE = 0.5  # of the weights' memory
SERVER_BYTES, WORKER_BYTES, EXPORT_BYTES = 800 << 20, 256 << 20, 512 << 20
"""Memory of the server with shared code, of a worker without weights, and of exports if /tmp is a RAM disk."""
MAX_WEIGHT_BYTES, MIN_WEIGHT_BYTES = 1 << 30, 128 << 20
MAX_CACHED_MODELS = 64  # models whose predictions for their pages' images are cached
MAX_WORKERS = 4  # each is a Python process of about 300 MB with its own copies of the models
DESCRIPTION = (
    "Checks the numbers that machine-learning papers print: results, comparisons, verdicts and the trained models."
)
logger = logging.getLogger("claimcheck")


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the service from `settings`, by default those of the environment.

    Raises:
        ValueError: the device isn't available; the message lists the alternatives.
        KeysError: the key file can't be read.
        CountsError: the request counts can't be read.
    """
    settings = settings or Settings()
    app = FastAPI(
        title="Claimcheck",
        version=_version(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI's own route would write it on the event loop
        lifespan=_lifespan,
        # Traces are sent if OTEL_EXPORTER_OTLP_ENDPOINT is set; metrics and logs have code of their own.
        telemetry={
            "auto_configure": True,
            "metrics": False,
            "logs": False,
            # These are so frequent that their traces would bury the others.
            "exclude": lambda scope: scope["path"].startswith(("/health/", "/v2/health/", "/metrics", "/static/")),
        },
        form_limits={"max_fields": 256, "max_part_size": 4096},
    )
    app.state.claimcheck = parts = _app_state(settings)
    app.state.edition = edition_of((HERE, HERE.parent / "stages"), settings.model_dump_json(include=SHOWN))
    install_error_handlers(app)
    app.add_exception_handler(NotModified, http_exception_handler)  # type: ignore[arg-type]
    app.add_exception_handler(KnownAnswer, lambda _request, _error: Response())
    _add_middleware(app, parts)
    app.include_router(inference.router)  # first: routes are matched in order, and most requests are predictions
    app.include_router(pages.for_browsers, dependencies=[Depends(conditional), Depends(dated)])
    app.include_router(results.router, dependencies=[Depends(conditional)])
    for module in (pages, claim_pages, experiment_pages):
        app.include_router(module.router, dependencies=[Depends(conditional), Depends(dated)])
    for module in (export, oip, reference):
        app.include_router(module.router)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    return app


def _app_state(settings: Settings) -> AppState:
    metrics = Metrics()
    sessions = open_results(settings.database_address, connections=settings.readers + QUERY_CONNECTIONS)
    reading = SessionPool(sessions, _slots(settings, "reading the results", settings.readers))
    asking = SessionPool(sessions, _slots(settings, "reading the results", QUERY_CONNECTIONS), ASK_SECONDS)
    templates = Jinja2Templates(HERE / "templates")
    wording.install(templates.env, settings.root_path)
    files = repository.files_below(settings.root)
    repository.install(templates.env, settings.repository, settings.contact, files)
    project = read_project(files)
    templates.env.globals |= {"project": project, "version": _version(), "sheet": Markup(SHEET)}
    return AppState(
        settings=settings,
        reading=reading,
        asking=asking,
        choices=Choices(settings.database_address, asking),
        comparisons=Comparisons(),
        indexes={},
        answers=LRUCache(MAX_CACHED_MODELS),
        exports=Exports(
            reading,
            asking,
            making=_slots(settings, "making an export", 1),
            sending=Slots(
                "sending exports",
                settings.max_downloads,
                max_waiting=0,
                seconds=settings.wait_seconds,
                most_each=-(-settings.max_downloads // 2),
            ),
        ),
        metrics=metrics,
        readiness=Readiness(),
        engine=_engine(settings, metrics, {"reading": reading.slots, "asking": asking.slots}),
        templates=templates,
        files=files,
        project=project,
    )


def _slots(settings: Settings, what: str, count: int) -> Slots:
    return Slots(what, count, max_waiting=settings.max_readers_waiting, seconds=settings.wait_seconds)


def memory_of(settings: Settings, workers: int, limit: int) -> dict[str, int]:
    """Return the memory limit of each part in bytes; weights get the rest unless `model_memory_bytes` is set."""
    parts = {
        "server": SERVER_BYTES,
        "workers": workers * WORKER_BYTES,
        "decoders": decoding.PROCESSES * decoding.MEMORY_BYTES,
        "bodies": settings.max_bodies_bytes,
        "exports": EXPORT_BYTES,
    }
    rest = min(MAX_WEIGHT_BYTES, max(MIN_WEIGHT_BYTES, limit - sum(parts.values())))
    return parts | {"weights": settings.model_memory_bytes or rest}


def _engine(settings: Settings, metrics: Metrics, queues: Mapping[str, Slots]) -> Engine:
    device, cores = device_for(settings.device), cores_here()
    count = settings.workers or (min(MAX_WORKERS, cores) if device == "cpu" else 1)
    weight_bytes = memory_of(settings, count, memory_here())["weights"]
    workers = [
        Worker(
            device=device,
            budget_bytes=weight_bytes // count,
            threads=settings.threads or max(1, cores // count),
            pass_seconds=settings.pass_seconds,
        )
        for _ in range(count)
    ]
    engine = Engine(
        Models(settings.root),
        decoding.Decoder(
            seconds=settings.decode_seconds,
            wait_seconds=settings.wait_seconds,
            max_waiting_seconds=settings.max_waiting_seconds,
            max_pixels=settings.max_pixels,
        ),
        workers,
        Batcher(
            workers,
            max_batch=settings.max_batch or (CPU_BATCH if device == "cpu" else GPU_BATCH),
            max_wait_seconds=settings.batch_wait_seconds,
            max_waiting_seconds=settings.max_waiting_seconds,
            observer=metrics.forward_pass,
        ),
    )
    metrics.watch(engine, queues)
    return engine


def _add_middleware(app: FastAPI, parts: AppState) -> None:
    """Add the middleware; the last one added is the outermost."""
    settings = parts.settings
    keys = KeyFile(settings.root / settings.keys) if settings.keys else None
    app.add_middleware(
        BodyLimit, limit=settings.max_body_bytes, together=settings.max_bodies_bytes, seconds=settings.body_seconds
    )
    counts = RequestCounter(settings.counts and settings.root / settings.counts)
    app.add_middleware(KeysAndRates, policy=AccessPolicy(keys, settings.requests_per_minute, counts=counts))
    app.add_middleware(ProblemDetailsMiddleware)  # inside compression and CORS, which thus apply to errors
    compressed = (*DEFAULT_EXCLUDED_CONTENT_TYPES, export.PARQUET)
    app.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=GZIP_LEVEL, exclude_content_types=compressed)
    app.add_middleware(
        AnswerCache, edition=app.state.edition, read_content=partial(parts.asking.ask, queries.content_digest)
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type"),
            expose_headers=("ETag", "Link", "X-Request-ID"),
        )
    app.add_middleware(
        RequestCheckMiddleware,
        hosts=settings.allowed_hosts,
        origins=settings.cors_origins,
        root_path=settings.root_path,
    )
    app.add_middleware(RequestContextMiddleware, metrics=parts.metrics, readiness=parts.readiness)
    if settings.proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=[str(network) for network in settings.proxies])


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: AppState = app.state.claimcheck
    await run_in_threadpool(parts.engine.start)
    warming_up = asyncio.create_task(_warm_up(app))
    yield
    warming_up.cancel()
    with suppress(asyncio.CancelledError):
        await warming_up
    await run_in_threadpool(parts.engine.stop)
    parts.reading.dispose()


async def _warm_up(app: FastAPI) -> None:
    """Run the first passes of one model, report that the service is ready, and load other models, smallest first.

    The service becomes ready even if a step fails, for example without a database: only requests that need the broken
    part get an error.
    """
    parts: AppState = app.state.claimcheck
    served: list[queries.ServedCheckpoint] = []

    def load_for_pages() -> None:
        import_module("scipy.special")  # imported at its first use
        for name in parts.templates.env.list_templates(["html"]):
            parts.templates.get_template(name)

    def compare_all(session: Session) -> None:
        parts.comparisons.get(session, queries.content_digest(session), Question())

    try:
        await run_in_threadpool(app.openapi)  # slow, and no client should wait for it
        await run_in_threadpool(load_for_pages)
        served = await parts.asking.ask(queries.list_checkpoints)
        served.sort(key=lambda checkpoint: (checkpoint.is_stand_in, checkpoint.size_bytes))
        if served:
            await parts.engine.warm_up(served[0], parts.engine.workers, sizes=(1, CPU_BATCH))
        await parts.reading.ask(compare_all)  # the front page needs it
    except (ResultsUnavailable, DBAPIError) as error:
        logger.error("warming up: %s", error)
    except Exception:  # no caller awaits this task, so an error would go unnoticed
        logger.exception("warming up")
    parts.readiness.is_warm = True
    max_bytes = PRELOADED_SHARE * sum(worker.budget_bytes for worker in parts.engine.workers)
    sizes = itertools.accumulate(checkpoint.size_bytes for checkpoint in served)
    for checkpoint, size, worker in zip(served, sizes, itertools.cycle(parts.engine.workers)):
        if size < max_bytes:
            await parts.engine.warm_up(checkpoint, [worker])


def _version() -> str:
    try:
        return version("claimcheck")
    except PackageNotFoundError:
        return "0"


def _describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document once, with our error schemas, and real requests (curl commands) with their answers."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ProblemOut"] = ProblemOut.model_json_schema()
        problem = declared(422)[422]
        examples = json.loads((HERE / "examples.json").read_text(encoding="utf-8"))
        for operation in (operation for item in document["paths"].values() for operation in item.values()):
            if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                operation["responses"]["422"] = problem
            if example := examples.get(operation["operationId"]):
                operation["x-codeSamples"] = [{"lang": "shell", "source": example["curl"]}]
                operation["responses"]["200"]["content"]["application/json"]["example"] = example["answer"]
                if "body" in example:
                    operation["requestBody"]["content"]["application/json"]["x-example"] = example["body"]
        app.openapi_schema = document
    return app.openapi_schema

"""`create_app(settings)`: wiring only, no globals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates

from service import formats, openapi
from service.errors import install_error_handlers
from service.middleware import BodyLimit, SecurityHeaders
from service.predictors import PredictorCache
from service.routes import catalogue, comparisons, health, inference, pages, reference, runs
from service.scripts import ChartScripts
from service.settings import Settings
from stages.device import pick_device
from stages.results import open_results

HERE = Path(__file__).parent
DESCRIPTION = "Do the numbers of machine-learning papers hold?  Results, comparisons and the trained models themselves."


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service on the database and checkpoints that `settings` name (else the environment).

    Raises:
        ValueError: the device isn't here; the message says what would work.
    """
    settings = settings or Settings()
    app = FastAPI(
        title="Claimcheck",
        version=_version(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=_lifespan,
    )
    app.state.settings = settings
    app.state.sessions = open_results(settings.database_place)
    app.state.predictors = PredictorCache(
        settings.root,
        device=str(pick_device(settings.device)),
        capacity=settings.cached_models,
        threads=settings.threads,
    )
    app.state.scripts = ChartScripts()
    app.state.templates = Jinja2Templates(HERE / "templates")
    formats.install(app.state.templates.env)
    app.state.templates.env.globals["vega_version"] = app.state.scripts.version
    install_error_handlers(app)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(GZipMiddleware, minimum_size=2048)
    app.add_middleware(SecurityHeaders)
    for module in (comparisons, inference, catalogue, runs, health, pages, reference):
        app.include_router(module.router)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.scripts.warm_up()
    yield


def _version() -> str:
    try:
        return version("claimcheck")
    except PackageNotFoundError:
        return "0"

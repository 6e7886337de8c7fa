"""The settings of an operator, as `CLAIMCHECK_<NAME>` in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import (
    BeforeValidator,
    IPvAnyNetwork,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Networks = Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)]
Url = Annotated[str, StringConstraints(pattern='^https?://[^ "<>]+$')]
Contact = Annotated[str, StringConstraints(pattern=r'^(https?://[^ "<>]+|[^ @"<>]+@[^ @"<>]+)$')]
UrlPrefix = Annotated[str, StringConstraints(pattern="^(/[A-Za-z0-9._~@%+-]+)*$")]


class Settings(BaseSettings):
    """Place of the results, bounds of one request, and who may ask.  Lists are separated by commas."""

    model_config = SettingsConfigDict(env_prefix="CLAIMCHECK_", extra="ignore", use_attribute_docstrings=True)

    root: Path = Path()
    """Folder with the checkpoints; other paths are relative to it."""
    database: str = "data/results.db"
    """SQLite file or SQLAlchemy URL with the results."""
    repository: Url | None = None
    """URL of the repository, to which pages link. Without it the service shows the files itself."""
    address: Url | None = None
    """Permanent address of the service, which citations name. Without it they name none."""
    contact: Contact | None = None
    """E-mail address or page for objections."""

    device: str = "cpu"
    """Device for predictions: auto, cpu, cuda or cuda:0."""
    workers: PositiveInt | None = None
    """Processes that run models. Default: one per core, at most 4; on a GPU, 1."""
    threads: PositiveInt | None = None
    """Torch threads of each worker. Default: an equal share of the cores."""
    model_memory_bytes: PositiveInt | None = None
    """Memory for model weights across workers (LRU eviction). Default: 128 MiB to 1 GiB."""
    max_batch: PositiveInt | None = None
    """Images per forward pass. Default: 8; on a GPU, 32."""
    pass_seconds: PositiveFloat = 120.0
    """Time for a worker to start, and the longest pass. Slower workers are killed and replaced."""
    batch_wait_seconds: NonNegativeFloat = 0.003
    """How long a forward pass waits for more images."""
    max_waiting_seconds: PositiveFloat = 20.0
    """Queued core seconds. When full, the busiest client's newest request gets 503."""

    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    """Size of a request (413)."""
    max_bodies_bytes: PositiveInt = 512 * 1024 * 1024
    """Size of all requests in progress; half of it for one client (503)."""
    max_image_bytes: PositiveInt = 10 * 1024 * 1024
    """Size of an uploaded file (413)."""
    max_images: PositiveInt = 32
    """Files per request (413)."""
    max_pixels: PositiveInt = 128_000_000
    """Pixels per request (413). One image may have 16 million, a JPEG 100 scans."""
    body_seconds: PositiveFloat = 30.0
    """Time for a request's body to arrive (408)."""
    decode_seconds: PositiveFloat = 10.0
    """Time to decode a request's images (422, or 503 on an overloaded machine)."""

    readers: PositiveInt = 4
    """Concurrent answers from the database."""
    max_readers_waiting: NonNegativeInt = 500
    """Requests that may wait for the database (503)."""
    wait_seconds: PositiveFloat = 30.0
    """How long a request waits for the database (503)."""
    max_downloads: PositiveInt = 32
    """Concurrent exports; half of them for one client (503)."""

    max_connections: PositiveInt = 1000
    """Open connections, half of them for one client (503); fewer if `ulimit -n` is low."""
    head_seconds: PositiveFloat = 10.0
    """Time for a request's headers to arrive (408)."""
    send_seconds: PositiveFloat = 60.0
    """Time for a client to read an answer; then the connection is closed."""
    slowest_bytes_per_second: PositiveInt = 32 * 1024
    """Slowest pace at which a client may read a large answer."""

    root_path: UrlPrefix = ""
    """Path prefix behind a proxy, such as /claimcheck. It must not be the start of a route."""
    allowed_hosts: Names = ("127.0.0.1", "localhost", "[::1]")
    """Host names that the service answers for (421); * allows all. Add yours when you publish it."""
    cors_origins: Names = ()
    """Other sites whose pages may call the API; POSTs from any other site get 403."""
    proxies: Networks = ()
    """Addresses or networks whose X-Forwarded-For and X-Forwarded-Proto are trusted."""
    keys: Path | None = None
    """File of API keys. If set, predictions need a key; reading doesn't."""
    requests_per_minute: PositiveInt | None = None
    """Rate limit of predictions, per key or, without keys, per client (IPv4 address or IPv6 /64)."""
    counts: Path | None = None
    """SQLite file in which the server processes of one machine share rates and quotas."""
    stall_seconds: PositiveFloat = 30.0
    """If the event loop blocks this long, the process logs all stacks and exits with status 1."""
    drain_seconds: NonNegativeFloat = 2.0
    """After SIGTERM, readiness fails for this long before open requests are finished."""

    @property
    def database_address(self) -> str:
        return self.database if "://" in self.database else str(self.root / self.database)

"""The settings of an operator, as `CLAIMCHECK_<NAME>` in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, IPvAnyNetwork
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Networks = Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseSettings):
    """Place of the results, bounds of one request, and who may ask.  Lists are separated by commas."""

    model_config = SettingsConfigDict(env_prefix="CLAIMCHECK_", extra="ignore")

    root: Path = Field(default=Path(), description="Folder with the checkpoints; other paths are relative to it.")
    database: str = Field(default="data/results.db", description="SQLite file or SQLAlchemy URL with the results.")

    repository: str | None = Field(
        default=None,
        pattern='^https?://[^ "<>]+$',
        description="URL of the repository, to which pages link. Without it the service shows the files itself.",
    )

    address: str | None = Field(
        default=None,
        pattern='^https?://[^ "<>]+$',
        description="Permanent address of the service, which citations name. Without it they name none.",
    )

    contact: str | None = Field(
        default=None,
        pattern=r'^(https?://[^ "<>]+|[^ @"<>]+@[^ @"<>]+)$',
        description="E-mail address or page for objections.",
    )

    device: str = Field(default="cpu", description="Device for predictions: auto, cpu, cuda or cuda:0.")
    workers: int | None = Field(
        default=None, ge=1, description="Processes that run models. Default: one per core, at most 4; on a GPU, 1."
    )
    threads: int | None = Field(
        default=None, ge=1, description="Torch threads of each worker. Default: an equal share of the cores."
    )
    model_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Memory for model weights across workers (LRU eviction). Default: 128 MiB to 1 GiB.",
    )
    max_batch: int | None = Field(default=None, ge=1, description="Images per forward pass. Default: 8; on a GPU, 32.")
    pass_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Time for a worker to start, and the longest pass. Slower workers are killed and replaced.",
    )
    batch_wait_seconds: float = Field(default=0.003, ge=0, description="How long a forward pass waits for more images.")
    max_waiting_seconds: float = Field(
        default=20.0,
        gt=0,
        description="Queued core seconds. When full, the busiest client's newest request gets 503.",
    )

    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1, description="Size of a request (413).")
    max_bodies_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=1,
        description="Size of all requests in progress; half of it for one client (503).",
    )
    max_image_bytes: int = Field(default=10 * 1024 * 1024, ge=1, description="Size of an uploaded file (413).")
    max_images: int = Field(default=32, ge=1, description="Files per request (413).")
    max_pixels: int = Field(
        default=128_000_000,
        ge=1,
        description="Pixels per request (413). One image may have 16 million, a JPEG 100 scans.",
    )
    body_seconds: float = Field(default=30.0, gt=0, description="Time for a request's body to arrive (408).")
    decode_seconds: float = Field(
        default=10.0, gt=0, description="Time to decode a request's images (422, or 503 on an overloaded machine)."
    )

    readers: int = Field(default=4, ge=1, description="Concurrent answers from the database.")
    max_readers_waiting: int = Field(default=500, ge=0, description="Requests that may wait for the database (503).")
    wait_seconds: float = Field(default=30.0, gt=0, description="How long a request waits for the database (503).")
    max_downloads: int = Field(default=32, ge=1, description="Concurrent exports; half of them for one client (503).")

    max_connections: int = Field(
        default=1000,
        ge=1,
        description="Open connections, half of them for one client (503); fewer if `ulimit -n` is low.",
    )
    head_seconds: float = Field(default=10.0, gt=0, description="Time for a request's headers to arrive (408).")
    send_seconds: float = Field(
        default=60.0, gt=0, description="Time for a client to read an answer; then the connection is closed."
    )
    slowest_bytes_per_second: int = Field(
        default=32 * 1024, ge=1, description="Slowest pace at which a client may read a large answer."
    )

    root_path: str = Field(
        default="",
        pattern="^(/[A-Za-z0-9._~@%+-]+)*$",
        description="Path prefix behind a proxy, such as /claimcheck. It must not be the start of a route.",
    )
    allowed_hosts: Names = Field(
        default=("127.0.0.1", "localhost", "[::1]"),
        description="Host names that the service answers for (421); * allows all. Add yours when you publish it.",
    )
    cors_origins: Names = Field(
        default=(), description="Other sites whose pages may call the API; POSTs from any other site get 403."
    )
    proxies: Networks = Field(
        default=(), description="Addresses or networks whose X-Forwarded-For and X-Forwarded-Proto are trusted."
    )
    keys: Path | None = Field(
        default=None, description="File of API keys. If set, predictions need a key; reading doesn't."
    )
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="Rate limit of predictions, per key or, without keys, per client (IPv4 address or IPv6 /64).",
    )
    counts: Path | None = Field(
        default=None,
        description="SQLite file in which the server processes of one machine share rates and quotas.",
    )
    stall_seconds: float = Field(
        default=30.0,
        gt=0,
        description="If the event loop blocks this long, the process logs all stacks and exits with status 1.",
    )
    drain_seconds: float = Field(
        default=2.0, ge=0, description="After SIGTERM, readiness fails for this long before open requests are finished."
    )

    @property
    def keys_file(self) -> Path | None:
        return self.keys and self.root / self.keys

    @property
    def counts_file(self) -> Path | None:
        return self.counts and self.root / self.counts

    @property
    def database_address(self) -> str:
        return self.database if "://" in self.database else str(self.root / self.database)

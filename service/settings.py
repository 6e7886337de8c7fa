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

    root: Path = Field(default=Path(), description="repository root; checkpoint paths are relative to it")
    database: str = Field(default="data/results.db", description="SQLite file below root, or a SQLAlchemy URL")

    repository: str | None = Field(
        default=None,
        pattern='^https?://[^ "<>]+$',
        description="address of the repository, for links of the pages to its files; unset: the service shows these",
    )

    address: str | None = Field(
        default=None,
        pattern='^https?://[^ "<>]+$',
        description="permanent address of the service, for citations; unset: these name none",
    )

    contact: str | None = Field(
        default=None,
        pattern=r'^(https?://[^ "<>]+|[^ @"<>]+@[^ @"<>]+)$',
        description="where objections go: an e-mail address or a page's; unset: pages say that there is none",
    )

    device: str = Field(default="cpu", description="where models answer: auto, cpu, cuda, cuda:0; of several the first")
    workers: int | None = Field(
        default=None, ge=1, description="processes that run models; unset: one a core, at most 4, and on a GPU one"
    )
    threads: int | None = Field(default=None, ge=1, description="torch threads of a worker; unset: its share of cores")
    model_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="of loaded weights in all workers; unset: what the memory here leaves, at most 1 GiB",
    )
    max_batch: int | None = Field(
        default=None, ge=1, description="images in one forward pass; unset: 8, and on a GPU 32"
    )
    pass_seconds: float = Field(
        default=120.0, gt=0, description="for a pass with its loading; then a worker is replaced"
    )
    batch_wait_seconds: float = Field(default=0.003, ge=0, description="a pass waits for requests being decoded")
    max_waiting_seconds: float = Field(
        default=20.0, gt=0, description="of computing that waits, as estimated from FLOPs and bytes; more are refused"
    )

    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1, description="of a whole request")
    max_bodies_bytes: int = Field(
        default=512 * 1024 * 1024, ge=1, description="of all requests at once, of one client half of it; more are 503"
    )
    max_image_bytes: int = Field(default=10 * 1024 * 1024, ge=1, description="of one uploaded file")
    max_images: int = Field(default=32, ge=1, description="uploaded files in one request")
    max_pixels: int = Field(default=128_000_000, ge=1, description="of all uploaded files in one request")
    body_seconds: float = Field(default=30.0, gt=0, description="for a request's body to arrive")
    decode_seconds: float = Field(default=10.0, gt=0, description="for the images of one request to be decoded")

    readers: int = Field(default=4, ge=1, description="answers made of the database at once; others wait for a turn")
    max_readers_waiting: int = Field(default=500, ge=0, description="for a turn; more are refused with 503")
    wait_seconds: float = Field(default=30.0, gt=0, description="for a turn; then 503")
    max_downloads: int = Field(default=32, ge=1, description="exports being sent at once; more are refused with 503")

    max_connections: int = Field(default=1000, ge=1, description="open at once; more are refused with 503")
    head_seconds: float = Field(default=10.0, gt=0, description="for a request's headers to arrive; then 408")
    send_seconds: float = Field(default=60.0, gt=0, description="for an answer to be read; then the connection ends")
    slowest_bytes_per_second: int = Field(
        default=32 * 1024, ge=1, description="a long answer has so many more seconds as its bytes take at this pace"
    )

    root_path: str = Field(
        default="",
        pattern="^(/[A-Za-z0-9._~@%+-]+)*$",
        description="path that a proxy serves it below, as /claimcheck, whether the proxy strips it or not",
    )
    allowed_hosts: Names = Field(
        default=("127.0.0.1", "localhost", "[::1]"), description="names that a request may address; * allows all"
    )
    cors_origins: Names = Field(default=(), description="origins whose pages may call the API; none by default")
    proxies: Networks = Field(
        default=(), description="addresses or networks of proxies whose X-Forwarded-For and -Proto are believed"
    )
    keys: Path | None = Field(
        default=None, description="TOML file of named keys, below root; where it is set, inference asks for a key"
    )
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="of inference, for each key without a rate of its own or, without keys, each client",
    )
    counts: Path | None = Field(
        default=None,
        description="SQLite file, below root, by which server processes on one machine share rates and quotas and keep "
        "them over a restart; unset: each its own",
    )
    stall_seconds: float = Field(
        default=30.0, gt=0, description="without a turn of the event loop; then the process ends, to be started again"
    )
    drain_seconds: float = Field(default=2.0, ge=0, description="answers go on after SIGTERM, while readiness says no")

    @property
    def keys_file(self) -> Path | None:
        return self.keys and self.root / self.keys

    @property
    def counts_file(self) -> Path | None:
        return self.counts and self.root / self.counts

    @property
    def database_address(self) -> str:
        return self.database if "://" in self.database else str(self.root / self.database)

"""What an operator may set, as `CLAIMCHECK_<NAME>` in the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where the results are, and how much one request may ask for."""

    model_config = SettingsConfigDict(env_prefix="CLAIMCHECK_", extra="ignore")

    root: Path = Field(default=Path(), description="repository root; checkpoint paths are relative to it")
    database: str = Field(default="data/results.db", description="SQLite file below root, or a SQLAlchemy URL")
    device: str = Field(default="cpu", description="where models answer: auto, cpu, cuda, cuda:0; of several the first")
    threads: int | None = Field(default=None, ge=1, description="torch threads of an answer; unset: torch decides")
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1, description="of a whole request")
    max_image_bytes: int = Field(default=10 * 1024 * 1024, ge=1, description="of one uploaded file")
    max_images: int = Field(default=32, ge=1, description="uploaded files in one request")
    cached_models: int = Field(default=8, ge=1, description="loaded checkpoints kept in memory")

    @property
    def database_place(self) -> str:
        return self.database if "://" in self.database else str(self.root / self.database)

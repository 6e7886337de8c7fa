from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from service.app import create_app
from service.settings import Settings
from stages.recording import record
from tests.service.results_factory import make_root


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository root with MNIST as printed, CIFAR-100 at quick and CIFAR-10 on stand-ins, recorded."""
    root = make_root(tmp_path_factory.mktemp("service"))
    record(root, "data/results.db")
    return root


@pytest.fixture(scope="session")
def settings(root: Path) -> Settings:
    return Settings(root=root, max_image_bytes=300_000, max_body_bytes=1_000_000, max_images=4, cached_models=3)


@pytest.fixture(scope="session")
def client(settings: Settings) -> TestClient:
    return TestClient(create_app(settings), raise_server_exceptions=False)


def png(seed: int = 0, size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    """A noise image."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()

"""A region of shared memory, and a service whose requests use it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.infer.shared import FOLDER, SIZE, Shared
from toutates.infer.regions import Regions


@pytest.fixture
def key() -> Iterator[str]:
    """An object of SIZE bytes."""
    name = f"toutates-test-{os.getpid()}"
    path = FOLDER / name
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    yield name
    path.unlink()


@pytest.fixture
def regions() -> Iterator[Regions]:
    regions = Regions(allowed=True)
    yield regions
    regions.close()


@pytest.fixture
def shared(regions: Regions, key: str) -> Shared:
    regions.register_system("r", key, 0, SIZE)
    return Shared(regions)

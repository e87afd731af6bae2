"""Vectors in base64 are what Python's own encoder makes of their bytes, with the package for it and without."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from toutates.api.text import vectors


@pytest.fixture(params=["with pybase64", "without"])
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "pybase64", None)
    else:
        pytest.importorskip("pybase64")
    vectors._encoder.cache_clear()
    yield
    vectors._encoder.cache_clear()


@pytest.mark.parametrize("size", [1, 2, 3, 256, 384, 1_000])
def test_vectors_are_written_as_their_bytes(package: None, size: int) -> None:
    rows = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
    for vector in (rows[1], rows[:, 0], rows[2, ::2], rows[0, ::-1]):
        assert vectors.base64_of(vector) == base64.b64encode(vector.astype("<f4").tobytes())


def test_bytes_are_little_endian_wherever_the_server_runs(package: None, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = np.arange(5, dtype=">f4")
    monkeypatch.setattr(vectors, "_IS_LITTLE_ENDIAN", False)
    assert vectors.base64_of(vector) == base64.b64encode(np.arange(5, dtype="<f4").tobytes())

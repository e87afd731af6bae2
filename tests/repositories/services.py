"""The S3 services, one process of each for all tests of a folder, as fixtures for its conftest to import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.repositories.s3_services import CREDENTIALS, Proxy, S3Service, moto, s3rver

__all__ = ["moto_service", "proxy", "s3_credentials", "s3rver_service"]


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that boto3 finds its credentials in, that of servers too."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def moto_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    with moto(tmp_path_factory.mktemp("moto")) as service:
        yield service


@pytest.fixture(scope="session")
def s3rver_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    with s3rver(tmp_path_factory.mktemp("s3rver")) as service:
        yield service


@pytest.fixture
def proxy(moto_service: S3Service) -> Iterator[Proxy]:
    """Before moto, since its responses depend on nothing but the request."""
    one = Proxy(moto_service.port)
    yield one
    one.close()

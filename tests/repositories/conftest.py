"""The S3 services, one process of each for all tests, and the environment that boto3 finds its credentials in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.repositories.support import CREDENTIALS, Proxy, S3Service, moto, s3rver


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture(params=["moto", "s3rver"])
def service(request: pytest.FixtureRequest) -> S3Service:
    """Each implementation in turn."""
    found: S3Service = request.getfixturevalue(f"{request.param}_service")
    return found


@pytest.fixture
def proxy(moto_service: S3Service) -> Iterator[Proxy]:
    """Before moto, since its responses depend on nothing but the request."""
    one = Proxy(moto_service.port)
    yield one
    one.close()

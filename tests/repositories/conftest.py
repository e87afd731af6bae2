"""The S3 services, and the environment that boto3 finds its credentials in."""

from __future__ import annotations

import pytest

from tests.repositories.s3_services import S3Service
from tests.repositories.services import moto_service, proxy, s3_credentials, s3rver_service

__all__ = ["moto_service", "proxy", "s3_credentials", "s3rver_service"]


@pytest.fixture(autouse=True)
def credentials(s3_credentials: None) -> None:
    """For every test."""


@pytest.fixture(params=["moto", "s3rver"])
def service(request: pytest.FixtureRequest) -> S3Service:
    """Each implementation in turn."""
    found: S3Service = request.getfixturevalue(f"{request.param}_service")
    return found

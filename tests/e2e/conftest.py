"""The servers and repositories of ``fixtures``, and services of S3."""

from __future__ import annotations

from tests.e2e.fixtures import broken_repository, held_server, pytest_runtest_protocol, repository, server
from tests.repositories.services import moto_service, proxy, s3_credentials, s3rver_service

__all__ = [
    "broken_repository",
    "held_server",
    "moto_service",
    "proxy",
    "pytest_runtest_protocol",
    "repository",
    "s3_credentials",
    "s3rver_service",
    "server",
]

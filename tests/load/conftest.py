"""The servers that tests of the client share."""

from __future__ import annotations

from tests.e2e.fixtures import held_server, pytest_runtest_protocol, repository, server

__all__ = ["held_server", "pytest_runtest_protocol", "repository", "server"]

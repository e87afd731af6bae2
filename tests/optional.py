"""Packages that need not be installed, and that take long to import."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["skip_without"]


def skip_without(package: str, reason: str = "is not installed") -> None:
    """Leave a test file out without a package, at the head of the file. The tests import it.

    ``pytest.importorskip`` there would import it in every process that collects the file, and one of them runs it.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} {reason}", allow_module_level=True)

"""The version of the package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["package_version"]


def package_version() -> str:
    """The installed version of toutates; ``0`` when it runs from a folder that was never installed."""
    try:
        return version("toutates")
    except PackageNotFoundError:
        return "0"

"""Kinds of models: which of them a version is, and how it is loaded.

A kind is what the server was given at its start (``server``); nothing else in this package knows any kind by name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.system.errors import ModelLoadError
from toutates.system.placement import Placement, running_on

__all__ = ["Kind", "load_version"]


class Kind(Protocol):
    """One kind of model."""

    def claims(self, version: VersionFolder) -> bool:
        """Whether a version is of this kind, by its files. Blocks for as long as it takes to look at names."""
        ...

    def load(self, model: str, version: VersionFolder, *, overridden: bool) -> ServedVersion:
        """Load a version. Blocks.

        Args:
            model: its name.
            version: what a repository has of it.
            overridden: whether what ``version.triton`` says holds, even beside a configuration of the version's own.

        Raises:
            ConfigurationError, ModelLoadError: it cannot be served.
        """
        ...


def load_version(
    kinds: Sequence[Kind], model: str, version: VersionFolder, *, overridden: bool, placement: Placement
) -> ServedVersion:
    """Load a version as the first of ``kinds`` that claims it. Blocks.

    Args:
        kinds: to be asked in this order.
        model, version, overridden: see ``Kind.load``.
        placement: where threads run.

    Raises:
        ConfigurationError, ModelLoadError: it cannot be served.
    """
    began_ns = time.monotonic_ns()
    # Not on the manager's CPU alone, which the thread inherits, and threads that a backend starts would too.
    with running_on(placement.anywhere, placement.anywhere):
        for kind in kinds:
            if kind.claims(version):
                served = kind.load(model, version, overridden=overridden)
                return replace(served, load_ns=time.monotonic_ns() - began_ns)
    raise ModelLoadError(f"'{version.path}' holds no kind of model that this server was started with")

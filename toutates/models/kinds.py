"""Kinds of models: which of them a version is, and how it is loaded.

The server gives the manager its kinds at the start; nothing else in this package knows any kind. What a version's
configuration calls its backend chooses the kind. Where it names none, the first kind that claims the version's files
loads it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from toutates.models.config.configuration import VersionConfiguration, load_configuration
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.system.errors import ModelLoadError
from toutates.system.placement import Placement, running_on

__all__ = ["Kind", "load_version"]


class Kind(Protocol):
    """One kind of model.

    Attributes:
        backends: the names that choose it, as ``backend`` of config.yaml and config.pbtxt.
    """

    @property
    def backends(self) -> Sequence[str]: ...

    def claims(self, version: VersionFolder) -> bool:
        """Whether a version that names no backend is of this kind, by its files. Blocks while it looks at names."""
        ...

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """Load a version. Blocks.

        Args:
            model: its name.
            configuration: of the version, with its directory.

        Raises:
            ConfigurationError, ModelLoadError: it cannot be served.
        """
        ...


def load_version(
    kinds: Sequence[Kind], model: str, version: VersionFolder, *, overridden: bool, placement: Placement
) -> ServedVersion:
    """Load a version as the kind that it is of. Blocks.

    Args:
        kinds: that there are. For a version that names no backend they are asked in this order.
        model: its name.
        version: what a repository has of it.
        overridden: whether what ``version.triton`` says holds, even beside a config.yaml.
        placement: where threads run.

    Raises:
        ConfigurationError: its configuration cannot be used, or names a backend that no kind has.
        ModelLoadError: it cannot be served.
    """
    began_ns = time.monotonic_ns()
    # Not on the manager's CPU alone, which the thread inherits, and threads that a backend starts would too.
    with running_on(placement.anywhere, placement.anywhere):
        backends = [name for kind in kinds for name in kind.backends]
        configuration = load_configuration(version, backends, overridden=overridden)
        named = configuration.settings.backend
        for kind in kinds:
            if named in kind.backends if named else kind.claims(version):
                served = kind.load(model, configuration)
                return replace(served, load_ns=time.monotonic_ns() - began_ns)
    raise ModelLoadError(f"'{version.path}' holds no kind of model that this server was started with")

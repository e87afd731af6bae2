"""Imports the class of a backend, when the first model wants it, and checks that it fits this server."""

from __future__ import annotations

import importlib
import logging
import traceback
from importlib.util import find_spec
from typing import Final

from toutates.backends.interface import INTERFACE, Backend
from toutates.backends.plugins.catalogue import Catalogue
from toutates.system.errors import ModelLoadError
from toutates.system.interpreter import gil_enabled, gil_problem
from toutates.system.text import described, one_line

__all__ = ["MAX_REASON", "import_backend", "reason_of"]

logger = logging.getLogger(__name__)

#: Characters of what a backend's exception says.
MAX_REASON: Final = 1_000


def import_backend(name: str, catalogue: Catalogue) -> type[Backend]:
    """The class of a backend. Blocks while its packages are imported.

    Args:
        name: one in ``catalogue``.
        catalogue: of the backends that there are.

    Raises:
        ModelLoadError: its package is not installed, cannot be imported, holds something else, or is written for
            another version of the interface.
    """
    shipped = catalogue.shipped.get(name)
    had_gil = gil_enabled()
    if shipped is not None:
        if shipped.package and find_spec(shipped.package) is None:
            raise ModelLoadError(
                f"the backend '{name}' needs the package {shipped.package}, which is not installed; pip install "
                f"{shipped.package}, or the extra {shipped.extra} of toutates"
            )
        module, _, attribute = shipped.target.partition(":")
        package = "toutates"
    else:
        point = catalogue.entry_points[name]
        module, attribute = point.module, point.attr
        package = point.dist.name if point.dist is not None else point.value
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
    except BaseException as error:  # a module may even raise SystemExit
        logger.error("importing the backend '%s' failed", name, exc_info=error)
        raise ModelLoadError(
            f"the backend '{name}' of the package {package} cannot be imported: {reason_of(error)}"
        ) from error
    if not isinstance(found, type) or not issubclass(found, Backend):
        raise ModelLoadError(
            f"the entry point of the backend '{name}' of the package {package} is no subclass of "
            "toutates.backends.interface.Backend; its author has to name one"
        )
    if found.interface != INTERFACE:
        raise ModelLoadError(_wrong_version(name, package, found.interface))
    if not had_gil and gil_enabled():
        logger.warning("the backend '%s' has switched the GIL on: %s", name, gil_problem())
    return found


def reason_of(error: BaseException) -> str:
    """What an exception says, on one line, with its type, and the last line of Python that it comes from."""
    where = traceback.extract_tb(error.__traceback__)[-1:]
    line = f" ({where[0].filename.rpartition('/')[2]}:{where[0].lineno})" if where else ""
    return f"{one_line(described(error), MAX_REASON)}{line}"


def _wrong_version(name: str, package: str, version: object) -> str:
    if not version:
        return (
            f"the backend '{name}' of the package {package} does not say which version of the interface it is written "
            f"for; its author has to write `interface = {INTERFACE}` in the class"
        )
    newer = isinstance(version, int) and version > INTERFACE
    remedy = "install a newer Toutates, or an older release of it" if newer else "install a newer release of it"
    return (
        f"the backend '{name}' of the package {package} is written for version {version!r} of the interface, and this "
        f"server has {INTERFACE}; {remedy}"
    )

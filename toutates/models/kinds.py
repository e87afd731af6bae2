"""Kinds of models: which of them a version is, and how it is loaded or inspected.

The server gives the manager its kinds at the start; nothing else in this package knows any kind. What a version's
configuration calls its backend chooses the kind. Where it names none, the first kind that claims the version's files
loads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from toutates.engine.cache.store import ResponseCache
from toutates.engine.turns.arbiter import Arbiter
from toutates.models.caching import check_cache_settings, with_cache
from toutates.models.config.configuration import VersionConfiguration, load_configuration
from toutates.models.config.problems import Problems
from toutates.models.config.settings import ONNX_BACKENDS
from toutates.models.deadlines import check_latency_target
from toutates.models.inspection import InspectedVersion
from toutates.models.memory_size import version_size
from toutates.models.names import FoundNames
from toutates.models.ordering import with_order
from toutates.models.other_contents import explained_by_files
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.models.turns import end_without_run, turns_of
from toutates.system.errors import ModelLoadError, ToutatesError
from toutates.system.placement import Placement, running_on
from toutates.system.remembered import Remembered
from toutates.system.text import described

__all__ = ["BackendNames", "Kind", "inspect_version", "load_version"]


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

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """Read a version without serving it, and free it again. Blocks.

        Args:
            model: its name.
            configuration: of the version, with its directory.
            try_warmup: whether its warm-up samples are run, once each.

        Raises:
            ConfigurationError: a file cannot be used, with a line for each problem.
            ModelLoadError: the model cannot be read or run.
        """
        ...


def load_version(
    kinds: Sequence[Kind],
    model: str,
    version: VersionFolder,
    *,
    overridden: bool,
    placement: Placement,
    cache: ResponseCache | None = None,
    arbiter: Arbiter | None = None,
    measured: bool = False,
) -> ServedVersion:
    """Load a version as the kind that it is of. Blocks.

    Args:
        kinds: that there are. For a version that names no backend they are asked in this order.
        model: its name.
        version: what a repository has of it.
        overridden: whether what ``version.triton`` says holds, even beside a config.yaml.
        placement: where threads run.
        cache: for answers of versions that ask for it; None for no cache.
        arbiter: of the server; None where executors have no turns. Whoever ends the version removes it there.
        measured: whether it is found out how much memory the version takes.

    Raises:
        ConfigurationError: its configuration cannot be used, or names a backend that no kind has.
        ModelLoadError: it cannot be served.
    """
    began_ns = time.monotonic_ns()
    # Not on the manager's CPU alone, which the thread inherits, and threads that a backend starts would too.
    with running_on(placement.anywhere, placement.anywhere):
        again = measured and version.size is not None
        configuration = _configuration(version, kinds, overridden=overridden, again=again)
        check_cache_settings(model, configuration)
        check_latency_target(model, configuration)
        with explained_by_files(version):
            served = _kind_of(kinds, configuration).load(model, configuration)
        try:
            if cache is not None and configuration.settings.response_cache:
                served = with_cache(served, cache)
            if configuration.settings.preserve_ordering:
                served = with_order(served, configuration.settings)
            size = version_size(version, served.servable, served.sessions) if measured else 0
            turns = turns_of(served.servable, configuration.settings, arbiter) if arbiter is not None else None
        except BaseException:
            end_without_run(served.servable)
            raise
        served.note_load(turns, size, time.monotonic_ns() - began_ns, pinned=configuration.settings.pin)
        return served


#: By a version's directory, with the version's record, which is the same one as long as the files are. One that is made
#: anew at each look, because there are many files or they were changed just now, takes the place of the last.
_CONFIGURATIONS = Remembered[Path, tuple[VersionFolder, VersionConfiguration]](8_192)


def _configuration(
    version: VersionFolder, kinds: Sequence[Kind], *, overridden: bool, again: bool
) -> VersionConfiguration:
    """The configuration of a version.

    Args:
        version, kinds, overridden: see ``load_version``.
        again: whether the version may be loaded again and again, so that what its files say is remembered.
    """
    if not again or overridden:
        return load_configuration(version, BackendNames(kinds), overridden=overridden)
    known = _CONFIGURATIONS.get(version.path)
    if known is not None and known[0] is version:
        return known[1]
    configuration = load_configuration(version, BackendNames(kinds))
    _CONFIGURATIONS.put(version.path, (version, configuration))
    return configuration


def inspect_version(
    kinds: Sequence[Kind], model: str, version: VersionFolder, *, try_warmup: bool = False
) -> InspectedVersion:
    """Read a version as the kind that it is of, without serving it. Blocks.

    Args:
        kinds, model, version: as for ``load_version``.
        try_warmup: see ``Kind.inspect``.

    Raises:
        ConfigurationError: with a line for each problem, however many there are.
        ModelLoadError: it cannot be read.
    """
    try:
        configuration = load_configuration(version, BackendNames(kinds), most_problems=None)
        check_cache_settings(model, configuration)
        check_latency_target(model, configuration)
        with explained_by_files(version):
            return _kind_of(kinds, configuration).inspect(model, configuration, try_warmup=try_warmup)
    except ToutatesError:
        raise
    except Exception as error:  # as `load_version`'s callers take any: it is this version's alone
        raise ModelLoadError(described(error)) from error


class BackendNames(FoundNames):
    """The names of the backends of some kinds, the last kind's first.

    A kind may have to look for its names; so it is asked only for a name that no kind behind it has.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds[::-1]

    def __iter__(self) -> Iterator[str]:
        return (name for kind in self._kinds for name in kind.backends)

    def __contains__(self, name: object) -> bool:
        return any(name in kind.backends for kind in self._kinds)


def _check_kind(kind: Kind, configuration: VersionConfiguration) -> None:
    """See that a configuration without the name of a backend has no key of ONNX models, where the files are no such.

    Raises:
        ConfigurationError: it has.
    """
    settings = configuration.settings
    if settings.backend or any(name in ONNX_BACKENDS for name in kind.backends):
        return
    problems = Problems(configuration.source)
    for key, own in (("padding", settings.padding), ("ragged", settings.ragged)):
        if own is not None:
            problems.add(key, "is for ONNX models only", None, "remove it")
    problems.raise_all()


def _kind_of(kinds: Sequence[Kind], configuration: VersionConfiguration) -> Kind:
    """The kind that a version's configuration names, or the first that claims its files.

    Raises:
        ConfigurationError: it has a key that the kind does not know.
        ModelLoadError: no kind claims them.
    """
    version, named = configuration.folder, configuration.settings.backend
    # By name from the last on, see ``BackendNames``.
    for kind in reversed(kinds) if named else kinds:
        if named in kind.backends if named else kind.claims(version):
            _check_kind(kind, configuration)
            return kind
    raise ModelLoadError(f"'{version.path}' holds no kind of model that this server was started with")

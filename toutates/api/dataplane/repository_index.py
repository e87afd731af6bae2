"""RepositoryIndex: every model and version the repository holds, and its state."""

from __future__ import annotations

from collections.abc import Iterable

from toutates.models.table import UNLOADED, ModelEntry, ModelState, ModelTable, VersionEntry
from toutates.protocol.grpc_service_pb2 import RepositoryIndexRequest, RepositoryIndexResponse
from toutates.system.errors import Unsupported

__all__ = ["repository_index"]

ModelIndex = RepositoryIndexResponse.ModelIndex


def repository_index(
    table: ModelTable, request: RepositoryIndexRequest, names: Iterable[str] = ()
) -> RepositoryIndexResponse:
    """Answer RepositoryIndex; ``ready`` keeps the versions that answer requests.

    Args:
        table: of models.
        request: the request.
        names: of models that the repositories have; those that were never loaded are shown without version and state.

    Raises:
        Unsupported: a repository is named; there is one, without a name.
    """
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")
    entries: list[ModelIndex] = []
    models = dict(table.models)
    for name in names:
        models.setdefault(name, ModelEntry(name))
    for _, model in sorted(models.items()):
        if not model.versions and not model.problem and not request.ready:
            entries.append(ModelIndex(name=model.name))
        if model.problem and not request.ready:
            entries.append(
                ModelIndex(name=model.name, state=ModelState.UNAVAILABLE.value, reason=f"Internal: {model.problem}")
            )
        gone = {} if request.ready else {number: _unloaded(number) for number in model.gone}
        entries += [
            ModelIndex(name=model.name, version=str(number), state=version.state.value, reason=version.reason)
            for number, version in sorted((gone | dict(model.versions)).items())
            if version.state is ModelState.READY or not request.ready
        ]
    return RepositoryIndexResponse(models=entries)


def _unloaded(number: int) -> VersionEntry:
    return VersionEntry(number, ModelState.UNAVAILABLE, UNLOADED)

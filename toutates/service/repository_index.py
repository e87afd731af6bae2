"""RepositoryIndex: every model and version the repository holds, and its state."""

from __future__ import annotations

from toutates.errors import Unsupported
from toutates.models.table import ModelState, ModelTable
from toutates.protocol.grpc_service_pb2 import RepositoryIndexRequest, RepositoryIndexResponse

__all__ = ["repository_index"]

ModelIndex = RepositoryIndexResponse.ModelIndex


def repository_index(table: ModelTable, request: RepositoryIndexRequest) -> RepositoryIndexResponse:
    """Answer RepositoryIndex; ``ready`` keeps the versions that answer requests.

    Raises:
        Unsupported: a repository is named; there is one, without a name.
    """
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")
    entries: list[ModelIndex] = []
    for model in table.models.values():
        if model.problem and not request.ready:
            entries.append(
                ModelIndex(name=model.name, state=ModelState.UNAVAILABLE.value, reason=f"Internal: {model.problem}")
            )
        entries += [
            ModelIndex(name=model.name, version=str(version.number), state=version.state.value, reason=version.reason)
            for version in model.versions.values()
            if version.state is ModelState.READY or not request.ready
        ]
    return RepositoryIndexResponse(models=entries)

"""RepositoryIndex: every model and version of the repository, and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toutates.models.table import UNLOADED, ModelEntry, ModelState, ModelTable, VersionEntry
from toutates.protocol.grpc_service_pb2 import RepositoryIndexRequest, RepositoryIndexResponse
from toutates.system.errors import Unsupported
from toutates.system.text import writable

__all__ = ["repository_index"]

ModelIndex = RepositoryIndexResponse.ModelIndex


def repository_index(
    table: ModelTable,
    request: RepositoryIndexRequest,
    names: Iterable[str] = (),
    not_loaded: str = "",
    is_loading: Callable[[str], bool] = lambda name: False,
) -> RepositoryIndexResponse:
    """Answer RepositoryIndex. With ``ready`` only versions that can answer are listed.

    Args:
        table: the model table.
        request: the request.
        names: names of models in the repositories. Models that were never loaded have no version and no state.
        not_loaded: why these are UNAVAILABLE, where they are loaded on demand; "" where they are not.
        is_loading: whether one of them is being loaded now, or waits for that.

    Raises:
        Unsupported: the request names a repository; repositories have no names.
    """
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")
    entries: list[ModelIndex] = []
    models = dict(table.models)
    for name in names:
        models.setdefault(name, ModelEntry(name))
    for _, model in sorted(models.items()):
        if not model.versions and not model.problem and not request.ready:
            if is_loading(model.name):
                entries.append(ModelIndex(name=model.name, state=ModelState.LOADING.value))
                continue
            state = ModelState.UNAVAILABLE.value if not_loaded else ""
            entries.append(ModelIndex(name=model.name, state=state, reason=not_loaded))
        if model.problem and not request.ready:
            entries.append(
                ModelIndex(
                    name=model.name, state=ModelState.UNAVAILABLE.value, reason=writable(f"Internal: {model.problem}")
                )
            )
        gone = {} if request.ready else {number: _unloaded(number) for number in model.gone}
        entries += [
            ModelIndex(name=model.name, version=str(number), state=version.state.value, reason=writable(version.reason))
            for number, version in sorted((gone | dict(model.versions)).items())
            if version.state is ModelState.READY or not request.ready
        ]
    return RepositoryIndexResponse(models=entries)


def _unloaded(number: int) -> VersionEntry:
    return VersionEntry(number, ModelState.UNAVAILABLE, UNLOADED)

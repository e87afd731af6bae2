"""Tables of models that are served, with whatever a test has in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.protocol.model_config_pb2 import ModelConfig

__all__ = ["entry_of", "table_of", "table_of_entries", "version_of"]


def version_of(
    servable: Any, name: str = "m", number: int = 1, description: ModelConfig | None = None, **more: Any
) -> ServedVersion:
    """A version that is served.

    Args:
        servable: what answers its requests.
        name: the model's.
        number: the version's.
        description: what ModelConfig says of it; None for its name.
        more: what else a ``ServedVersion`` has.
    """
    return ServedVersion(name, number, description or ModelConfig(name=name), servable, **more)


def entry_of(version: ServedVersion, state: ModelState = ModelState.READY) -> VersionEntry:
    """The entry of a version in a table."""
    return VersionEntry(version.number, state, served=version)


def table_of_entries(models: Mapping[str, Iterable[VersionEntry]]) -> ModelTable:
    """A table of models, each with its versions."""
    return ModelTable(
        {name: ModelEntry(name, {one.number: one for one in entries}) for name, entries in models.items()}
    )


def table_of(models: Mapping[str, Any] | None = None) -> ModelTable:
    """A table of models with a version 1 each, which these servables answer for."""
    return table_of_entries({name: [entry_of(version_of(one, name))] for name, one in (models or {}).items()})

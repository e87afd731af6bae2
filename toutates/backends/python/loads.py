"""Loads and unloads of models that a Python model asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["LoadsModels"]


class LoadsModels(Protocol):
    """Loads and unloads models. Any thread may use it but the main thread and those that load a model."""

    def load(self, model: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; returns once it is served. See RepositoryModelLoad.

        Args:
            model: its name.
            config: in JSON, in place of its configuration files; None for these.
            files: contents by path, each path after "file:".

        Raises:
            RequestError: it cannot be loaded, or models are not loaded by request.
        """
        ...

    def unload(self, model: str, *, dependents: bool) -> None:
        """Unload a model; returns once it gets no more requests. See RepositoryModelUnload.

        Args:
            model: its name.
            dependents: whether the models that it is made of go too.

        Raises:
            RequestError: models are not unloaded by request.
        """
        ...

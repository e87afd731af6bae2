"""A repository that is one file: its only model is the graph in it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.settings import CONFIG_NAME
from toutates.models.repository import ModelFolder, belongs_to_graph, file_model
from toutates.repositories.local.repository import LocalRepository, file_line, with_fingerprints

__all__ = ["FileRepository"]


class FileRepository(LocalRepository):
    """A repository of one model, which is a file. Others may replace the file.

    Args:
        path: the file.
        name: of the model.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self._path = path
        self._model = name

    def advice(self) -> str:
        """See ``Repository.advice``: there is always the model."""
        return ""

    def index(self) -> Mapping[str, ModelFolder | None]:
        """See ``Repository.index``."""
        return {self._model: None}

    def _scan(self, only: Collection[str] | None) -> list[ModelFolder]:
        if only is not None and self._model not in only:
            return []
        folder = file_model(self._path, self._model)
        root = folder.path
        own = (CONFIG_NAME, PBTXT_NAME) if not folder.versions or not folder.versions[0].is_file else ()
        try:
            names = sorted(name for name in os.listdir(root) if belongs_to_graph(name, self._path.name) or name in own)
        except OSError:  # which the model's problem says, or its load
            names = [self._path.name]
        # Of the directory nothing else counts, which may be large, and change all the time.
        found = [(name, file_line(root / name, name), 0) for name in names]
        return [with_fingerprints(folder, found, source=str(self._path))]

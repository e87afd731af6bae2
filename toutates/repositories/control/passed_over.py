"""Directories of repositories that do not look like models: left out, and named in the log once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from toutates.models.repository import ModelFolder, say_passed_over
from toutates.system.logs.limit import Told, few

__all__ = ["PassedOver"]

logger = logging.getLogger(__name__)


class PassedOver:
    """Remembers which directories the log has named, so that they are not named again at every poll."""

    def __init__(self) -> None:
        #: of each repository, as of the last look at all of it
        self._told = Told()

    def models(
        self, repository: str, folders: Iterable[ModelFolder], *, only: Collection[str] | None, known: Collection[str]
    ) -> list[ModelFolder]:
        """The folders that are models. A warning names those that are not, when they are seen for the first time.

        Args:
            repository: its name.
            folders: from its scan.
            only: what the scan was for; whoever is asked for by name is a model, with the reason why it cannot be
                loaded.
            known: names of models that were loaded before. One whose versions have all gone is a model still, so that
                what is served of it is served on.
        """
        models: list[ModelFolder] = []
        others: list[str] = []
        for folder in folders:
            if folder.passed_over and only is None and folder.name not in known:
                others.append(say_passed_over(folder))
            else:
                models.append(folder)
        if only is None:
            for text in few(self._told.news(repository, others)):
                logger.warning("%s", text)
        return models

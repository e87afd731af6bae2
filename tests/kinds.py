"""A kind of models that no product code knows: what serves them is made by a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toutates.engine.servable import Servable
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig

__all__ = ["MadeKind"]


class MadeKind:
    """A kind of models; it claims versions that have a certain file.

    Args:
        file: its name.
        make: makes what serves a version, of the model's name, the version's number, and its folder.
        backends: names of it; the first one stands in ModelConfig.

    Attributes:
        loaded: configurations of the versions that were loaded, in their order.
    """

    def __init__(self, file: str, make: Callable[[str, int, Path], Servable], *backends: str) -> None:
        self.backends = backends
        self.loaded: list[VersionConfiguration] = []
        self._file = file
        self._make = make

    def claims(self, version: VersionFolder) -> bool:
        """See ``Kind``."""
        return (version.path / self._file).exists()

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """See ``Kind``."""
        self.loaded.append(configuration)
        number = configuration.folder.number
        servable = self._make(model, number, configuration.folder.path)
        config = ModelConfig(name=model, backend=self.backends[0], max_batch_size=configuration.settings.batch_size)
        return ServedVersion(model, number, config, servable)

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """See ``Kind``. No test asks for it."""
        raise NotImplementedError

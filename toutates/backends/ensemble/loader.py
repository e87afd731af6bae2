"""Loads an ensemble: reads its graph. Its members are found by the table of models (``models.dependencies``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from toutates.backends.ensemble.graph import Graph, read_graph
from toutates.backends.ensemble.servable import EnsembleServable
from toutates.backends.ensemble.state import Bounds
from toutates.models.capacity import capacity_bytes
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import BackendName
from toutates.models.config.labels import read_labels
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig, ModelVersionPolicy
from toutates.system.errors import ConfigurationError

__all__ = ["EnsembleKind"]

logger = logging.getLogger(__name__)

_NAME: Final = BackendName("", "ensemble")


class EnsembleKind:
    """The kind of ensembles. They have no file of their own, so that only a configuration can name it."""

    @property
    def backends(self) -> Sequence[str]:
        """See ``Kind``."""
        return ("ensemble",)

    def claims(self, version: VersionFolder) -> bool:
        """See ``Kind``."""
        return False

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """See ``Kind``."""
        graph, given = _graph(model, configuration)
        settings = configuration.settings
        if configuration.notice:
            logger.info("model '%s' version %d: %s", model, configuration.folder.number, configuration.notice)
        if graph.max_inflight:
            logger.info("Ensemble model '%s' configured with max_inflight_requests: %d", model, graph.max_inflight)
        labels = read_labels(settings, graph.signature, configuration.folder.model_dir, configuration.source)
        rows = settings.batch_size * settings.capacity if graph.signature.batched else settings.capacity
        config = described(model, given, configuration)
        servable = EnsembleServable(graph, Bounds(rows, capacity_bytes(settings, graph.signature)), config)
        return ServedVersion(
            model=model,
            number=configuration.folder.number,
            description=config,
            servable=servable,
            labels=labels,
            dependent=servable,
            takes_parameters=servable.takes_parameters,
            takes_turns=servable.takes_turns,
        )

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """See ``Kind``."""
        graph, given = _graph(model, configuration)
        read_labels(configuration.settings, graph.signature, configuration.folder.model_dir, configuration.source)
        return InspectedVersion(
            model,
            configuration,
            graph.signature,
            configuration.settings,
            _NAME,
            dependent=EnsembleServable(graph, Bounds(0, 0)),
            own_config=described(model, given, configuration),
        )


def _graph(model: str, configuration: VersionConfiguration) -> tuple[Graph, ModelConfig]:
    given = configuration.given
    if given is None:
        raise ConfigurationError(
            "an ensemble has no steps", source=configuration.source, key="steps", remedy="write its steps"
        )
    return read_graph(given, model, configuration.source), given


def described(model: str, given: ModelConfig, configuration: VersionConfiguration) -> ModelConfig:
    """What ModelConfig answers: the configuration as it was given, with what Triton adds."""
    config = ModelConfig()
    config.CopyFrom(given)
    config.name, config.platform, config.backend = model, "ensemble", ""
    triton = configuration.folder.triton
    policy = triton.version_policy if triton is not None else ModelVersionPolicy(all=ModelVersionPolicy.All())
    config.version_policy.CopyFrom(policy)
    config.model_transaction_policy.SetInParent()
    return config

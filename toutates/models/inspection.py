"""What is known of a version that was read and not loaded, for ``toutates check`` and ``toutates config``."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.models.capacity import capacity_bytes, whole_batch
from toutates.models.config.configuration import VersionConfiguration, completed
from toutates.models.config.describe import BackendName, model_config
from toutates.models.config.settings import ModelSettings
from toutates.models.table import Dependent, Member
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature

__all__ = ["InspectedVersion"]


@dataclass(frozen=True, slots=True)
class InspectedVersion:
    """What is known of a version that was read and not loaded.

    Attributes:
        model: the model's name.
        configuration: its configuration, from its files.
        signature: its tensors, from the configuration and the model's file.
        settings: the configuration's, with everything that the model's file has said.
        backend: what a ModelConfig says of its backend.
        warnings: settings in its files that have no effect or may be mistakes, one sentence each.
        notices: what else the operator should know of it, one sentence each.
        advice: how it could use cores that are idle, if it was run; "" if there is nothing to say.
        dependent: what can be said of the versions of other models that it is made of; None for a model by itself.
        own_config: its ModelConfig, where that is not made of the settings.
        decoupled: whether a request to it may have any number of responses.
    """

    model: str
    configuration: VersionConfiguration
    signature: Signature
    settings: ModelSettings
    backend: BackendName
    warnings: tuple[str, ...] = ()
    advice: str = ""
    dependent: Dependent | None = None
    own_config: ModelConfig | None = None
    decoupled: bool = False
    notices: tuple[str, ...] = ()

    @property
    def member(self) -> Member:
        """What a version that is made of this one has to know of it."""
        batch_size = self.configuration.settings.batch_size if self.signature.batched else 0
        return Member(self.signature, batch_size, self.decoupled)

    @classmethod
    def of(
        cls,
        model: str,
        configuration: VersionConfiguration,
        signature: Signature,
        backend: BackendName,
        warnings: tuple[str, ...] = (),
        advice: str = "",
        *,
        decoupled: bool = False,
        notices: tuple[str, ...] = (),
    ) -> InspectedVersion:
        """A version whose settings are completed here."""
        settings = completed(configuration.settings, signature, backend)
        return cls(
            model, configuration, signature, settings, backend, warnings, advice, decoupled=decoupled, notices=notices
        )

    @property
    def batch(self) -> tuple[int, int] | None:
        """See ``whole_batch``."""
        return whole_batch(self.configuration.settings, self.signature)

    @property
    def capacity_bytes(self) -> int:
        """Memory that its batches may take."""
        return capacity_bytes(self.configuration.settings, self.signature)

    def config(self) -> ModelConfig:
        """The ModelConfig from which the same settings are read again."""
        if self.own_config is not None:
            return self.own_config
        triton = self.configuration.folder.triton
        config = model_config(
            self.model,
            self.signature,
            self.settings,
            gpu=None,
            version_policy=triton.version_policy if triton is not None else None,
            given=self.configuration.given,
            with_own=True,
            backend=self.backend,
        )
        if self.decoupled:
            config.model_transaction_policy.decoupled = True
        return config

"""Warnings of request parameters that have no effect, one per model and parameter: a client may rely on them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Final

from toutates.infer.parameters import parameters_without_effect
from toutates.protocol.grpc_service_pb2 import InferParameter
from toutates.system.text import shown

__all__ = ["ParameterNotices"]

logger = logging.getLogger(__name__)

#: Parameters that are logged for one model. Clients may make up any number of names.
MAX_NAMES: Final = 8
#: Models for which parameters are logged.
MAX_MODELS: Final = 1_000


class ParameterNotices:
    """Logs parameters that have no effect, and remembers what it logged. Shared by all workers.

    Workers call it for kinds of requests that are new to them, not for every request: requests with other parameters
    are of another kind.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: logged names, by model; each set is replaced as a whole, under the lock
        self._said: dict[str, frozenset[str]] = {}

    def note(self, model: str, parameters: Mapping[str, InferParameter], effective: Collection[str] = ()) -> None:
        """Log a warning for each parameter that has no effect, unless it was logged before.

        Args:
            model: name of a model of the model table.
            parameters: the parameters of a valid request.
            effective: names of those that have an effect.
        """
        if len(self._said.get(model, ())) >= MAX_NAMES:
            return
        for name, reason in parameters_without_effect(parameters, effective):
            if self._is_new(model, name):
                text = "requests for model '%s' have the parameter '%s', which has no effect: %s"
                logger.warning(text, model, shown(name), reason, extra={"model": model})

    def _is_new(self, model: str, name: str) -> bool:
        with self._lock:
            said = self._said.get(model, frozenset())
            if name in said or len(said) >= MAX_NAMES or (not said and len(self._said) >= MAX_MODELS):
                return False
            self._said[model] = said | {name}
        return True

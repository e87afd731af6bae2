"""Parameters of requests that have no effect, said once for each model: their clients may count on them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock
from typing import Final

from toutates.infer.parameters import parameters_without_effect
from toutates.protocol.grpc_service_pb2 import InferParameter
from toutates.system.text import shown

__all__ = ["ParameterNotices"]

logger = logging.getLogger(__name__)

#: Names of parameters that are said of one model. Clients may make up any number of them.
MAX_NAMES: Final = 8
#: Models that are remembered.
MAX_MODELS: Final = 1_000


class ParameterNotices:
    """Remembers what was said. One for all workers, each of which calls it in its own thread.

    It is asked only for kinds of requests that are new to their worker: parameters are part of what makes a kind.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: names by model; replaced as a whole, under the lock
        self._said: dict[str, frozenset[str]] = {}

    def note(self, model: str, parameters: Mapping[str, InferParameter]) -> None:
        """Have a line logged of each parameter that has no effect, unless there was one.

        Args:
            model: that was asked, one that there is.
            parameters: of a request that was found valid.
        """
        if len(self._said.get(model, ())) >= MAX_NAMES:
            return
        for name, reason in parameters_without_effect(parameters):
            if self._is_new(model, name):
                text = "requests for model '%s' have the parameter '%s', which has no effect: %s"
                logger.warning(text, model, shown(name), reason, extra={"model": model})

    def _is_new(self, model: str, name: str) -> bool:
        said = self._said.get(model, frozenset())
        if name in said or len(said) >= MAX_NAMES:
            return False
        with self._lock:
            said = self._said.get(model, frozenset())
            if name in said or len(said) >= MAX_NAMES or (not said and len(self._said) >= MAX_MODELS):
                return False
            self._said[model] = said | {name}
        return True

"""What a model gives otherwise than it declares: it is sent as it is, as Triton does, and the log says so once."""

from __future__ import annotations

import logging
import threading

from toutates.system.errors import ExecutionFailed

__all__ = ["STRICT_KEY", "Deviations"]

logger = logging.getLogger(__name__)

#: The parameter of a configuration that makes errors of them.
STRICT_KEY = "toutates.strict_outputs"


class Deviations:
    """The outputs of one version that are not as it declares them. Any thread may use it.

    Args:
        model: its name.
        strict: whether each is an error.
    """

    def __init__(self, model: str, *, strict: bool) -> None:
        self._model = model
        self._strict = strict
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def note(self, output: str, what: str) -> None:
        """Note that an output is not as declared.

        Args:
            output: its name.
            what: the model has returned, and what was expected.

        Raises:
            ExecutionFailed: the version is strict.
        """
        if self._strict:
            raise ExecutionFailed(f"model '{self._model}' returned {what}")
        if output in self._told:
            return
        with self._lock:
            if output in self._told:
                return
            self._told.add(output)
        logger.warning(
            "model '%s' returned %s; clients get what it returns. Declare the output so, or set the parameter %s to "
            "'true' to have such answers refused. This is told once for each output",
            self._model,
            what,
            STRICT_KEY,
        )

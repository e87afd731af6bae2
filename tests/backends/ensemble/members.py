"""Models that ensembles of tests are made of: one that adds, and decoupled ones that the test answers."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.engine.hosting import running
from tests.engine.test_calls import ADD, HOST
from tests.signatures import signature, spec
from toutates.backends.plugins.decoupled import DecoupledRunner
from toutates.backends.plugins.running import PluginFailures
from toutates.engine.batched import BatchedServable
from toutates.engine.open_request import Responses
from toutates.engine.supertensor import SuperTensor
from toutates.models.table import ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig

__all__ = ["MANY", "Asking", "adding", "answered"]

#: Of models that answer any number of times.
MANY: Final = signature([spec("x", "FP32", [-1])], [spec("y", "FP32", [-1])])


class Asking:
    """A decoupled model whose requests the test answers."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._responses = Responses()

    def respond(self, requests: Sequence[Any]) -> None:
        """See ``backends.interface.Responder``."""
        for request in requests:
            self.requests.put(request)

    def next(self) -> Any:
        """The next request (``backends.interface.Request``)."""
        return self.requests.get(timeout=120)

    @property
    def bytes_not_taken(self) -> int:
        """Of responses that nobody has taken yet."""
        return self._responses._bytes


@contextmanager
def adding(name: str, backends: Sequence[Any], **settings: Any) -> Iterator[ServedVersion]:
    """A model with the tensors ``ADD`` whose batches these backends run.

    Args:
        name: the model's.
        backends: one per executor.
        settings: of its SuperTensor.
    """
    servable = BatchedServable(1, SuperTensor(name, ADD, **settings), backends)
    with running(servable, HOST):
        yield ServedVersion(name, 1, ModelConfig(max_batch_size=8), servable)


@contextmanager
def answered(name: str, asking: Asking) -> Iterator[ServedVersion]:
    """A decoupled model with the tensors ``MANY`` whose requests the test answers."""
    runner = DecoupledRunner(asking, MANY, name, PluginFailures("b", name), lambda: None)
    supertensor = SuperTensor(name, MANY, batch_size=8, capacity=64, quick_ns=0, keeps_whole=True)
    runner.ports, runner.responses = supertensor.ports, asking._responses
    servable = BatchedServable(1, supertensor, [runner])
    config = ModelConfig(max_batch_size=8)
    config.model_transaction_policy.decoupled = True
    with running(servable, HOST):
        yield ServedVersion(name, 1, config, servable)

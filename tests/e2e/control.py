"""What tests of model control have in common: the server's flags, and what a client sees of models that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.process import ServerProcess
from tests.e2e.support import triton

__all__ = ["EXPLICIT", "POLL", "answer", "client_of", "fails", "index"]

EXPLICIT: Final = ("--model-control-mode", "explicit")
POLL: Final = ("--model-control-mode", "poll", "--repository-poll-secs", "0.2")

_SECONDS: Final = 120.0


@contextmanager
def client_of(process: ServerProcess) -> Iterator[Any]:
    """A tritonclient."""
    with triton.InferenceServerClient(process.address) as client:
        yield client


def answer(client: Any, model: str, version: str = "") -> int:
    """What the model adds to zero, if it is one of ``models.versioned_model``."""
    tensor = triton.InferInput("INPUT", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
    return int(client.infer(model, [tensor], version, client_timeout=_SECONDS).as_numpy("OUTPUT")[0, 0])


def index(client: Any) -> list[tuple[str, str, str, str]]:
    """The repository index: name, version, state and reason."""
    return [(one.name, one.version, one.state, one.reason) for one in client.get_model_repository_index().models]


def fails(call: Callable[[], object]) -> tuple[str, str]:
    """Status and text of a call that is refused."""
    with pytest.raises(triton.InferenceServerException) as caught:
        call()
    return str(caught.value.status()).removeprefix("StatusCode."), str(caught.value.message())

"""Clients whose tensors are in regions of shared memory: what is the same whatever memory that is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.held import Runs, running_held
from tests.e2e.models import CONFIG, add_model, greatest_model
from tests.e2e.process import ServerProcess
from tests.e2e.support import triton
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

__all__ = [
    "FLAGS",
    "INTERNAL",
    "INVALID",
    "NOT_FOUND",
    "TRANSPORTS",
    "A",
    "B",
    "RegionClient",
    "addsub_inputs",
    "assert_stays_while_used",
    "own_key",
    "serving_regions",
]

TRANSPORTS: Final = {"grpc": triton, "http": http}
FLAGS: Final = ("--allow-client-shm", "--http-addr", "127.0.0.1:0", "--load-models")
MODELS: Final = "addsub,dynamic,greatest,identity_BYTES,slow"

A: Final = np.arange(16, dtype=np.int32).reshape(1, 16)
B: Final = np.full((1, 16), 3, np.int32)
#: Statuses of gRPC and of HTTP.
INVALID: Final = ("INVALID_ARGUMENT", "400")
INTERNAL: Final = ("INTERNAL", "500")
NOT_FOUND: Final = ("NOT_FOUND", "404")


@contextmanager
def serving_regions(
    repository: Path, make_folder: Callable[[str], Path], **named: Any
) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server of its own, because regions belong to the server; runs of the model "slow" may be held.

    Args:
        repository: of the session.
        make_folder: makes an empty folder.
        named: arguments of ``running_held``.
    """
    models = make_folder("models")
    for name in MODELS.split(","):
        if name != "greatest":
            (models / name).symlink_to(repository / name)
    add_model(models, "greatest", greatest_model(), config=CONFIG.format(8, 8))
    with running_held(models, make_folder("server"), (*FLAGS, MODELS), **named) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


class RegionClient:
    """A client of one transport, and the regions that its test makes, which are gone when the test is over."""

    def __init__(self, server: ServerProcess, transport: str, runs: Runs | None = None) -> None:
        self.module: ModuleType = TRANSPORTS[transport]
        self.is_http = transport == "http"
        self.address = f"127.0.0.1:{server.rest_port}" if self.is_http else server.address
        self.client = self.module.InferenceServerClient(self.address)
        self._runs = runs
        self.handles: list[Any] = []

    @property
    def runs(self) -> Runs:
        assert self._runs is not None
        return self._runs

    def close(self) -> None:
        self.client.unregister_cuda_shared_memory()
        self.client.unregister_system_shared_memory()
        wait_until(lambda: not self.status())
        self.client.close()
        while self.handles:
            self.destroy(self.handles.pop())

    def destroy(self, handle: Any) -> None:
        """Give memory back that the test has made."""
        raise NotImplementedError

    def status(self, name: str = "") -> dict[str, tuple[Any, ...]]:
        """What the server says of each region, by name."""
        raise NotImplementedError

    def input(self, name: str, shape: Sequence[int], datatype: str, *place: Any) -> Any:
        tensor = self.module.InferInput(name, list(shape), datatype)
        tensor.set_shared_memory(*place)
        return tensor

    def output(self, name: str, *place: Any) -> Any:
        tensor = self.module.InferRequestedOutput(name)
        if place:
            tensor.set_shared_memory(*place)
        return tensor

    def raw(self, name: str, values: npt.NDArray[Any], datatype: str) -> Any:
        tensor = self.module.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values)
        return tensor

    def infer(self, model: str, inputs: Sequence[Any], outputs: Sequence[Any] | None = None, **named: Any) -> Any:
        return self.client.infer(model, inputs, outputs=outputs, **named)

    def refusal(self, function: Callable[[], Any], statuses: tuple[str, str]) -> str:
        """The text of a refusal with this status of gRPC or of HTTP."""
        with pytest.raises(self.module.InferenceServerException) as caught:
            function()
        assert str(caught.value.status()).removeprefix("StatusCode.") == statuses[self.is_http]
        return str(caught.value.message())


def own_key(name: str) -> str:
    """The key of an object of shared memory that no other run of the tests has at the same time."""
    return f"/toutates-{os.getpid()}-{name}"


def addsub_inputs(client: RegionClient) -> list[Any]:
    return [client.input("INPUT0", [1, 16], "INT32", "in", 64), client.input("INPUT1", [1, 16], "INT32", "in", 64, 64)]


def assert_stays_while_used(
    client: RegionClient, model: str, tensor: Any, output: Any, unregister: Callable[[], None]
) -> None:
    """The regions "in" and "out" that a run uses are told of until it ends, whatever is unregistered meanwhile.

    Args:
        client: that has registered both.
        model: whose runs may be held.
        tensor, output: that are in them.
        unregister: unregisters them, and sees what the server says then.
    """

    def ask() -> None:
        with client.module.InferenceServerClient(client.address) as own:
            own.infer(model, [tensor], outputs=[output])

    asked = threading.Thread(target=ask)
    begun = client.runs.begun
    with client.runs.held():
        asked.start()
        client.runs.wait_begun(begun + 1)
        unregister()
        assert sorted(client.status()) == ["in", "out"]
    asked.join()
    wait_until(lambda: not client.status())

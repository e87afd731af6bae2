"""Loads and unloads of models that models of this server ask for, from threads of their own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future

import trio

from toutates.api.dataplane.plane import DataPlane
from toutates.protocol.grpc_service_pb2 import RepositoryModelLoadRequest, RepositoryModelUnloadRequest
from toutates.system.errors import ExecutionFailed, RequestError, Unavailable

__all__ = ["ModelRequests"]

logger = logging.getLogger(__name__)

_EXITING = "Server exiting"


class ModelRequests:
    """Has the main thread answer them, as it answers those of clients (``LoadsModels``)."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._plane: DataPlane | None = None

    def open(self, nursery: trio.Nursery, plane: DataPlane) -> None:
        """Answer requests from now on, on this thread, until the nursery is cancelled."""
        self._nursery, self._plane = nursery, plane
        self._token = trio.lowlevel.current_trio_token()

    def load(self, model: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """See ``LoadsModels``."""
        request = RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = config
        for path, content in files.items():
            request.parameters[path].bytes_param = content
        self._answer(lambda plane: plane.load(request))

    def unload(self, model: str, *, dependents: bool) -> None:
        """See ``LoadsModels``."""
        request = RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = dependents
        self._answer(lambda plane: plane.unload(request))

    def _answer(self, work: Callable[[DataPlane], Awaitable[object]]) -> None:
        """Wait for an answer.

        Raises:
            RequestError: it is an error.
        """
        nursery, token, plane = self._nursery, self._token, self._plane
        if nursery is None or token is None or plane is None:
            raise Unavailable("models are being loaded; try again once the server is ready")
        plane.refuse_unless_loads_on_request()
        done: Future[None] = Future()

        async def run() -> None:
            try:
                await work(plane)
            except RequestError as error:
                done.set_exception(error)
            except Exception:
                logger.exception("a model's request for another model failed")
                done.set_exception(ExecutionFailed("internal error"))
            except BaseException:  # cancelled
                done.set_exception(Unavailable(_EXITING))
                raise
            else:
                done.set_result(None)

        def begin() -> None:
            if nursery.cancel_scope.cancel_called:
                done.set_exception(Unavailable(_EXITING))
            else:
                nursery.start_soon(run)

        try:
            token.run_sync_soon(begin)
        except trio.RunFinishedError:
            raise Unavailable(_EXITING) from None
        done.result()

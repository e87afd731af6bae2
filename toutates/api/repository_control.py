"""RepositoryModelLoad and RepositoryModelUnload, and RepositoryIndex where it has to look into the repositories.

They take as long as loading takes, so no worker waits for them: a handler hands its call to the ``ControlDesk``, on the
main thread, and the answer comes back by the worker's ``call_soon``. A caller who leaves, or whose deadline passes,
does not stop what he has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import trio
from google.protobuf.message import Message

from toutates.api.dataplane.repository_index import repository_index
from toutates.h2grpc import Call, GrpcError, Status, UnaryHandler
from toutates.infer.statuses import as_grpc_error
from toutates.infer.unary import check_size, parse
from toutates.models.repository import has_control_characters
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.protocol.grpc_service_pb2 import (
    ModelRepositoryParameter,
    RepositoryIndexRequest,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)
from toutates.system.errors import InvalidRequest, ModelLoadError, ModelNotReady, RequestError, Unsupported
from toutates.system.text import shown

__all__ = ["Control", "ControlDesk", "control_handlers"]

logger = logging.getLogger(__name__)

#: Calls that wait at once, and the bytes of their requests.
MAX_WAITING: Final = 256
MAX_WAITING_BYTES: Final = 2**31

_NOT_ALLOWED: Final = ModelNotReady("explicit model load / unload is not allowed if polling is enabled")
_EXITING: Final = GrpcError(Status.UNAVAILABLE, "Server exiting")
_FILE: Final = "file:"


class Control(Protocol):
    """Who has models loaded and unloaded, on the main thread; see ``ModelControl`` of ``repositories.control``."""

    @property
    def explicit(self) -> bool:
        """Whether that is done by request."""
        ...

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model."""
        ...

    async def unload(self, name: str) -> None:
        """Stop serving one."""
        ...

    async def names(self) -> Sequence[str]:
        """Names of all models there are, served or not."""
        ...


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call on the main thread."""

    worker: Worker
    call: Call
    size: int


@dataclass(slots=True)
class ControlDesk:
    """Where workers hand calls in. Made on the main thread, inside Trio.

    Attributes:
        control: that answers.
        token: of the main thread's Trio.
        nursery: for the tasks that the calls become.
    """

    control: Control
    nursery: trio.Nursery
    token: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)
    _waiting: set[_Waiting] = field(default_factory=set)
    _closed: bool = False

    def hand_in(self, worker: Worker, call: Call, work: Callable[[bytes], Awaitable[Message]]) -> None:
        """Have a call answered by ``work``, which gets its request. Called on the worker's thread.

        Raises:
            GrpcError: the server is exiting.
        """
        message = call.message
        try:
            self.token.run_sync_soon(self._begin, _Waiting(worker, call, len(message)), message, work)
        except trio.RunFinishedError:
            raise _EXITING from None

    def close(self) -> None:
        """Tell everybody who waits that the server exits; their loads may go on for as long as it lives."""
        self._closed = True
        for waiting in self._waiting:
            _fail(waiting, _EXITING)
        self.nursery.cancel_scope.cancel()

    def _begin(self, waiting: _Waiting, message: bytes, work: Callable[[bytes], Awaitable[Message]]) -> None:
        if self._closed:
            _fail(waiting, _EXITING)
        elif len(self._waiting) >= MAX_WAITING or self._bytes + waiting.size > MAX_WAITING_BYTES:
            _fail(
                waiting, GrpcError(Status.RESOURCE_EXHAUSTED, "too many changes of models are waiting; try again later")
            )
        else:
            self._waiting.add(waiting)
            self.nursery.start_soon(self._attend, waiting, message, work)

    @property
    def _bytes(self) -> int:
        return sum(waiting.size for waiting in self._waiting)

    async def _attend(self, waiting: _Waiting, message: bytes, work: Callable[[bytes], Awaitable[Message]]) -> None:
        try:
            answer = (await work(message)).SerializeToString()
        except GrpcError as error:
            _fail(waiting, error)
        except RequestError as error:
            _fail(waiting, as_grpc_error(error))
        except Exception:
            logger.exception("a change of models failed")
            _fail(waiting, GrpcError(Status.INTERNAL, "internal error"))
        else:
            waiting.worker.call_soon(partial(waiting.call.reply, answer))
        finally:
            self._waiting.discard(waiting)


def _fail(waiting: _Waiting, error: GrpcError) -> None:
    waiting.worker.call_soon(partial(waiting.call.fail, error.status, error.text))


def control_handlers(worker: Worker, desk: ControlDesk, get_table: Callable[[], ModelTable]) -> dict[str, UnaryHandler]:
    """The handlers, by the name of their RPC.

    Args:
        worker: whose they are.
        desk: where they hand their calls in.
        get_table: the model table as it is now.
    """
    control = desk.control

    async def load(message: bytes) -> RepositoryModelLoadResponse:
        name, config, files = await trio.to_thread.run_sync(_read_load, message)
        try:
            await control.load(name, config, files)
        except ModelLoadError as error:
            # Triton ends its text so.
            raise InvalidRequest(f"load failed for model '{name}': {error}\n") from error
        return RepositoryModelLoadResponse()

    async def unload(message: bytes) -> RepositoryModelUnloadResponse:
        await control.unload(_read_unload(message))
        return RepositoryModelUnloadResponse()

    async def index(message: bytes) -> Message:
        request = parse(RepositoryIndexRequest, message)
        if request.repository_name or request.ready:
            return repository_index(get_table(), request)
        return repository_index(get_table(), request, await control.names())

    def handler(work: Callable[[bytes], Awaitable[Message]], small: type[Message] | None = None) -> UnaryHandler:
        """Requests of the type ``small`` are parsed on the main thread, so there is little to parse."""

        def handle(call: Call) -> None:
            if not control.explicit:
                raise as_grpc_error(_NOT_ALLOWED)
            if small is not None:
                check_size(small, call)
            desk.hand_in(worker, call, work)

        return handle

    handlers = {
        "RepositoryModelLoad": handler(load),
        "RepositoryModelUnload": handler(unload, RepositoryModelUnloadRequest),
    }
    return handlers | ({"RepositoryIndex": handler(index, RepositoryIndexRequest)} if control.explicit else {})


def _read_load(message: bytes) -> tuple[str, str | None, dict[str, bytes]]:
    """Name, configuration and files of a RepositoryModelLoadRequest.

    Raises:
        GrpcError, RequestError: it cannot be used.
    """
    request = parse(RepositoryModelLoadRequest, message)
    name = _name(request.repository_name, request.model_name)
    if name in (".", "..") or "/" in name or "\0" in name:
        raise InvalidRequest(
            f"invalid model name '{shown(name)}', model name must not contain path traversal characters"
        )
    if has_control_characters(name):
        raise InvalidRequest(f"invalid model name '{shown(name)}', a model's name has no control characters")
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, parameter in request.parameters.items():
        if key == "config":
            _expect(parameter, "string_param", "load parameter 'config'")
            config = parameter.string_param
        elif key.startswith(_FILE):
            _expect(parameter, "bytes_param", f"load parameter '{shown(key)}'")
            files[key.removeprefix(_FILE)] = parameter.bytes_param
        else:
            raise InvalidRequest(f"unrecognized load parameter '{shown(key)}'.")
    return name, config, files


def _read_unload(message: bytes) -> str:
    request = parse(RepositoryModelUnloadRequest, message)
    name = _name(request.repository_name, request.model_name)
    for key, parameter in request.parameters.items():
        if key == "unload_dependents":  # there are none: no model of ours is made of others
            _expect(parameter, "bool_param", "'unload_dependents' parameter")
        else:
            raise InvalidRequest(f"unrecognized unload parameter '{shown(key)}'.")
    return name


def _name(repository: str, model: str) -> str:
    if repository:
        raise Unsupported("'repository_name' specification is not supported")
    name = model.strip()
    if not name:
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    return name


def _expect(parameter: ModelRepositoryParameter, kind: str, what: str) -> None:
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for {what}, expected {kind}.")

"""grpc.reflection: clients without a .proto file ask which services there are, and for the files that declare them.

Both versions, v1 and v1alpha, have the same messages and get the same answers. What a request asks for is looked up in
tables of answers that are made once per process. Texts of errors are those of gRPC's own server in C++.

A call of ServerReflectionInfo may stay open for ever, so it has no task. A request costs a parse and an answer of 19 KB
at most; ``net.grpc.service`` refuses those of a caller who does not read the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from toutates.api.dataplane.readiness import Readiness
from toutates.h2grpc import Call, MessageReceived, Method, Status
from toutates.protocol.parsing import parse
from toutates.protocol.published import message_types, published_files, symbols
from toutates.protocol.reflection_pb2 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)

__all__ = ["Answers", "reflection_answers", "reflection_methods"]

_PATHS: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")
)

#: Most bytes of a request: it has a name. The pure-Python protobuf takes up to a millisecond for so many, and a worker
#: handles 16 messages between two looks at the clock.
MAX_REQUEST_BYTES: Final = 512
#: Calls that are ended at once when the server exits, before the worker serves others. Each takes some 10 us.
ENDED_AT_ONCE: Final = 200


def _error(status: Status, text: str) -> bytes:
    error = ErrorResponse(error_code=status, error_message=text)
    return ServerReflectionResponse(error_response=error).SerializeToString()


_FILE_NOT_FOUND: Final = _error(Status.NOT_FOUND, "File not found.")
_SYMBOL_NOT_FOUND: Final = _error(Status.NOT_FOUND, "Symbol not found.")
_TYPE_NOT_FOUND: Final = _error(Status.NOT_FOUND, "Type not found.")
_EXTENSION_NOT_FOUND: Final = _error(Status.NOT_FOUND, "Extension not found.")
_UNKNOWN_REQUEST: Final = _error(Status.UNIMPLEMENTED, "the request asks for nothing that this server knows")


class Answers:
    """The answers to all requests.

    Each is kept as a serialized ServerReflectionResponse of one field. An answer's other fields depend on the request;
    they are serialized in front of it, because protobuf merges what is concatenated.

    Args:
        files: that declare the services; each after those that it imports. None of them declares an extension.
    """

    def __init__(self, files: Iterable[FileDescriptorProto]) -> None:
        by_name: dict[str, FileDescriptorProto] = {}
        self._files: dict[str, bytes] = {}
        self._symbols: dict[str, bytes] = {}
        self._types: dict[str, bytes] = {}
        services = ListServiceResponse()
        for file in files:
            by_name[file.name] = file
            answer = self._files[file.name] = _files_answer(file, by_name)
            self._symbols |= dict.fromkeys(symbols(file), answer)
            for name in message_types(file):
                numbers = ExtensionNumberResponse(base_type_name=name)
                self._types[name] = ServerReflectionResponse(all_extension_numbers_response=numbers).SerializeToString()
            services.service.extend(ServiceResponse(name=f"{file.package}.{service.name}") for service in file.service)
        self._services = ServerReflectionResponse(list_services_response=services).SerializeToString()

    def answer(self, message: bytes) -> bytes:
        """The response to a request, both serialized.

        Raises:
            MalformedMessage: the request is no ServerReflectionRequest.
        """
        request = parse(ServerReflectionRequest, message)
        head = ServerReflectionResponse(valid_host=request.host, original_request=request)
        return head.SerializeToString() + self._find(request)

    def _find(self, request: ServerReflectionRequest) -> bytes:
        match request.WhichOneof("message_request"):
            case "list_services":
                return self._services
            case "file_by_filename":
                return self._files.get(request.file_by_filename, _FILE_NOT_FOUND)
            case "file_containing_symbol":
                return self._symbols.get(request.file_containing_symbol, _SYMBOL_NOT_FOUND)
            case "all_extension_numbers_of_type":
                return self._types.get(request.all_extension_numbers_of_type, _TYPE_NOT_FOUND)
            case "file_containing_extension":
                known = request.file_containing_extension.containing_type in self._types
                return _EXTENSION_NOT_FOUND if known else _TYPE_NOT_FOUND
            case _:
                return _UNKNOWN_REQUEST


def _files_answer(file: FileDescriptorProto, by_name: Mapping[str, FileDescriptorProto]) -> bytes:
    """The answer that has a file, and after it all files that it imports, directly or not."""
    found: dict[str, bytes] = {}
    names = [file.name]
    while names:
        name = names.pop()
        if name not in found:
            found[name] = by_name[name].SerializeToString()
            names += by_name[name].dependency
    response = FileDescriptorResponse(file_descriptor_proto=found.values())
    return ServerReflectionResponse(file_descriptor_response=response).SerializeToString()


@cache
def reflection_answers() -> Answers:
    """The answers about all services that this server has. Workers share them, and only read them."""
    return Answers(published_files())


def reflection_methods(readiness: Readiness, call_soon: Callable[[Callable[[], None]], None]) -> list[Method]:
    """The methods of both versions of the service.

    Args:
        readiness: the worker's view of the server's readiness: calls that are open are ended when the server exits.
        call_soon: runs a callback on the worker's thread, soon.
    """
    conversations = _Conversations(reflection_answers(), readiness, call_soon)
    handle = conversations.handle
    return [Method(path, message=handle, max_message_size=MAX_REQUEST_BYTES) for path in _PATHS]


class _Conversations:
    """The calls of one worker that have sent a request, and are still open.

    A client may keep its call for as long as it runs. The server's exit would wait for it until the end of the grace.

    Args:
        answers: to all requests.
        readiness: the worker's view of the server's readiness.
        call_soon: runs a callback on the worker's thread, soon.
    """

    def __init__(self, answers: Answers, readiness: Readiness, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._answers = answers
        self._readiness = readiness
        self._call_soon = call_soon
        self._open: dict[Call, None] = {}
        #: made once, because each of many thousand calls refers to it
        self._forget: Callable[[Call], None] = self._drop
        readiness.on_change.append(self._note_change)

    def handle(self, message: MessageReceived) -> None:
        """Answer a request."""
        call = message.call
        if call.on_closed is None:
            call.on_closed = self._forget
            self._open[call] = None
        call.send(self._answers.answer(message.message))
        if self._readiness.exiting:
            _end(call)

    def _drop(self, call: Call) -> None:
        self._open.pop(call, None)

    def _note_change(self) -> None:
        if self._readiness.exiting and self._open:
            self._end_some()

    def _end_some(self) -> None:
        for call in list(islice(self._open, ENDED_AT_ONCE)):
            del self._open[call]
            _end(call)  # which does nothing if the call has ended, and its last answers wait for window
        if self._open:
            self._call_soon(self._end_some)


def _end(call: Call) -> None:
    call.fail(Status.UNAVAILABLE, "server is shutting down")

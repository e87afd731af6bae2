"""Messages of the data plane as JSON, and JSON as messages."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.rest.document import (
    MAX_DOCUMENT_BYTES,
    as_array,
    as_boolean,
    as_object,
    as_string,
    as_unsigned,
    parse_document,
    read_member,
)
from toutates.system.errors import InvalidRequest, MalformedMessage, Unavailable

__all__ = [
    "as_document",
    "cuda_regions",
    "cuda_registration",
    "load_request",
    "log_request",
    "log_settings",
    "may_be_left_out",
    "model_index",
    "ready_only",
    "system_regions",
    "system_registration",
    "trace_request",
    "trace_settings",
    "unload_request",
]

Document = dict[str, Any]

_SWITCHES: Final = ("log_info", "log_warning", "log_error")
_LOG_KEYS: Final = ("log_file", *_SWITCHES, "log_verbose_level", "log_format")
_LOG_FORMATS: Final = ("default", "ISO8601")


def as_document(message: Message, *, whole: bool = False) -> Document:
    """A message as JSON.

    All fields are there under their own names, also with their defaults; 64-bit integers are numbers, enums are names.

    Args:
        message: any but one with bytes.
        whole: whether messages that are not set are there too; otherwise these alone are left out, with the members of
            oneofs that are not chosen.
    """
    document: Document = {}
    for name, optional, read in _fields(message.DESCRIPTOR, whole):
        if not optional or message.HasField(name):
            document[name] = read(getattr(message, name))
    return document


#: A field of a message: its name; whether it may be left out; and what makes JSON of its value.
_Field = tuple[str, bool, Callable[[Any], Any]]


@cache
def _fields(descriptor: Descriptor, whole: bool) -> tuple[_Field, ...]:
    fields: list[_Field] = []
    for field in descriptor.fields:
        read = _reader(field, whole)
        fields.append((field.name, may_be_left_out(field, whole), read))
    return tuple(fields)


def may_be_left_out(field: FieldDescriptor, whole: bool) -> bool:
    """Whether ``as_document`` leaves out a field that is not set; ``whole`` as there."""
    return not field.is_repeated and field.has_presence and not (whole and field.containing_oneof is None)


def _reader(field: FieldDescriptor, whole: bool) -> Callable[[Any], Any]:
    """What makes JSON of the value of a field."""
    if not field.is_repeated:
        return _value_reader(field, whole)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        read = _value_reader(field.message_type.fields_by_name["value"], whole)
        return lambda value: {str(key): read(value[key]) for key in sorted(value)}
    read = _value_reader(field, whole)
    return lambda value: [read(item) for item in value]


def _value_reader(field: FieldDescriptor, whole: bool) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return lambda value: as_document(value, whole=whole)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, value)
    return lambda value: value


# --- the repository --------------------------------------------------------------------------------------------------


def ready_only(body: bytes) -> bool:
    """Whether an index is to list only what is ready.

    Raises:
        RequestError: the body is no such request.
    """
    members = _members(body)
    if not isinstance(members.get("ready", False), bool):
        raise InvalidRequest("Invalid value for 'ready': expected a boolean")
    return bool(members.get("ready", False))


def model_index(response: pb.RepositoryIndexResponse) -> list[Document]:
    """The models of an index; what has no value is left out."""
    return [{key: value for key, value in as_document(model).items() if value} for model in response.models]


def load_request(repository: str, model: str, body: bytes) -> pb.RepositoryModelLoadRequest:
    """A request to load a model. Takes long where it brings files.

    Raises:
        RequestError: the body is no such request.
    """
    request = pb.RepositoryModelLoadRequest(repository_name=repository, model_name=model)
    members = _members(body, max(len(body), MAX_DOCUMENT_BYTES + 1))
    parameters = read_member(members, "parameters", as_object) if "parameters" in members else {}
    for key in parameters:
        value = read_member(parameters, key, as_string)
        if key == "config":
            request.parameters[key].string_param = value
        elif key.startswith("file:"):
            request.parameters[key].bytes_param = _decode_base64(value)
        else:
            raise MalformedMessage("unexpected error on creating Triton parameter")
    return request


def _decode_base64(text: str) -> bytes:
    """Leniently: other characters are passed over, and the padding may lack."""
    try:
        return b64decode(text.encode() + b"==")
    except Base64Error:
        raise MalformedMessage("unexpected error on creating Triton parameter") from None


def unload_request(repository: str, model: str, body: bytes) -> pb.RepositoryModelUnloadRequest:
    """A request to unload a model.

    Raises:
        RequestError: the body is no JSON.
    """
    request = pb.RepositoryModelUnloadRequest(repository_name=repository, model_name=model)
    parameters = _members(body).get("parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("unload_dependents"), bool):
        request.parameters["unload_dependents"].bool_param = parameters["unload_dependents"]
    return request


def _members(body: bytes, most: int = 1_048_576) -> Mapping[str, Any]:
    """Of the object that a body is; none of an empty body."""
    document = parse_document(body, most) if body else {}
    return document if isinstance(document, dict) else {}


# --- settings --------------------------------------------------------------------------------------------------------


def trace_request(model: str, body: bytes | None) -> pb.TraceSettingRequest:
    """A request for trace settings; to change some, if there is a body.

    Raises:
        RequestError: the body is no object of strings.
    """
    request = pb.TraceSettingRequest(model_name=model)
    for key, value in _settings(body).items():
        values = request.settings[key].value  # makes an entry, which clears the setting as long as it is empty
        if key == "trace_level" and value is not None:
            values.extend(read_member({key: value}, key, lambda value: [as_string(level) for level in as_array(value)]))
        elif value is not None and key != "trace_file":
            values.append(read_member({key: value}, key, as_string))
    return request


def trace_settings(response: pb.TraceSettingResponse) -> Document:
    """All trace settings. What is of Triton's own trace files is left out where there are none, as by Triton."""
    settings = {key: list(value.value) for key, value in response.settings.items()}
    files = settings["trace_mode"] == ["triton"]
    return {
        key: values if key == "trace_level" else "".join(values)
        for key, values in sorted(settings.items())
        if files or key not in ("log_frequency", "trace_file")
    }


def log_request(body: bytes | None) -> pb.LogSettingsRequest:
    """A request for log settings; to change some, if there is a body.

    Raises:
        RequestError: the body is no object, or a value is of another type.
    """
    request = pb.LogSettingsRequest()
    members = {key: value for key, value in _settings(body).items() if value is not None}
    for key, value in members.items():
        if key in _SWITCHES:
            request.settings[key].bool_param = read_member(members, key, as_boolean)
        elif key == "log_verbose_level":
            request.settings[key].uint32_param = min(read_member(members, key, as_unsigned), 2**32 - 1)
        elif key == "log_file":
            request.settings[key].string_param = ""  # whatever it is to be, it cannot be changed
        elif key == "log_format" and read_member(members, key, as_string) not in _LOG_FORMATS:
            raise Unavailable(f"invalid argument for --log_format, got: {value[:64]}")
        elif isinstance(value, bool):
            request.settings[key].bool_param = value
        else:
            request.settings[key].string_param = read_member(members, key, as_string)
    return request


def log_settings(response: pb.LogSettingsResponse) -> Document:
    """All log settings."""
    settings = {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for key, value in response.settings.items()
    }
    others = sorted(settings.keys() - set(_LOG_KEYS))
    return {key: settings[key] for key in (*_LOG_KEYS, *others) if key in settings}


def _settings(body: bytes | None) -> Mapping[str, Any]:
    return {} if body is None else as_object(parse_document(body))


# --- shared memory ---------------------------------------------------------------------------------------------------


def system_registration(name: str, body: bytes) -> pb.SystemSharedMemoryRegisterRequest:
    """A request to register a region of the host's shared memory.

    Raises:
        RequestError: the body is no such request.
    """
    _check_region(name, "system")
    members = parse_document(body)
    key = read_member(_require(members, "key"), "key", as_string)
    byte_size = read_member(_require(members, "byte_size"), "byte_size", as_unsigned)
    offset = read_member(members, "offset", as_unsigned) if "offset" in members else 0
    return pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=offset, byte_size=byte_size)


def cuda_registration(name: str, body: bytes) -> pb.CudaSharedMemoryRegisterRequest:
    """A request to register a region of a GPU's memory.

    Raises:
        RequestError: the body is no such request.
    """
    _check_region(name, "cuda")
    members = parse_document(body)
    handle = read_member(read_member(_require(members, "raw_handle"), "raw_handle", as_object), "b64", as_string)
    byte_size = read_member(_require(members, "byte_size"), "byte_size", as_unsigned)
    device = read_member(members, "device_id", as_unsigned)
    try:
        octets = b64decode(handle.encode())
    except Base64Error:
        octets = b""
    if len(octets) != 64:
        raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return pb.CudaSharedMemoryRegisterRequest(
        name=name, raw_handle=octets, device_id=min(device, 2**63 - 1), byte_size=byte_size
    )


def _check_region(name: str, kind: str) -> None:
    if not name:
        raise InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")


def _require(members: Any, key: str) -> Any:
    if not isinstance(members, dict) or key not in members:
        raise InvalidRequest(f"Shared memory register request has no '{key}' field")
    return members


def system_regions(response: pb.SystemSharedMemoryStatusResponse) -> list[Document]:
    """The regions of a status, by name."""
    return [as_document(region) for _, region in sorted(response.regions.items())]


def cuda_regions(response: pb.CudaSharedMemoryStatusResponse) -> list[Document]:
    """The regions of a status, by name."""
    return [as_document(region) for _, region in sorted(response.regions.items())]

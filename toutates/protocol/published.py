"""The protocols' .proto files as clients know them, for those who ask a server for its protocol.

The modules of ``protocol`` are of files and packages of other names; ``release/generate_protocol.py`` says why. Here
each file has the name and the package that clients' own copies of it have, and so have all references to its types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from toutates.protocol import grpc_service_pb2, health_pb2, model_config_pb2, reflection_pb2

__all__ = ["message_types", "published_files", "symbols"]

#: A module, and the name and package of its file for clients; imported files first. Both versions of reflection have
#: the same messages.
_FILES: Final[tuple[tuple[ModuleType, str, str], ...]] = (
    (model_config_pb2, "model_config.proto", "inference"),
    (grpc_service_pb2, "grpc_service.proto", "inference"),
    (health_pb2, "grpc/health/v1/health.proto", "grpc.health.v1"),
    (reflection_pb2, "grpc/reflection/v1/reflection.proto", "grpc.reflection.v1"),
    (reflection_pb2, "grpc/reflection/v1alpha/reflection.proto", "grpc.reflection.v1alpha"),
)


def published_files() -> list[FileDescriptorProto]:
    """All files; each after those that it imports."""
    files = []
    names: dict[str, str] = {}
    for module, name, package in _FILES:
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        names[file.name] = name
        ours, theirs = f".{file.package}.", f".{package}."
        file.name, file.package = name, package
        file.dependency[:] = [names[imported] for imported in file.dependency]
        for message in _with_nested(file.message_type):
            for field in (field for field in message.field if field.type_name):
                field.type_name = field.type_name.replace(ours, theirs)
        for service in file.service:
            for method in service.method:
                method.input_type = method.input_type.replace(ours, theirs)
                method.output_type = method.output_type.replace(ours, theirs)
        files.append(file)
    return files


def message_types(file: FileDescriptorProto) -> Iterator[str]:
    """Full names of a file's message types, nested ones too."""
    return (name for name, _ in _messages(file.package, file.message_type))


def symbols(file: FileDescriptorProto) -> Iterator[str]:
    """Full names of everything that a file declares. A value of an enum is named beside its enum, as in C++."""
    scopes = [(file.package, file.enum_type)]
    for name, message in _messages(file.package, file.message_type):
        yield name
        for field in message.field:
            yield f"{name}.{field.name}"
        for oneof in message.oneof_decl:
            yield f"{name}.{oneof.name}"
        scopes.append((name, message.enum_type))
    for scope, enums in scopes:
        for enum in enums:
            yield f"{scope}.{enum.name}"
            for value in enum.value:
                yield f"{scope}.{value.name}"
    for service in file.service:
        yield f"{file.package}.{service.name}"
        for method in service.method:
            yield f"{file.package}.{service.name}.{method.name}"


def _messages(scope: str, messages: Iterable[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        name = f"{scope}.{message.name}"
        yield name, message
        yield from _messages(name, message.nested_type)


def _with_nested(messages: Iterable[DescriptorProto]) -> Iterator[DescriptorProto]:
    return (message for _, message in _messages("", messages))

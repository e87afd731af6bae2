"""Our messages are tritonclient's: every message, field, enum and method, in both directions.

Their packages alone have another name, so that both can be defined in protobuf's pool of one process.
"""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from toutates.protocol import grpc_service_pb2, model_config_pb2
from toutates.protocol.names import with_client_names
from toutates.protocol.published import published_files

Facts = dict[str, Any]

#: Our files as clients know them, by name.
PUBLISHED = {file.name: file for file in published_files()}


def facts_of(*files: FileDescriptorProto) -> Facts:
    """Everything that decides what goes over the wire, by full name; order and comments play no part."""
    facts: Facts = {}
    for file in files:
        for message in file.message_type:
            facts |= message_facts(file.package, message)
        for enum in file.enum_type:
            facts[f"{file.package}.{enum.name}"] = enum_facts(enum)
        for service in file.service:
            for method in service.method:
                facts[f"{file.package}.{service.name}/{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return facts


def message_facts(scope: str, message: DescriptorProto) -> Facts:
    name = f"{scope}.{message.name}"
    facts: Facts = {name: ("message", message.options.map_entry)}
    for field in message.field:
        facts[f"{name}.{field.name}"] = field_facts(message, field)
    for enum in message.enum_type:
        facts[f"{name}.{enum.name}"] = enum_facts(enum)
    for nested in message.nested_type:
        facts |= message_facts(name, nested)
    return facts


def field_facts(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[object, ...]:
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    return (
        field.number,
        FieldDescriptorProto.Type.Name(field.type),
        FieldDescriptorProto.Label.Name(field.label),
        field.type_name,  # of the nested entry message when the field is a map
        oneof,
        field.proto3_optional,
        field.options.SerializeToString(),
    )


def enum_facts(enum: EnumDescriptorProto) -> Facts:
    return {value.name: value.number for value in enum.value}


def file_of(module: ModuleType) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def test_inference_descriptors_equal_tritonclients() -> None:
    pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    from tritonclient.grpc import model_config_pb2 as their_config
    from tritonclient.grpc import service_pb2 as their_service

    ours = facts_of(PUBLISHED["grpc_service.proto"], PUBLISHED["model_config.proto"])
    theirs = facts_of(file_of(their_service), file_of(their_config))
    assert set(ours) == set(theirs)
    assert len(ours) > 400
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}


def test_health_descriptors_are_grpcs() -> None:
    package = "grpc.health.v1"
    request, response = f".{package}.HealthCheckRequest", f".{package}.HealthCheckResponse"
    assert facts_of(PUBLISHED["grpc/health/v1/health.proto"]) == {
        f"{package}.HealthCheckRequest": ("message", False),
        f"{package}.HealthCheckRequest.service": (1, "TYPE_STRING", "LABEL_OPTIONAL", "", None, False, b""),
        f"{package}.HealthCheckResponse": ("message", False),
        f"{package}.HealthCheckResponse.status": (
            1,
            "TYPE_ENUM",
            "LABEL_OPTIONAL",
            f"{response}.ServingStatus",
            None,
            False,
            b"",
        ),
        f"{package}.HealthCheckResponse.ServingStatus": {
            "UNKNOWN": 0,
            "SERVING": 1,
            "NOT_SERVING": 2,
            "SERVICE_UNKNOWN": 3,
        },
        f"{package}.Health/Check": (request, response, False, False),
        f"{package}.Health/Watch": (request, response, False, True),
    }


def test_reflection_descriptors_are_grpcs_in_both_versions() -> None:
    pytest.importorskip("grpc_reflection", reason="grpcio-reflection is not installed")
    from grpc_reflection.v1alpha import reflection_pb2 as theirs

    facts = facts_of(PUBLISHED["grpc/reflection/v1alpha/reflection.proto"])
    assert facts == facts_of(file_of(theirs))
    assert len(facts) > 20
    v1 = facts_of(PUBLISHED["grpc/reflection/v1/reflection.proto"])
    assert repr(v1).replace("reflection.v1", "reflection.v1alpha") == repr(facts)


@pytest.mark.parametrize("runtime", ["", "python"], ids=["default_runtime", "pure_python_runtime"])
def test_names_and_files_of_clients_are_left_to_them(runtime: str) -> None:
    """As in protobuf's pool, where a name or a file that is defined twice is an error."""
    code = """
from google.protobuf import descriptor_pool
from toutates.protocol import grpc_service_pb2, health_pb2, reflection_pb2
from toutates.protocol.published import published_files
published_files()
pool = descriptor_pool.Default()
for find, name in (
    (pool.FindMessageTypeByName, "inference.ModelInferRequest"),
    (pool.FindMessageTypeByName, "grpc.health.v1.HealthCheckRequest"),
    (pool.FindMessageTypeByName, "grpc.reflection.v1.ServerReflectionRequest"),
    (pool.FindMessageTypeByName, "grpc.reflection.v1alpha.ServerReflectionRequest"),
    (pool.FindFileByName, "grpc_service.proto"),
    (pool.FindFileByName, "model_config.proto"),
    (pool.FindFileByName, "grpc/health/v1/health.proto"),
):
    try:
        find(name)
    except KeyError:
        continue
    raise SystemExit(name)
"""
    run_python(code, runtime)


@pytest.mark.parametrize(
    "name",
    [
        "inference.ModelInferRequest",
        "grpc.health.v1.HealthCheckRequest",
        "grpc.reflection.v1.ServerReflectionRequest",
    ],
)
def test_error_texts_name_messages_as_clients_know_them(name: str) -> None:
    assert with_client_names(f"cannot parse 'toutates.{name}', toutates.{name}") == f"cannot parse '{name}', {name}"
    others = "toutates.inference and toutates.models stay"
    assert with_client_names(others) == others


OURS = "from toutates.protocol import grpc_service_pb2 as ours, model_config_pb2, health_pb2"
THEIRS = "from tritonclient.grpc import service_pb2 as theirs"
EXCHANGE = """
sent = theirs.ModelInferRequest(model_name="m")
sent.inputs.add(name="x", shape=[1, 2]).parameters["k"].int64_param = 3
got = ours.ModelInferRequest.FromString(sent.SerializeToString())
assert got.inputs[0].parameters["k"].int64_param == 3
assert type(got.inputs[0]) is ours.ModelInferRequest.InferInputTensor
assert theirs.ModelInferRequest.FromString(got.SerializeToString()) == sent
"""


@pytest.mark.parametrize("runtime", ["", "python"], ids=["default_runtime", "pure_python_runtime"])
@pytest.mark.parametrize("imports", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours_first", "theirs_first"])
def test_one_process_can_import_tritonclient_too(imports: tuple[str, str], runtime: str) -> None:
    pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    run_python("\n".join([*imports, EXCHANGE]), runtime)


def run_python(code: str, protobuf_runtime: str = "") -> None:
    """Run code in a process of its own, where nothing has been imported yet."""
    if protobuf_runtime:
        code = f"import os\nos.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = {protobuf_runtime!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_messages_pass_through_json_and_text() -> None:
    request = grpc_service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"\0"])
    request.parameters["priority"].uint64_param = 2
    written = json_format.MessageToDict(request)
    assert written == {"modelName": "m", "parameters": {"priority": {"uint64Param": "2"}}, "rawInputContents": ["AA=="]}
    assert json_format.ParseDict(written, grpc_service_pb2.ModelInferRequest()) == request

    text = """
        dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 3 } } }
        input { data_type: TYPE_FP32 }
    """
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.dynamic_batching.priority_queue_policy[1].max_queue_size == 3
    assert config.input[0].data_type == model_config_pb2.TYPE_FP32
    assert grpc_service_pb2.ModelConfigResponse(config=config).config == config


def test_oneof_keeps_the_last_value() -> None:
    parameter = grpc_service_pb2.InferParameter(bool_param=True)
    parameter.string_param = ""
    assert parameter.WhichOneof("parameter_choice") == "string_param"
    assert not parameter.HasField("bool_param")

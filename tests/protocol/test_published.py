"""The .proto files as clients know them, judged by a pool of protobuf's that has nothing else."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool

from toutates.protocol.published import message_types, published_files, symbols


def pool_of_published() -> Any:
    pool = DescriptorPool()
    for file in published_files():
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def test_files_have_the_names_and_packages_of_the_protocols() -> None:
    assert [(file.name, file.package, list(file.dependency)) for file in published_files()] == [
        ("model_config.proto", "inference", []),
        ("grpc_service.proto", "inference", ["model_config.proto"]),
        ("grpc/health/v1/health.proto", "grpc.health.v1", []),
        ("grpc/reflection/v1/reflection.proto", "grpc.reflection.v1", []),
        ("grpc/reflection/v1alpha/reflection.proto", "grpc.reflection.v1alpha", []),
    ]


def test_no_file_shows_a_name_of_ours() -> None:
    for file in published_files():
        assert b"toutates" not in file.SerializeToString()


def test_types_refer_to_each_other_across_files() -> None:
    pool = pool_of_published()
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    methods = {method.name: method for method in service.methods}
    assert len(methods) == 20
    infer = methods["ModelInfer"].input_type
    assert infer.full_name == "inference.ModelInferRequest"
    assert infer.fields_by_name["inputs"].message_type.full_name == "inference.ModelInferRequest.InferInputTensor"
    parameters = infer.fields_by_name["parameters"].message_type
    assert parameters.GetOptions().map_entry
    assert parameters.fields_by_name["value"].message_type.full_name == "inference.InferParameter"
    config = methods["ModelConfig"].output_type.fields_by_name["config"].message_type
    assert (config.full_name, config.file.name) == ("inference.ModelConfig", "model_config.proto")


def test_every_symbol_is_where_protobuf_finds_it() -> None:
    pool = pool_of_published()
    found: set[str] = set()
    for file in published_files():
        named = set(symbols(file))
        assert not named & found
        found |= named
        types = set(message_types(file))
        assert types < named
        for name in types:
            message = pool.FindMessageTypeByName(name)
            assert message.file.name == file.name
            assert {part.full_name for part in (*message.fields, *message.oneofs, *message.enum_types)} <= named
            assert {nested.full_name for nested in message.nested_types} <= types
        declared = pool.FindFileByName(file.name)
        for enum in declared.enum_types_by_name.values():
            assert {enum.full_name, *(f"{file.package}.{value.name}" for value in enum.values)} <= named
        for service in declared.services_by_name.values():
            assert {service.full_name, *(method.full_name for method in service.methods)} <= named
    assert "inference.TYPE_FP32" in found
    assert "grpc.health.v1.HealthCheckResponse.SERVING" in found

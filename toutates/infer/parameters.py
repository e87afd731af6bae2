"""Parameters of a request and its tensors: what Triton checks of them. The texts are Triton's: clients compare them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from toutates.infer.regions import Place
from toutates.protocol.grpc_service_pb2 import InferParameter
from toutates.protocol.sequence_parameters import NAMES
from toutates.system.errors import InvalidRequest, Unsupported

__all__ = ["check_parameters", "parameter_values", "parameters_without_effect", "shared_memory_place"]

_KIND: Final = "parameter_choice"
_BITS: Final = 2**64 - 1


def check_parameters(parameters: Mapping[str, InferParameter]) -> None:
    """Check the parameters of a request, which have no effect, as Triton checks them.

    Raises:
        InvalidRequest: one has a type or a value that it must not have.
        Unsupported: the sequence's id is too long.
    """
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof(_KIND)
        if key == "sequence_id":
            _check_sequence_id(parameter, kind)
        elif key in ("sequence_start", "sequence_end"):
            if kind != "bool_param":
                raise InvalidRequest(f"invalid value type for '{key}' parameter, expected bool_param.")
        elif key == "priority":
            _check_priority(parameter, kind)
        elif key == "timeout":
            if kind != "int64_param":
                raise InvalidRequest("invalid value type for 'timeout' parameter, expected int64_param.")
        elif key == "triton_enable_empty_final_response":
            if kind != "bool_param":
                raise InvalidRequest(f"invalid value type for '{key}' parameter, expected bool_param.")
        elif key.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                "starting with 'triton_' are allowed: triton_enable_empty_final_response"
            )
        elif kind == "uint64_param" or kind is None:
            raise InvalidRequest(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
            )


def parameter_values(parameters: Mapping[str, InferParameter]) -> dict[str, bool | int | float | str]:
    """The values of valid parameters, by name, but for those of a sequence (``sequence_parameters``)."""
    return {
        key: getattr(parameter, parameter.WhichOneof(_KIND) or "int64_param")
        for key, parameter in parameters.items()
        if key not in NAMES
    }


def parameters_without_effect(
    parameters: Mapping[str, InferParameter], effective: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Find parameters of a valid request that have no effect: the name of each, and why it has none.

    Values that ask for nothing, such as a priority of 0, are left out, and so are those of names in ``effective``.
    """
    for key, parameter in parameters.items():
        if key in effective:
            continue
        value = getattr(parameter, parameter.WhichOneof(_KIND) or "", None)
        if key == "triton_enable_empty_final_response" or (key in _WITHOUT_EFFECT and not value):
            continue
        yield key, _WITHOUT_EFFECT.get(key, "models get no parameters")


_WITHOUT_EFFECT: Final = {
    "sequence_id": "the model has no sequences",
    "sequence_start": "the model has no sequences",
    "sequence_end": "the model has no sequences",
    "priority": "the model's configuration has no priorities",
    "response_cache": "the model's configuration says whether answers are kept; only false has an effect",
    "timeout": "the model's configuration does not allow it (allow_timeout_override); send a deadline (tritonclient: "
    "client_timeout)",
}


def _check_sequence_id(parameter: InferParameter, kind: str | None) -> None:
    if kind not in ("int64_param", "string_param"):
        raise InvalidRequest("invalid value type for 'sequence_id' parameter, expected int64_param or string_param.")
    if kind == "string_param" and len(parameter.string_param) > 128:
        raise Unsupported("string correlation ID cannot be longer than 128 characters")


def _check_priority(parameter: InferParameter, kind: str | None) -> None:
    if kind not in ("int64_param", "uint64_param"):
        raise InvalidRequest("invalid value type for 'priority' parameter, expected int64_param or uint64_param.")
    if kind == "int64_param" and parameter.int64_param < 0:
        raise InvalidRequest("invalid value for 'priority', expected value >= 0.")


def shared_memory_place(tensor: str, parameters: Mapping[str, InferParameter]) -> Place | None:
    """Where in shared memory a tensor is, by its parameters; None if they name no region.

    Raises:
        InvalidRequest: a parameter has the wrong type, or one is missing.
    """
    region = parameters.get("shared_memory_region")
    if region is not None and region.WhichOneof(_KIND) != "string_param":
        raise InvalidRequest(
            f"invalid value type for 'shared_memory_region' parameter for tensor '{tensor}', expected string_param."
        )
    for key in ("shared_memory_byte_size", "shared_memory_offset"):
        if key in parameters:
            if region is None:
                raise InvalidRequest(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
                )
            if parameters[key].WhichOneof(_KIND) != "int64_param":
                raise InvalidRequest(
                    f"invalid value type for '{key}' parameter for tensor '{tensor}', expected int64_param."
                )
    if region is not None and "shared_memory_byte_size" not in parameters:
        raise InvalidRequest(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for "
            f"tensor '{tensor}'"
        )
    if region is None:
        return None
    offset = parameters["shared_memory_offset"].int64_param if "shared_memory_offset" in parameters else 0
    # Negative numbers are the large ones of the same 64 bits, as with Triton.
    return Place(region.string_param, offset & _BITS, parameters["shared_memory_byte_size"].int64_param & _BITS)

"""Outputs that were answered, and how they differ from those that were expected."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.bench.calls import Refused, read
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferResponse

__all__ = ["Output", "difference", "embeddings_of", "outputs_of_grpc", "outputs_of_http"]

Array = npt.NDArray[Any]

_LENGTH: Final = struct.Struct("<I")
#: Of values of floating point: sums are taken in another order in a batch.
_TOLERANCES: Final = {"FP16": 1e-2, "BF16": 2e-2}
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor of an answer.

    Attributes:
        datatype: as the protocol spells it; "" if it is not known.
        shape: of it; () if it is not known.
        values: flat: numbers, or objects of bytes.
    """

    datatype: str
    shape: tuple[int, ...]
    values: Array


def outputs_of_grpc(message: bytes) -> dict[str, Output]:
    """The outputs of a ModelInferResponse.

    Raises:
        Refused: it is none.
    """
    response = read(ModelInferResponse, message)
    found: dict[str, Output] = {}
    raw = list(response.raw_output_contents)
    for place, one in enumerate(response.outputs):
        shape = tuple(one.shape)
        if "shared_memory_region" in one.parameters:
            values: Array = np.empty(0)
        elif place < len(raw):
            values = _raw(one.datatype, raw[place])
        else:
            name = BY_NAME[one.datatype].contents_field if one.datatype in BY_NAME else None
            typed = getattr(one.contents, name) if name else ()
            values = _objects(list(typed)) if one.datatype == "BYTES" else np.array(list(typed))
        found[one.name] = Output(one.datatype, shape, values)
    return found


def outputs_of_http(body: bytes) -> dict[str, Output]:
    """The outputs of an answer of /infer, in JSON or with binary tensors behind it.

    Raises:
        Refused: it is none.
    """
    try:
        # Octets of JSON are one character each, so that places in the text are those in the body.
        document, at = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        found = {}
        for one in document["outputs"]:
            datatype, shape = str(one["datatype"]), tuple(int(axis) for axis in one["shape"])
            size = one.get("parameters", {}).get("binary_data_size")
            if size is not None:
                values, at = _raw(datatype, body[at : at + size]), at + size
            elif datatype == "BYTES":
                values = _objects([str(value).encode("latin-1") for value in one.get("data", [])])
            else:
                values = np.array(one.get("data", []), np.float64 if _is_float(datatype) else None).ravel()
            found[str(one["name"])] = Output(datatype, shape, values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"the server's answer cannot be read: {error}") from None
    return found


def embeddings_of(body: bytes) -> dict[str, Output]:
    """The vectors of an answer of /v1/embeddings or /embed.

    Raises:
        Refused: it has none.
    """
    try:
        document = json.loads(body)
        vectors = [one["embedding"] for one in document["data"]] if isinstance(document, dict) else document
        return {
            f"embedding {place}": Output("FP32", (len(vector),), np.array(vector, np.float64))
            for place, vector in enumerate(vectors)
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"the server's answer has no embeddings: {error}") from None


def difference(given: Mapping[str, Output], expected: Mapping[str, Output]) -> str:
    """How outputs differ from others, in words; "" if they do not."""
    if missing := expected.keys() - given.keys():
        return f"it has no output '{sorted(missing)[0]}'"
    for name, wanted in expected.items():
        had = given[name]
        if wanted.datatype and had.datatype != wanted.datatype:
            return f"output '{name}' has the type {had.datatype} instead of {wanted.datatype}"
        if wanted.shape and had.shape != wanted.shape:
            return f"output '{name}' has the shape {list(had.shape)} instead of {list(wanted.shape)}"
        if had.values.size != wanted.values.size:
            return f"output '{name}' has {had.values.size} values instead of {wanted.values.size}"
        if not _alike(had, wanted):
            return f"output '{name}' has other values"
    return ""


def _is_float(datatype: str) -> bool:
    return datatype in ("FP16", "FP32", "FP64", "BF16")


def _alike(given: Output, expected: Output) -> bool:
    if not _is_float(given.datatype):
        return bool(np.array_equal(given.values, expected.values))
    values, others = (np.asarray(one.values, np.float64) for one in (given, expected))
    scale = float(np.abs(others).max(initial=0.0, where=np.isfinite(others)))
    tolerance = _TOLERANCES.get(given.datatype, _TOLERANCE)
    return np.allclose(values, others, rtol=tolerance, atol=tolerance * 0.1 * scale, equal_nan=True)


def _raw(datatype: str, octets: bytes) -> Array:
    if datatype == "BYTES":
        found, at = [], 0
        while len(octets) >= at + _LENGTH.size:
            (size,) = _LENGTH.unpack_from(octets, at)
            at += _LENGTH.size + size
            found.append(octets[at - size : at])
        return _objects(found)
    known = BY_NAME.get(datatype)
    if known is None or len(octets) % known.size:
        raise Refused(f"an output of type '{datatype}' has {len(octets)} bytes, which is no whole number of values")
    values = np.frombuffer(octets, known.numpy.newbyteorder("<"))
    return (values.astype("<u4") << 16).view("<f4") if datatype == "BF16" else values


def _objects(values: list[bytes]) -> Array:
    made = np.empty(len(values), object)
    made[:] = values
    return made

"""Reading a request of a new kind: protobuf parses it, and each input's bytes are found, as raw or typed contents."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Final, cast

import numpy as np

from toutates.engine.lane import Piece
from toutates.engine.long_copies import STEP_BYTES
from toutates.engine.servable import Buffer
from toutates.infer.plan import Plan
from toutates.infer.regions import Place
from toutates.infer.validation import ValidatedRequest, size_mismatch
from toutates.models.table import ServedVersion
from toutates.protocol.datatypes import typed_contents_to_raw
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.names import request_prefix
from toutates.protocol.parsing import parse
from toutates.protocol.strings import StringRows
from toutates.protocol.typed_contents import LARGE_MESSAGE_BYTES, TypedReader, cut_contents
from toutates.system.errors import InvalidRequest, MalformedMessage

__all__ = [
    "MAX_ID_BYTES",
    "ReadRequest",
    "arrays_of",
    "contents_of",
    "id_too_long",
    "in_one_buffer",
    "place_of",
    "read_request",
    "request_id",
]

#: Longest ``id`` of a request, bytes: it is kept while the request waits, in memory that no limit counts.
MAX_ID_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A ModelInferRequest that was parsed.

    Attributes:
        message: the request; of a large one without raw and typed contents, which protobuf would copy.
        raws: its raw contents.
        typed: the typed contents of each input of a large request, in pieces; None where ``message`` has them.
    """

    message: ModelInferRequest
    raws: Sequence[Buffer]
    typed: Sequence[Sequence[memoryview]] | None = None


def read_request(buffer: bytes, start: int, end: int) -> ReadRequest:
    """Parse ``buffer[start:end]``.

    Raises:
        MalformedMessage: it is no ModelInferRequest.
        InvalidRequest: its id is too long.
    """
    if end - start > LARGE_MESSAGE_BYTES:
        cut = cut_contents(memoryview(buffer)[start:end])
        if cut is None:
            raise MalformedMessage("the message is not a ModelInferRequest: it is malformed")
        read = ReadRequest(parse(ModelInferRequest, cut.rest), cut.raws, cut.typed)
    else:
        message = parse(ModelInferRequest, buffer[start:end])
        read = ReadRequest(message, message.raw_input_contents)
    if len(read.message.id.encode()) > MAX_ID_BYTES:
        raise id_too_long(len(read.message.id.encode()))
    return read


def request_id(id_field: bytes) -> str:
    """The id of a request, from the field with its tag and length; "" for no field."""
    return ModelInferRequest.FromString(id_field).id


def id_too_long(size: int) -> InvalidRequest:
    """The refusal of a request by the length of its ``id``, bytes."""
    return InvalidRequest(f"the request's id has {size} bytes, at most {MAX_ID_BYTES} are taken")


def contents_of(read: ReadRequest, validated: ValidatedRequest, version: ServedVersion) -> list[Buffer]:
    """The bytes of each input, by its position in the lane; typed contents as the raw ones they stand for.

    Inputs in shared memory are left out.

    Raises:
        InvalidRequest: typed contents do not fit their datatype or shape.
    """
    request = read.message
    positions = {tensor.name: at for at, tensor in enumerate(request.inputs)}
    reader = TypedReader(version.model)
    contents: list[Buffer] = []
    for index, source, size in zip(validated.inputs, validated.sources, validated.sizes, strict=True):
        spec = version.signature.inputs[index]
        if isinstance(source, Place):
            continue
        if source is not None:
            contents.append(read.raws[source])
            continue
        at = positions[spec.name]
        raw: Buffer
        if read.typed is not None:
            raw = reader.read(read.typed[at], spec.datatype, spec.name)
        else:
            typed = request.inputs[at].contents
            raw = typed_contents_to_raw(typed, spec.datatype, tensor=spec.name, model=version.model)
        if size is not None and (len(raw) != size or (validated.rows == 0 and raw)):
            raise size_mismatch(request.id, spec.name, version.model, size, len(raw), validated.rows)
        contents.append(raw)
    return contents


def place_of(content: Buffer) -> tuple[Buffer, tuple[int, int]] | None:
    """The memory of a large message that a content of more than a few megabytes lies in, and where; else None."""
    source: Any = content.obj if isinstance(content, memoryview) else None
    if len(content) <= STEP_BYTES or not isinstance(source, mmap):
        return None
    start = _start(content, source)
    return cast("Buffer", source), (start, start + len(content))


def in_one_buffer(contents: Sequence[Buffer]) -> tuple[Buffer, list[int]]:
    """A buffer that has all contents, and the start and end of each in it, flat.

    It is the memory of a large message where all of them lie in that, so that nothing is copied here; else a copy.
    """
    spans: list[int] = []
    source: Any = getattr(contents[0], "obj", None) if contents else None
    if isinstance(source, mmap) and all([getattr(content, "obj", None) is source for content in contents]):
        for content in contents:
            start = _start(content, source) if content else 0
            spans += (start, start + len(content))
        return memoryview(source), spans
    at = 0
    for content in contents:
        spans += (at, at + len(content))
        at += len(content)
    return contents[0] if len(contents) == 1 else b"".join(contents), spans


def _start(content: Any, source: Any) -> int:
    """Where a content that is not empty begins in the memory that it is a view of."""
    return addressof(c_char.from_buffer(content)) - addressof(c_char.from_buffer(source))


def arrays_of(plan: Plan, contents: Sequence[Buffer], identifier: str) -> list[Piece]:
    """Each input as an array of rows for its lane, by position.

    Args:
        plan: of the request.
        contents: bytes of each input, by position; of the size that the plan says.
        identifier: the request's id.

    Raises:
        InvalidRequest: BYTES that do not fit their shape, and are so few that this is known now.
    """
    signature, model = plan.version.signature, plan.version.model
    arrays: list[Piece] = []
    # Of several wrong inputs Triton names the last.
    inputs = zip(plan.request.inputs, plan.request.shapes, contents, strict=True)
    for index, row_shape, content in reversed(list(inputs)):
        spec = signature.inputs[index]
        shape = (plan.rows, *row_shape) if signature.batched else row_shape
        if spec.datatype.size:
            # Copied, because the received buffer is neither aligned nor ours to keep.
            arrays.append(np.frombuffer(content, spec.datatype.numpy).reshape(shape).copy())
        else:
            prefix = request_prefix(identifier)
            arrays.append(StringRows.received(content, shape, tensor=spec.name, model=model, prefix=prefix))
    return arrays[::-1]

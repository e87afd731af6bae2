"""Reading the JSON of an infer request, and finding the bytes of its tensors.

``read_request`` reads any request. The order in which it looks at things, and the texts of its errors, are Triton's:
clients and tests compare them. What comes out is the message that the same request would be over gRPC, and the bytes of
each input; how they fit the model is looked at in one place for all transports.

With the request comes a ``Form``, under a key (``cutting``). A later request of the same key is not parsed: its tensors
are found, or its arrays read, by the form alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.names import request_prefix
from toutates.protocol.rest.arrays import (
    BeyondRange,
    NumberReader,
    Pause,
    Reader,
    Unreadable,
    read_elements,
    reader_of,
)
from toutates.protocol.rest.cutting import Cut, cut_is_plain, sequence_names
from toutates.protocol.rest.document import (
    MAX_DOCUMENT_BYTES,
    as_array,
    as_boolean,
    as_string,
    as_unsigned,
    is_parsable,
    parse_document,
    read_member,
)
from toutates.protocol.rest.lengths import check_json_size, too_large
from toutates.protocol.rest.parameters import add_forwarded, read_parameters, read_region
from toutates.protocol.sequence_parameters import NAMES, said_in
from toutates.system.errors import InvalidRequest, MalformedMessage, RequestError, anew

__all__ = [
    "LARGE_JSON_BYTES",
    "Buffer",
    "Form",
    "InferRequest",
    "Layout",
    "OutputForms",
    "Target",
    "read_request",
]

Buffer = bytes | memoryview

#: JSON of more bytes is not to be cut or read in a worker's thread. There it may take 10 ms, 64 MiB of it seconds, in
#: pieces of some milliseconds.
LARGE_JSON_BYTES: Final = 65_536

_MOST: Final = 2**63 - 1
#: Where an input's data may be, in the order in which Triton names them.
_SOURCES: Final = ("data", "binary_data_size", "shared_memory_region")

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is for, and what it may bring.

    Attributes:
        model: its name.
        version: decimal; "" for the newest.
        max_input_bytes: bytes of the JSON, and of one tensor of it.
        forwarded: header fields that the model gets as parameters, names as they were sent.
    """

    model: str
    version: str
    max_input_bytes: int
    forwarded: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class OutputForms:
    """In which form each output is sent.

    Attributes:
        by_name: of the outputs that are listed, whether they are sent as binary data.
        default: of all outputs, where none is listed.
    """

    by_name: Mapping[str, bool]
    default: bool

    def is_binary(self, name: str) -> bool:
        """Whether an output is sent as binary data."""
        return self.by_name.get(name, False) if self.by_name else self.default


@dataclass(frozen=True, slots=True)
class _Source:
    """Where an input's bytes are.

    Attributes:
        start, end: counted from the end of the JSON, of binary data.
        array: which array of the JSON it is otherwise.
        reader: of that array; None for binary data.
    """

    start: int
    end: int
    array: int = -1
    reader: Reader | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What the bodies of requests of one form have in the same places.

    A body that begins with ``head`` and ends with ``tail`` is one of the form, if what is between them is an array that
    ``reader`` reads: such an array has neither quotation marks nor braces. Without a reader the body is one of the form
    if ``head`` is all of its JSON and it has the same length.

    Attributes:
        key: what the requests have in common beside their bodies.
        head: the JSON up to the first bracket of the only array; all of it, where there is none.
        tail: the JSON from the array's last bracket on.
        spans: where each input begins and ends, flat: in the body, or in what ``reader`` reads.
        reader: of the array; None where there is none.
    """

    key: bytes
    head: bytes
    tail: bytes
    spans: Sequence[int]
    reader: NumberReader | None

    def spans_from(self, start: int) -> Sequence[int]:
        """``spans``, of a body that begins at ``start`` of its buffer."""
        return [start + bound for bound in self.spans] if start else self.spans

    def read(self, body: bytes) -> bytes | None:
        """What ``spans`` are of, of a body that begins with ``head``; None if it is not of the form."""
        if self.reader is None or not body.endswith(self.tail):
            return None
        try:
            # The reader takes what begins and ends with these brackets, and looks at neither.
            return self.reader.read(body, len(self.head) - 1, len(body) - len(self.tail) + 1)
        except Unreadable:
            return None


class Form:
    """What requests of one key have in common.

    Args:
        sources: of each input whose bytes the body has.
        outputs: how outputs are sent.
        arrays: how many arrays are cut.
        identifier: text of the id in JSON, without quotation marks; None where it is cut.

    Attributes:
        outputs: as given.
        identifier: as given; b"" where it is cut.
        without_id: whether no request of this form has an id.
        binary_size: bytes of all binary data.
    """

    __slots__ = ("_arrays", "_reader", "_sources", "_spans", "binary_size", "identifier", "outputs", "without_id")

    def __init__(self, sources: Sequence[_Source], outputs: OutputForms, arrays: int, identifier: bytes | None) -> None:
        self.outputs = outputs
        self.identifier = identifier or b""
        self.without_id = identifier == b""
        self._sources = tuple(sources)
        self._arrays = arrays
        self.binary_size = sum(source.end - source.start for source in sources)
        #: where binary data alone is all there is
        self._spans: tuple[int, ...] | None = None
        #: where one array of numbers is all there is
        self._reader: NumberReader | None = None
        if not arrays:
            self._spans = tuple(bound for source in sources for bound in (source.start, source.end))
        elif len(sources) == 1 and isinstance(sources[0].reader, NumberReader):
            self._reader = sources[0].reader

    def read(
        self, found: Cut, buffer: bytes, json_end: int, end: int, pause: Pause | None = None
    ) -> tuple[bytes, Sequence[int]] | None:
        """The bytes of each input of a request of this form; 0.3 us for binary data.

        Args:
            found: of the request.
            buffer: holds its body.
            json_end: where its JSON ends.
            end: where it ends.
            pause: called between two pieces of a large array.

        Returns:
            Bytes, and where each input begins and ends in them, flat: ``buffer`` itself where all inputs are binary
            data. None if the request is not quite of this form, or has an error: ``read_request`` is to judge it.
        """
        if end - json_end != self.binary_size or len(found[3]) != 2 * self._arrays:
            return None
        if self._spans is not None:
            return buffer, [json_end + offset for offset in self._spans]
        try:
            if self._reader is not None:
                start, stop = found[3]
                content = self._reader.read(buffer, start, stop, pause)
                return content, (0, len(content))
            contents = self._contents(found, buffer, json_end, pause)
        except Unreadable:
            return None
        spans: list[int] = []
        at = 0
        for piece in contents:
            spans += (at, at + len(piece))
            at += len(piece)
        return b"".join(contents), spans

    def layout(self, key: bytes, found: Cut, buffer: bytes, json_end: int, body_start: int = 0) -> Layout | None:
        """Where the inputs of requests of this form are, from one that ``read`` has read.

        The arguments are those of ``read``, and where its body begins in the buffer.

        None where requests have ids, arrays beside binary data, more than one array, or one that is not of numbers, and
        where they belong to sequences.
        """
        if found[4] is not None:
            return None
        if self.without_id and self._spans is not None:
            head = bytes(buffer[body_start:json_end])
            return Layout(key, head, b"", [len(head) + offset for offset in self._spans], None)
        if self.without_id and self._reader is not None:
            start, stop = found[3]
            head, tail = bytes(buffer[body_start : start + 1]), bytes(buffer[stop - 1 : json_end])
            return Layout(key, head, tail, (0, self._reader.size), self._reader)
        return None

    def identifier_of(self, found: Cut, buffer: bytes) -> bytes:
        """Text of a request's id in JSON, without quotation marks; b"" without one."""
        return buffer[found[1] : found[2]] if found[2] else self.identifier

    def _contents(self, found: Cut, buffer: bytes, json_end: int, pause: Pause | None) -> list[bytes]:
        contents: list[bytes] = []
        for source in self._sources:
            if source.reader is None:
                contents.append(buffer[json_end + source.start : json_end + source.end])
            else:
                start, stop = found[3][2 * source.array : 2 * source.array + 2]
                contents.append(source.reader.read(buffer, start, stop, pause))
        return contents


@dataclass(slots=True)
class InferRequest:
    """A request that was read the long way.

    Attributes:
        message: what it would be over gRPC, without raw contents.
        contents: the bytes of each input that is not in shared memory, in the order of the inputs.
        identifier: text of its id in JSON, without quotation marks; b"" without one.
        form: of requests like it.
        key: what to remember the form under; None if it must not be.
    """

    message: ModelInferRequest
    contents: list[Buffer]
    identifier: bytes
    form: Form
    key: bytes | None


def read_request(
    buffer: bytes,
    start: int,
    json_end: int,
    end: int,
    target: Target,
    found: Cut | None = None,
    pause: Pause | None = None,
) -> InferRequest:
    """Read a request.

    Args:
        buffer: holds its body; a bytearray does as well, and is not copied.
        start: where that begins.
        json_end: where its JSON ends.
        end: where it ends.
        target: what it is for.
        found: its JSON, cut.
        pause: called between two pieces of a large array.

    Raises:
        RequestError: it cannot be used, in Triton's words.
    """
    check_json_size(json_end - start, target.max_input_bytes)
    error: RequestError | None = None
    if found is not None and len(found[0]) > LARGE_JSON_BYTES and not is_parsable(found[0]):
        found = None  # what is left when the arrays are cut is too large; nobody is to search through it
    if found is not None and cut_is_plain(found):
        try:
            skeleton = _skeleton(buffer, start, json_end, found)
            return _Reading(skeleton, target, buffer, json_end, end, found, pause).read()
        except Unreadable as odd:
            error = odd.error
        except RequestError as refusal:
            error = anew(refusal)
    # Of several mistakes it is for the whole document to tell which one comes first.
    # Of one that is too long no more is copied than shows that.
    text = bytes(memoryview(buffer)[start : min(json_end, start + MAX_DOCUMENT_BYTES + 1)])
    if error is not None and not is_parsable(text):
        raise anew(error)
    return _Reading(text, target, buffer, json_end, end, None, pause).read()


def _skeleton(buffer: bytes, start: int, end: int, found: Cut) -> bytes:
    """The JSON with the number of each array in the array's place."""
    parts: list[bytes] = []
    at = start
    arrays = found[3]
    for index in range(0, len(arrays), 2):
        parts += (buffer[at : arrays[index]], b"[%d]" % (index // 2))
        at = arrays[index + 1]
    parts.append(buffer[at:end])
    return b"".join(parts)


class _Reading:
    """Reads one document, from top to bottom."""

    def __init__(
        self,
        text: bytes,
        target: Target,
        buffer: bytes,
        json_end: int,
        end: int,
        found: Cut | None,
        pause: Pause | None,
    ) -> None:
        self._document = parse_document(text)
        self._target = target
        self._buffer = buffer
        self._binary_start = self._binary_at = json_end
        self._end = end
        self._found = found
        self._pause = pause
        self._message = ModelInferRequest(model_name=target.model, model_version=target.version)
        #: of inputs so far
        self._names: set[str] = set()
        self._contents: list[Buffer] = []
        self._sources: list[_Source] = []
        #: inputs of BYTES with another number of elements than their shape has, which core tells only in the end
        self._wrong: list[str] = []

    def read(self) -> InferRequest:
        members = self._document if isinstance(self._document, dict) else {}
        message = self._message
        if "id" in members:
            message.id = read_member(members, "id", as_string)
        binary_output = read_parameters(members, message.parameters)
        for tensor in read_member(members, "inputs", as_array):
            self._read_input(tensor)
        if self._binary_at < self._end:
            raise InvalidRequest(f"unexpected additional input data for model '{self._target.model}'")
        outputs = OutputForms(self._read_outputs(members), binary_output)
        add_forwarded(self._target.forwarded, message.parameters)
        if self._wrong:
            raise InvalidRequest(request_prefix(message.id) + self._wrong[-1])
        identifier = _encode(message.id)[1:-1]
        key = None
        constant: bytes | None = identifier
        arrays = 0
        found = self._found
        if found is not None:
            arrays = len(found[3]) // 2
            if len([source for source in self._sources if source.reader is not None]) < arrays:
                raise Unreadable  # an array is no input's, so nothing has looked at it
            if not found[2]:
                key = found[0]
            elif "id" in members and identifier == self._buffer[found[1] : found[2]]:
                key = found[0]
                constant = None
            said = found[4]
            if said is not None and (
                said != said_in(message.parameters)
                or sequence_names(found) != sum(name in message.parameters for name in NAMES)
            ):
                key = None
        form = Form(self._sources, outputs, arrays, constant)
        return InferRequest(message, self._contents, identifier, form, key)

    # --- inputs ------------------------------------------------------------------------------------------------------

    def _read_input(self, tensor: Any) -> None:
        name = read_member(tensor, "name", as_string)
        datatype = read_member(tensor, "datatype", as_string)
        shape = read_member(tensor, "shape", _as_shape)
        text = f"[{','.join(map(str, shape))}]"
        if any(size > _MOST for size in shape):
            raise InvalidRequest(
                f"invalid shape for input '{name}': shape {text} contains one or more invalid dimensions"
            )
        message = self._message
        if name in self._names:
            raise InvalidRequest(f"{request_prefix(message.id)}input '{name}' already exists in request")
        self._names.add(name)
        added = message.inputs.add(name=name, datatype=datatype, shape=shape)
        parameters = tensor.get("parameters")
        if not isinstance(parameters, dict):
            parameters = {}
        given = [key for key in _SOURCES if key in (tensor if key == "data" else parameters)]
        if len(given) != 1:
            which = f"set {' '.join(repr(key) for key in given)}" if given else "no field is set"
            raise InvalidRequest(
                "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
                f"'shared_memory_region' in 'parameters'. But {which}"
            )
        if "shared_memory_region" in given:
            read_region(parameters, added.parameters)
        elif "binary_data_size" in given:
            self._take_binary(name, read_member(parameters, "binary_data_size", as_unsigned))
        else:
            self._read_data(name, datatype, _count(shape), text, tensor)

    def _take_binary(self, name: str, size: int) -> None:
        start = self._binary_at
        missing = start + size - self._end
        if missing > 0:
            raise InvalidRequest(
                f"unexpected size for input '{name}', expecting {missing} additional bytes for model "
                f"'{self._target.model}'"
            )
        self._binary_at = start + size
        self._contents.append(memoryview(self._buffer)[start : self._binary_at])
        self._sources.append(_Source(start - self._binary_start, self._binary_at - self._binary_start))

    def _read_data(self, name: str, datatype_name: str, count: int, shape: str, tensor: Mapping[str, Any]) -> None:
        datatype = BY_NAME.get(datatype_name)
        if datatype is None:
            raise InvalidRequest(f"invalid datatype for input {name}")
        if count > _MOST:
            raise InvalidRequest(
                f"invalid shape for input '{name}': shape {shape} causes total element count to exceed maximum size of "
                f"{_MOST}"
            )
        if count * datatype.size > _MOST:
            raise InvalidRequest(
                f"byte size overflow for input '{name}': element count ({count}) * data type size ({datatype.size}) "
                f"exceeds maximum allowed size ({_MOST})"
            )
        most = self._target.max_input_bytes
        if count * datatype.size > most:
            raise too_large(f"JSON input '{name}'", count * datatype.size, most)
        content = b""
        if self._found is not None:
            if not count:
                raise Unreadable  # nothing would look at what was cut
            array = read_member(tensor, "data", as_array)[0]
            reader = reader_of(datatype, count)
            start, stop = self._found[3][2 * array : 2 * array + 2]
            try:
                content = reader.read(self._buffer, start, stop, self._pause)
            except Unreadable as odd:
                if isinstance(odd.error, BeyondRange):
                    raise _beyond(name, odd.error) from None
                raise
            self._sources.append(_Source(0, 0, array, reader))
        elif count:
            data = read_member(tensor, "data", as_array)
            try:
                content = read_elements(data, datatype, count)
            except BeyondRange as error:
                raise _beyond(name, error) from None
            if not datatype.size:
                self._count_strings(name, count, content)
        if len(content) > most:
            raise too_large(f"JSON input '{name}'", len(content), most)
        self._contents.append(content)

    def _count_strings(self, name: str, count: int, content: bytes) -> None:
        at = got = 0
        while at < len(content):
            at += 4 + int.from_bytes(content[at : at + 4], "little")
            got += 1
        if got != count:
            self._wrong.append(
                f"expected {count} string elements for inference input '{name}' for model '{self._target.model}', "
                f"got {got}"
            )

    # --- outputs -----------------------------------------------------------------------------------------------------

    def _read_outputs(self, members: Mapping[str, Any]) -> dict[str, bool]:
        """Of each output that is listed, whether it is sent as binary data."""
        message = self._message
        binary: dict[str, bool] = {}
        for output in read_member(members, "outputs", as_array) if "outputs" in members else ():
            name = read_member(output, "name", as_string)
            if name in binary:
                raise InvalidRequest(f"{request_prefix(message.id)}output '{name}' already exists in request")
            added = message.outputs.add(name=name)
            parameters = output.get("parameters")
            if not isinstance(parameters, dict):
                parameters = {}
            classes = 0
            if "classification" in parameters:
                try:
                    classes = as_unsigned(parameters["classification"])
                except MalformedMessage as error:
                    raise MalformedMessage(f"Unable to set 'classification': {error}") from None
            binary[name] = "binary_data" in parameters and read_member(parameters, "binary_data", as_boolean)
            if "shared_memory_region" in parameters:
                read_region(parameters, added.parameters)
                for key, is_set in (("classification", classes), ("binary_data", binary[name])):
                    if is_set:
                        raise InvalidRequest(f"Output can't set both 'shared_memory_region' and '{key}'")
            if classes:
                added.parameters["classification"].int64_param = min(classes, _MOST)
        return binary


def _count(shape: Sequence[int]) -> int:
    """Elements of a shape; of one that has far too many not all."""
    count = int(0 not in shape)
    for size in shape:
        count *= size
        if count > _MOST:
            break
    return count


def _as_shape(value: Any) -> list[int]:
    return [as_unsigned(size) for size in as_array(value)]


def _beyond(name: str, error: BeyondRange) -> InvalidRequest:
    return InvalidRequest(f"input '{name}': {error}")

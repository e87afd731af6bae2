"""Writing the answer to an infer request: JSON, and binary data behind it.

A ``ResponseTemplate`` holds all that is the same for a kind of request. A response of binary data is then its two
constants around the id, and the outputs' bytes: 0.5 us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.arrays import Pause
from toutates.protocol.rest.lengths import HEADER_LENGTH
from toutates.protocol.rest.values import ValueWriter
from toutates.system.json_text import encode_json

__all__ = ["InferResponse", "ResponseTemplate", "head_of"]

Buffer = bytes | memoryview


#: Sizes of JSON of which one template remembers the header fields. They differ with the length of the id.
MAX_SIZES: Final = 64

_JSON_FIELDS: Final = b"content-type: application/json\r\n"
_BINARY_FIELDS: Final = b"content-type: application/octet-stream\r\n%b: %%d\r\n" % HEADER_LENGTH.lower().encode()


class InferResponse:
    """An answer.

    Args:
        fields: header fields that say what the body is, each with its CR LF; Content-Length is not among them.
        pieces: the body.
        length: its bytes.
    """

    __slots__ = ("fields", "length", "pieces")

    def __init__(self, fields: bytes, pieces: list[Buffer], length: int) -> None:
        self.fields = fields
        self.pieces = pieces
        self.length = length


def head_of(fields: bytes, length: int) -> bytes:
    """The fields of an answer with the empty line after them; arguments as of ``InferResponse``."""
    return b"%bcontent-length: %d\r\n\r\n" % (fields, length)


class ResponseTemplate:
    """The answers to one kind of request.

    Args:
        model: name.
        version: the version that ran, decimal.
        tensors: the outputs in the order in which they are returned; those with classes in place of numbers are BYTES.
        binary: which of them are sent as binary data.
        sizes: bytes of each as raw contents; None for those that differ from answer to answer.
        parameters: of the response, which a model may set.
        elsewhere: which outputs are described alone, because their bytes are in shared memory; empty for none.

    Attributes:
        texts: which outputs are written as JSON arrays.
    """

    __slots__ = ("_anonymous", "_binary", "_fields", "_only", "_parts", "_size", "_varying", "texts")

    def __init__(
        self,
        model: str,
        version: str,
        tensors: Sequence[WireTensor],
        binary: Sequence[bool],
        sizes: Sequence[int | None],
        parameters: Mapping[str, bool | int | float | str] | None = None,
        elsewhere: Sequence[bool] = (),
    ) -> None:
        head = b'"model_name":%b,"model_version":%b,' % (encode_json(model), encode_json(version))
        if parameters:
            head += b'"parameters":%b,' % encode_json(dict(parameters))
        parts = [head + b'"outputs":[']
        varying: list[tuple[int, ValueWriter | None]] = []
        for at, (tensor, is_binary, size) in enumerate(zip(tensors, binary, sizes, strict=True)):
            description = b'{"name":%b,"datatype":%b,"shape":%b,' % (
                encode_json(tensor.name),
                encode_json(tensor.datatype),
                encode_json(tensor.shape),
            )
            parts[-1] += b"," + description if at else description
            if elsewhere and elsewhere[at]:
                parts[-1] = parts[-1][:-1] + b"}"
            elif is_binary:
                parts[-1] += b'"parameters":{"binary_data_size":'
                if size is None:
                    varying.append((at, None))
                    parts.append(b"}}")
                else:
                    parts[-1] += b"%d}}" % size
            else:
                varying.append((at, ValueWriter(tensor.name, BY_NAME[tensor.datatype])))
                parts[-1] += b'"data":'
                parts.append(b"}")
        parts[-1] += b"]}"
        #: what is around the values that differ
        self._parts = parts
        #: the first part of an answer without an id
        self._anonymous = b"{" + parts[0]
        #: of the outputs whose JSON differs from answer to answer: which one, and what writes it; None for its size
        self._varying = tuple(varying)
        forms = [None if away else form for form, away in zip_longest(binary, elsewhere)]
        self.texts = tuple(index for index, is_binary in enumerate(forms) if is_binary is False)
        #: what writes the JSON array that is all that differs
        self._only = varying[0][1] if len(tensors) == 1 and varying else None
        #: which outputs are sent as binary data
        self._binary = tuple(index for index, is_binary in enumerate(forms) if is_binary)
        #: bytes of binary data, where all outputs are binary data of fixed sizes
        self._size = 0 if varying else sum(size for size in sizes if size is not None)
        #: header fields, by the size of the JSON
        self._fields: dict[int, bytes] = {}

    def write(self, identifier: bytes, contents: Sequence[Buffer], pause: Pause | None = None) -> InferResponse:
        """One answer.

        Args:
            identifier: text of the request's id in JSON, without quotation marks; b"" for none.
            contents: of each output, as raw contents.
            pause: called between two pieces of a large array.

        Raises:
            InvalidRequest: an output cannot be written as JSON.
        """
        start = b'{"id":"%b",%b' % (identifier, self._parts[0]) if identifier else self._anonymous
        if self._size:
            size = len(start)
            return InferResponse(self._fields_for(size), [start, *contents], size + self._size)
        if self._only is not None:
            text = b"".join((start, self._only.write(contents[0], pause), self._parts[1]))
            return InferResponse(_JSON_FIELDS, [text], len(text))
        texts = [start]
        for (index, writer), part in zip(self._varying, self._parts[1:], strict=True):
            content = contents[index]
            texts += (b"%d" % len(content) if writer is None else writer.write(content, pause), part)
        text = b"".join(texts)
        data = [contents[index] for index in self._binary]
        length = sum(map(len, data))
        fields = self._fields_for(len(text)) if length else _JSON_FIELDS
        return InferResponse(fields, [text, *data], len(text) + length)

    def constant(self) -> tuple[bytes, bytes] | None:
        """The head (``head_of``) and the JSON of every answer without an id, if all outputs are binary data of fixed
        sizes; else None."""
        if not self._size:
            return None
        size = len(self._anonymous)
        return head_of(self._fields_for(size), size + self._size), self._anonymous

    def _fields_for(self, size: int) -> bytes:
        """The header fields of an answer with binary data behind JSON of ``size`` bytes."""
        fields = self._fields.get(size)
        if fields is None:
            fields = _BINARY_FIELDS % size
            if len(self._fields) < MAX_SIZES:
                self._fields[size] = fields
        return fields

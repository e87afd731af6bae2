"""Infer requests over REST by bytes, read in every way that there is."""

from __future__ import annotations

import json
from typing import Any, Final

from toutates.protocol.rest.cutting import cut
from toutates.protocol.rest.request import InferRequest, Target, read_request
from toutates.system.errors import RequestError

__all__ = ["LIMIT", "TARGET", "by_form", "compact", "read", "read_cut", "refusal", "tensor"]

LIMIT: Final = 64 * 1024 * 1024
TARGET: Final = Target("simple", "", LIMIT)


def compact(document: Any) -> bytes:
    """As tritonclient writes JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """An input of a request."""
    members: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
    if parameters:
        members["parameters"] = parameters
    if data is not None:
        members["data"] = data
    return members


def read(document: Any, binary: bytes = b"", target: Target = TARGET) -> InferRequest:
    """A request read the long way, between bytes of others. With its JSON cut or not, the same has to come out.

    Args:
        document: of JSON, or its text.
        binary: data behind it.
        target: what it is for.
    """
    text = document if isinstance(document, bytes) else compact(document)
    body = b"\xff{" + text + binary + b"]"
    start, json_end, end = 2, 2 + len(text), 2 + len(text) + len(binary)
    found = cut(body, start, json_end)
    refusals: list[RequestError] = []
    for cut_or_not in (None, found):
        try:
            read_request(body, start, json_end, end, target, cut_or_not)
        except RequestError as error:
            refusals.append(error)
    if refusals:
        kinds = [(type(error), str(error)) for error in refusals]
        assert len(kinds) == 2, f"refused, and read, if it is cut or not: {text[:500]!r}"
        assert kinds[0] == kinds[1]
        raise refusals[0]
    whole = read_request(body, start, json_end, end, target)
    request = read_request(body, start, json_end, end, target, found)
    assert request.message == whole.message
    assert [bytes(content) for content in request.contents] == [bytes(content) for content in whole.contents]
    assert request.identifier == whole.identifier
    assert request.form.outputs == whole.form.outputs
    if request.key is not None:
        again = by_form(request, text, binary)
        assert again == ([bytes(content) for content in request.contents], request.identifier)
    return request


def by_form(known: InferRequest, text: bytes, binary: bytes = b"") -> tuple[list[bytes], bytes] | None:
    """The inputs and the id of another request, read by the form of one that is known; None if that cannot be."""
    body = b'{"data":' + text + binary + b'"id":""'
    start, json_end, end = 8, 8 + len(text), 8 + len(text) + len(binary)
    found = cut(body, start, json_end)
    if found is None or found[0] != known.key:
        return None
    found_contents = known.form.read(found, body, json_end, end)
    if found_contents is None:
        return None
    buffer, spans = found_contents
    contents = [bytes(buffer[spans[at] : spans[at + 1]]) for at in range(0, len(spans), 2)]
    return contents, known.form.identifier_of(found, body)


def refusal(document: Any, binary: bytes = b"", target: Target = TARGET) -> tuple[str, str]:
    """The kind and the text of the error that a request gets."""
    try:
        read(document, binary, target)
    except RequestError as error:
        return type(error).__name__, str(error)
    raise AssertionError("the request was read")


def read_cut(text: bytes) -> InferRequest:
    """A request that is too large to be read whole, as a server reads it."""
    return read_request(text, 0, len(text), len(text), TARGET, cut(text, 0, len(text)))

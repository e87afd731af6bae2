"""What a handler gets of a request's body, by its content type."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

__all__ = ["read_body"]

#: Fields of a form, at most.
MAX_FIELDS = 1_000


def read_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The dict of one request: the fields of a form, or the whole body under "body".

    Raises:
        ValueError: the body is not what its type says.
    """
    kind, parameters = _content_type(content_type)
    if kind == "multipart/form-data":
        return _multipart(body, str(parameters.get("boundary", "")))
    if kind == "application/x-www-form-urlencoded":
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        return {name: bytearray(value.encode()) for name, value in pairs}
    return {"body": decode(body, kind, str(parameters.get("charset", "")))}


def decode(value: bytes, kind: str, charset: str = "") -> Any:
    """JSON as the object, text as a str, anything else as a bytearray."""
    if kind == "application/json":
        return json.loads(value)
    if kind.startswith("text/"):
        return value.decode(charset or "utf-8")
    return bytearray(value)


def _content_type(text: str) -> tuple[str, dict[str, str]]:
    message = Message()
    message["content-type"] = text or "application/octet-stream"
    pairs = message.get_params() or []
    return pairs[0][0].lower() if pairs else "", {name.lower(): str(value) for name, value in pairs[1:]}


def _multipart(body: bytes, boundary: str) -> dict[str, Any]:
    """RFC 7578."""
    if not boundary or len(boundary) > 70:
        raise ValueError("the content type names no boundary")
    sections = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"), MAX_FIELDS + 2)
    if len(sections) > MAX_FIELDS + 2:
        raise ValueError(f"the form has more than {MAX_FIELDS} fields")
    if len(sections) < 2 or not sections[-1].startswith(b"--"):
        raise ValueError("the form does not end with its boundary")
    fields: dict[str, Any] = {}
    for section in sections[1:-1]:
        _, line_end, part = section.partition(b"\r\n")
        head, empty, content = (b"\r\n" + part).partition(b"\r\n\r\n")
        if not line_end or not empty:
            raise ValueError("a part of the form has no head")
        name, kind, charset = _part_head(head)
        fields[name] = decode(content, kind, charset)
    return fields


def _part_head(head: bytes) -> tuple[str, str, str]:
    """Name, content type and charset of a part."""
    message = Message()
    kind = charset = ""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            message["content-disposition"] = value.strip()
        elif name.strip().lower() == "content-type":
            kind, parameters = _content_type(value.strip())
            charset = str(parameters.get("charset", ""))
    field = message.get_param("name", header="content-disposition")
    if not isinstance(field, str):
        raise ValueError("a part of the form has no name")
    return field, kind, charset

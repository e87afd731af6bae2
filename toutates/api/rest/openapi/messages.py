"""Schemas of the messages that answers are made of, as ``api.rest.messages.as_document`` writes them."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from toutates.api.rest.messages import may_be_left_out

__all__ = ["add_schemas", "reference"]

Schema = dict[str, Any]

_SCALARS: Final[dict[int, Schema]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_INT64: {"type": "integer", "format": "int64"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.TYPE_UINT64: {"type": "integer", "minimum": 0},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
}


def reference(message: Descriptor) -> Schema:
    """The schema of a message, by its name among the document's components."""
    return {"$ref": f"#/components/schemas/{_name(message)}"}


def _name(message: Descriptor) -> str:
    package: str = message.file.package
    return message.full_name.removeprefix(f"{package}.")


def add_schemas(message: Descriptor, schemas: dict[str, Schema], *, whole: bool = False) -> None:
    """Add the schema of a message, and of those in it, to the document's components.

    Args:
        message: any but one with bytes.
        schemas: by name.
        whole: as for ``as_document``.
    """
    if _name(message) in schemas:
        return
    properties: dict[str, Schema] = {}
    schema: Schema = {"type": "object", "properties": properties}
    schemas[_name(message)] = schema
    required = []
    for field in message.fields:
        properties[field.name] = _field(field, schemas, whole)
        if not may_be_left_out(field, whole):
            required.append(field.name)
    if required:
        schema["required"] = required


def _field(field: FieldDescriptor, schemas: dict[str, Schema], whole: bool) -> Schema:
    inner = field.message_type
    if not field.is_repeated:
        return _value(field, schemas, whole)
    if inner is not None and inner.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _value(inner.fields_by_name["value"], schemas, whole)}
    return {"type": "array", "items": _value(field, schemas, whole)}


def _value(field: FieldDescriptor, schemas: dict[str, Schema], whole: bool) -> Schema:
    if field.message_type is not None:
        add_schemas(field.message_type, schemas, whole=whole)
        return reference(field.message_type)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    return _SCALARS[field.type]

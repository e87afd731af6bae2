"""Numbers in the place of an enum's names: protobuf takes any, in text and in JSON, and no model is served with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from toutates.models.config.problems import MAX_PROBLEMS, Problems

__all__ = ["check_enums"]


def check_enums(config: Message, problems: Problems) -> None:
    """Refuse every number that is none of its enum, in all fields of a ModelConfig.

    Args:
        config: the message.
        problems: gets what is wrong, the first of many.
    """
    for _, (key, enum, number) in zip(range(MAX_PROBLEMS), _unknown(config, ""), strict=False):
        names = ", ".join(value.name for value in enum.values if not value.name.endswith("_INVALID"))
        problems.add(key, f"is a number that no {enum.name} has", number, f"write one of {names}")


def _unknown(message: Message, prefix: str) -> Iterator[tuple[str, EnumDescriptor, int]]:
    """Where numbers of no name stand, the enums that they are to be of, and the numbers."""
    for field, value in message.ListFields():
        key = prefix + field.name
        enum = field.enum_type
        if enum is not None:
            for number in value if field.is_repeated else (value,):
                if number not in enum.values_by_number:
                    yield key, enum, number
        elif field.message_type is not None:
            for part, name in _parts(field, value):
                yield from _unknown(part, key + name)


def _parts(field: FieldDescriptor, value: Any) -> Iterator[tuple[Message, str]]:
    """The messages of a field, each with what follows the field's name in front of its own fields' names."""
    if isinstance(value, Message):
        yield value, "."
    elif isinstance(value, Mapping):
        yield from ((part, f"[{key!r}].") for key, part in value.items() if isinstance(part, Message))
    else:
        for at, part in enumerate(value):
            name = getattr(part, "name", "")
            yield part, f" '{name}' " if name else f"[{at}]."

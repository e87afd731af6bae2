"""The descriptor pool that holds this package's protobuf messages, and the making of their classes.

protobuf keeps one default pool per process, in which a name stands for one message. tritonclient and other clients
register ``inference.ModelInferRequest`` there; were ours in it too, no process could import both. So ours live in a
pool of their own. A message of one pool is not a message of the other: to hand one over, serialise it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import cast

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.reflection import GeneratedProtocolMessageType

__all__ = ["POOL", "build"]

POOL = DescriptorPool()


def build(file: FileDescriptor, namespace: MutableMapping[str, object]) -> None:
    """Define the messages and enums of a file, as protobuf's own generated modules would.

    protobuf's builder is not used, because with the pure-Python runtime it adds each message to the default pool.

    Args:
        file: a file of ``POOL``.
        namespace: the ``globals()`` of the generated module, which receives the classes, enums and enum values.
    """
    for name, enum in file.enum_types_by_name.items():
        namespace[name] = EnumTypeWrapper(enum)
        namespace.update((value.name, value.number) for value in enum.values)
    for name, message in file.message_types_by_name.items():
        namespace[name] = message_class(message, str(namespace["__name__"]))


def message_class(descriptor: Descriptor, module: str, outer: str = "") -> type[Message]:
    """The class of a message, with the classes of its nested messages as attributes."""
    qualified = f"{outer}{descriptor.name}"
    members: dict[str, object] = {
        name: message_class(nested, module, f"{qualified}.") for name, nested in descriptor.nested_types_by_name.items()
    }
    members |= {"DESCRIPTOR": descriptor, "__module__": module, "__qualname__": qualified}
    return cast("type[Message]", GeneratedProtocolMessageType(descriptor.name, (Message,), members))

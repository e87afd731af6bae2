"""ModelInfer requests that are legal protobuf, of very many fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.protobuf_fields import field_of as field
from tests.protobuf_fields import varint


def tensor(*more: bytes, name: bytes = b"in0", shape: bytes = b"\x01\x04") -> bytes:
    """An input, with more fields."""
    return field(5, field(1, name), field(2, b"FP32"), field(3, shape), *more)


def entry(key: bytes) -> bytes:
    """A parameter: a bool."""
    return field(4, field(1, key), field(2, b"\x08\x01"))


MODEL: Final = field(1, b"m")
RAW: Final = field(7)
#: Messages of about so many fields, each of a kind of its own.
MANY: Final[dict[str, Callable[[int], bytes]]] = {
    "unknown numbers": lambda count: MODEL + b"\x40\x00" * count,
    "unknown fixed32": lambda count: MODEL + b"\x45abcd" * count,
    "unknown fixed64": lambda count: MODEL + b"\x41abcdefgh" * count,
    "unknown strings": lambda count: MODEL + b"\x42\x01a" * count,
    "far field numbers": lambda count: MODEL + varint(2**29 - 1 << 3) + b"\x00" + b"\xf8\xff\xff\xff\x0f\x00" * count,
    "groups": lambda count: MODEL + b"\x43\x44" * (count // 2),
    "a group of fields": lambda count: MODEL + b"\x43" + b"\x08\x00" * count + b"\x44",
    "nested groups": lambda count: MODEL + b"\x43" * (count // 2) + b"\x44" * (count // 2),
    "unknown fields of an input": lambda count: MODEL + tensor(b"\x40\x00" * count),
    "inputs": lambda count: MODEL + b"".join(tensor(name=b"%d" % at) for at in range(count // 6)),
    "inputs and contents": lambda count: (
        MODEL + b"".join(tensor(name=b"%d" % at) for at in range(count // 7)) + RAW * (count // 7)
    ),
    "empty inputs": lambda count: MODEL + field(5) * count,
    "one input many times": lambda count: MODEL + tensor() * (count // 6),
    "raw contents": lambda count: MODEL + tensor() + RAW * count,
    "parameters": lambda count: MODEL + tensor() + RAW + b"".join(entry(b"%d" % at) for at in range(count // 4)),
    "empty parameters": lambda count: MODEL + field(4) * count,
    "parameters of an input": lambda count: MODEL + tensor(*[entry(b"%d" % at) for at in range(count // 4)]) + RAW,
    "parameters of an output": lambda count: (
        MODEL + tensor() + RAW + field(6, *[field(2, field(1, b"%d" % at)) for at in range(count // 2)])
    ),
    "outputs": lambda count: (
        MODEL + tensor() + RAW + b"".join(field(6, field(1, b"%d" % at)) for at in range(count // 2))
    ),
    "names of the model": lambda count: MODEL * count,
    "dimensions": lambda count: MODEL + tensor(shape=b"\x01" * count) + RAW,
    "dimensions one by one": lambda count: MODEL + tensor(b"\x18\x01" * count) + RAW,
}

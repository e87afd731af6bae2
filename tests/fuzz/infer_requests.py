"""ModelInferRequests, valid, mutated and random, read by us and by protobuf.

Invariant: for any bytes, ``scan`` raises nothing and looks at nothing beyond its bounds. What it returns is what
protobuf finds, if protobuf accepts the constant part (only then can there be a plan that the rest is served by). A
``Layout`` reads a message as ``scan`` does, or not at all. A ``SequenceLayout`` reads what protobuf does, or nothing,
and a message without parameters of a sequence has none. A request that protobuf accepts is validated, and its
contents decoded, or refused with a RequestError; one that it does not accept is refused with a MalformedMessage.

A case is a message.
"""

from __future__ import annotations

import random
import struct
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.sessions import mutate
from toutates.infer.scanning import Scan, read_layout, scan
from toutates.infer.sequenced import sequence_layout
from toutates.infer.validation import ValidatedRequest, validate
from toutates.protocol.datatypes import BY_NAME, typed_contents_to_raw
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.parsing import parse
from toutates.protocol.sequence_parameters import NAMES, said_in
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import StringRows, join_rows
from toutates.system.errors import MalformedMessage, RequestError

__all__ = ["check", "make_case"]

SIGNATURE = Signature(
    (
        TensorSpec("a", BY_NAME["FP32"], (4,)),
        TensorSpec("b", BY_NAME["BYTES"], (-1,)),
        TensorSpec("c", BY_NAME["INT8"], (2, -1), optional=True),
        TensorSpec("d", BY_NAME["UINT16"], (1,), optional=True, reshape=()),
    ),
    (TensorSpec("x", BY_NAME["FP32"], (4,)), TensorSpec("y", BY_NAME["FP16"], (4,))),
    batched=True,
)
INTERESTING = (0, 1, 2, 4, -1, -2, 2**31, 2**62, -(2**63), 2**63 - 1)
STRINGS = (b"\x01\0\0\0a", b"\0\0\0\0", b"\x02\0\0\0\xff\xfe", b"\xff\xff\xff\xffa", b"\x01\0")

# --- cases -----------------------------------------------------------------------------------------------------------


def make_case(rng: random.Random) -> bytes:
    """A request: nearly right, or fields in every form that the wire knows; with some bytes changed at times."""
    octets = _nearly_right(rng) if rng.random() < 0.6 else b"".join(_field(rng, 0) for _ in range(rng.randint(0, 8)))
    if rng.random() < 0.3:
        octets += _field(rng, 0)
    if rng.random() < 0.4:
        octets = mutate(octets, rng)
    return octets


def _nearly_right(rng: random.Random) -> bytes:
    message = ModelInferRequest(model_name="m", id=rng.choice(("", "id", "\u00e9" * 100, "i" * 200)))
    typed = rng.random() < 0.3
    for spec in rng.choices((SIGNATURE.inputs[:2], SIGNATURE.inputs, SIGNATURE.inputs[:1]), (4, 2, 1))[0]:
        tensor = message.inputs.add(name=spec.name, datatype=rng.choice([spec.datatype.name] * 9 + ["INT64", "??"]))
        wanted = (1, *(size if size >= 0 else rng.choice((1, 2, 0)) for size in spec.shape))
        tensor.shape.extend(wanted if rng.random() < 0.9 else [rng.choice(INTERESTING) for _ in wanted])
        if typed:
            field = spec.datatype.contents_field
            contents = tensor.contents
            values: Any = getattr(contents, field) if field and rng.random() < 0.95 else contents.fp32_contents
            for _ in range(rng.choice((prod(wanted), 1, 0))):
                values.append(b"text" if values is contents.bytes_contents else rng.choice((0, 1, 127)))
        elif spec.datatype.size:
            message.raw_input_contents.append(bytes(rng.choice((prod(wanted) * spec.datatype.size, 0, 16, 200))))
        else:
            message.raw_input_contents.append(b"".join(rng.choices(STRINGS, (9, 3, 1, 1, 1), k=rng.choice((1, 1, 2)))))
    if rng.random() < 0.3:
        output = message.outputs.add(name=rng.choice("xyz"))
        output.parameters["classification"].int64_param = rng.choice(INTERESTING)
    if rng.random() < 0.2:
        key = rng.choice(("priority", "timeout", "triton_x", "sequence_id", "sequence_start", "z"))
        parameter = message.parameters[key]
        name = rng.choice(("int64_param", "uint64_param", "bool_param", "string_param", "double_param"))
        setattr(parameter, name, {"string_param": "s", "bool_param": True}.get(name, 3))
    if rng.random() < 0.3:
        _add_sequence(message, rng)
    octets = message.SerializeToString()
    return octets if rng.random() < 0.7 else _shuffled(octets, rng)


def _add_sequence(message: ModelInferRequest, rng: random.Random) -> None:
    parameters = message.parameters
    if rng.random() < 0.5:
        parameters["sequence_id"].int64_param = rng.choice((*INTERESTING, 300, 70_000))
    else:
        parameters["sequence_id"].string_param = rng.choice(("s", "", "\u00e9", "i" * 128, "i" * 129))
    for name in ("sequence_start", "sequence_end"):
        if rng.random() < 0.8:
            parameters[name].bool_param = rng.random() < 0.5


def _shuffled(octets: bytes, rng: random.Random) -> bytes:
    """The same top-level fields in another order, some twice."""
    layout: list[bytes] = []
    at = 0
    while at < len(octets):
        end, length, shift = at + 1, 0, 0
        while True:
            length |= (octets[end] & 0x7F) << shift
            end, shift = end + 1, shift + 7
            if octets[end - 1] < 0x80:
                break
        layout.append(octets[at : at + 1] + _varint(length, rng) + octets[end : end + length])
        at = end + length
    rng.shuffle(layout)
    if layout and rng.random() < 0.3:
        layout.append(rng.choice(layout))
    return b"".join(layout)


def _field(rng: random.Random, depth: int) -> bytes:
    """A field of any number and wire type, with what belongs there or does not."""
    number = rng.choice((1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 7, 8, 15, 16, 2**29 - 1, 0))
    wire_type = rng.choices((2, 0, 1, 5, 3, 4, 6, 7), (20, 3, 1, 1, 2, 0.3, 0.1, 0.1))[0]
    tag = _varint(number << 3 | wire_type, rng)
    if wire_type == 0:
        return tag + _varint(rng.choice(INTERESTING) % 2**64, rng)
    if wire_type in (1, 5):
        return tag + rng.randbytes(8 if wire_type == 1 else 4)
    if wire_type == 3:
        inner = b"".join(_field(rng, depth + 1) for _ in range(rng.randrange(3))) if depth < 4 else b""
        if rng.random() < 0.02:
            return tag * rng.choice((50, 200, 2_000)) + inner
        return tag + inner + _varint(number << 3 | 4, rng)
    if wire_type != 2:
        return tag
    content = rng.choice((b"", b"m", b"\xff", "\u00e9".encode(), rng.randbytes(rng.choice((4, 16, 130))), None))
    if content is None:
        content = b"".join(_field(rng, depth + 1) for _ in range(rng.randrange(4))) if depth < 4 else b""
    length = (
        len(content) if rng.random() < 0.97 else rng.choice((0, len(content) + 1, 2**31 - 1, 2**31, 2**63, 2**64 - 1))
    )
    return tag + _varint(length, rng) + content


def _varint(value: int, rng: random.Random) -> bytes:
    """A varint; at times with more bytes than it takes, up to one more than is allowed."""
    out = bytearray()
    while value >= 0x80:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    if rng.random() < 0.05:
        for _ in range(rng.randint(1, 11 - len(out))):
            out[-1] |= 0x80
            out.append(0)
    return bytes(out)


# --- what must hold --------------------------------------------------------------------------------------------------


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    around = b"\xff" + case + b"\xff" * 3
    scanned = scan(around, 1, 1 + len(case))
    parsed = _parse(case)
    if scanned is not None:
        _check_scan(around, scanned, parsed)
        _check_layout(case, around, scanned)
    _check_sequence_layout(case, around, parsed)
    if parsed is None:
        return
    sizes = [len(raw) for raw in parsed.raw_input_contents]
    try:
        validated = validate(parsed, sizes, SIGNATURE, "m")
    except RequestError:
        return
    _check_validated(validated, sizes)
    try:
        _decode(parsed, validated)
    except RequestError:
        return


def _parse(octets: bytes) -> ModelInferRequest | None:
    try:
        return parse(ModelInferRequest, octets)
    except MalformedMessage:
        return None


def _check_scan(around: bytes, scanned: Scan, parsed: ModelInferRequest | None) -> None:
    key, id_field, spans = scanned
    rest = _parse(key)
    if rest is None:
        assert parsed is None, "protobuf accepts a message whose constant part it does not accept"
        return
    assert parsed is not None, "protobuf does not accept a message that would be served"
    raws = [around[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]
    assert raws == list(parsed.raw_input_contents), "raw contents differ"
    id_alone = _parse(id_field)
    assert id_alone is not None
    assert id_alone.id == parsed.id, "ids differ"
    assert not id_alone.raw_input_contents
    expected = ModelInferRequest()
    expected.CopyFrom(parsed)
    expected.ClearField("raw_input_contents")
    expected.ClearField("id")
    # NaN in typed contents differs from itself, so the bytes are compared.
    assert rest.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True), "keys differ"


def _check_layout(case: bytes, around: bytes, scanned: Scan) -> None:
    key, id_field, spans = scanned
    layout = read_layout(around, 1, 1 + len(case))
    assert around.startswith(layout.head, 1)
    read = layout.read(around, 1)
    if read is not None:
        assert read == (id_field, spans), "the layout of a message reads it differently"
    else:
        assert not id_field.isascii(), "a message is not of its own layout"
    if layout.single:
        assert spans == [1 + len(layout.head), 1 + len(case)], "a message of one raw content has more"
        assert not id_field
    # Another message of the same length: what the layout reads must be what a scan finds.
    chance = random.Random(case)
    other = bytearray(case)
    for _ in range(chance.randint(1, 4)):
        if other:
            other[chance.randrange(len(other))] = chance.choice((chance.randrange(256), 0x80, 0, 0x61))
    surroundings = b"\xff" * 5 + bytes(other) + b"\xff" * 3
    if not surroundings.startswith(layout.head, 5):
        return
    if layout.single:
        assert scan(surroundings, 5, 5 + len(case)) == (key, b"", [5 + len(layout.head), 5 + len(case)])
        return
    read = layout.read(surroundings, 5)
    if read is not None:
        assert scan(surroundings, 5, 5 + len(case)) == (key, *read), "a layout reads what a scan does not find"


def _check_sequence_layout(case: bytes, around: bytes, parsed: ModelInferRequest | None) -> None:
    layout = sequence_layout(around, 1, 1 + len(case))
    if layout is None:
        return
    assert scan(around, 1, 1 + len(case)) is None, "a message of a sequence is scanned without it"
    chance = random.Random(case)
    for changes in range(4):
        other = bytearray(case)
        for _ in range(changes):
            other[chance.randrange(len(other))] = chance.choice((chance.randrange(256), 0x80, 0, 1, 0x61))
        surroundings = b"\xff" * 5 + bytes(other) + b"\xff" * 3
        read = layout.read(surroundings, 5)
        if read is None:
            continue
        judged = _parse(bytes(other))
        if judged is None or parsed is None:
            # Then no message of this key is read, so that there is no plan for it.
            assert judged is parsed, "messages of one key are not alike"
            continue
        id_field, spans, said = read
        assert _parse(id_field) == ModelInferRequest(id=judged.id), "ids differ"
        raws = [surroundings[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]
        assert raws == list(judged.raw_input_contents), "raw contents differ"
        assert said == said_in(judged.parameters), "what is said of a sequence differs"
        assert _rest(judged) == _rest(parsed), "messages of one key differ in other things"


def _rest(message: ModelInferRequest) -> bytes:
    """What a plan is made of."""
    rest = ModelInferRequest()
    rest.CopyFrom(message)
    for field in ("raw_input_contents", "id"):
        rest.ClearField(field)
    for name in NAMES:
        if name in rest.parameters:
            rest.parameters[name].bool_param = False
    return rest.SerializeToString(deterministic=True)


def _check_validated(validated: ValidatedRequest, sizes: list[int]) -> None:
    assert validated.raw_count <= len(sizes)
    columns = (validated.inputs, validated.shapes, validated.sources, validated.sizes)
    assert len({len(column) for column in columns}) == 1
    for source, size in zip(validated.sources, validated.sizes, strict=True):
        if isinstance(source, int) and size is not None:
            assert sizes[source] == size, "raw contents of the wrong size are accepted"
    assert all(0 <= index < len(SIGNATURE.outputs) for index in validated.outputs)
    assert all(count >= 1 for count in validated.classes.values())


def _decode(request: ModelInferRequest, validated: ValidatedRequest) -> None:
    """As the service does with what was validated."""
    tensors = {tensor.name: tensor for tensor in request.inputs}
    columns = zip(validated.inputs, validated.shapes, validated.sources, validated.sizes, strict=True)
    for index, row_shape, source, size in columns:
        spec = SIGNATURE.inputs[index]
        if not isinstance(source, int):
            contents = tensors[spec.name].contents
            raw = typed_contents_to_raw(contents, spec.datatype, tensor=spec.name, model="m")
        else:
            raw = request.raw_input_contents[source]
        shape = (validated.rows, *row_shape)
        if size is None:
            rows = StringRows.received(raw, shape, tensor=spec.name, model="m")
            assert len(join_rows([rows], shape).elements()) == prod(shape)
            continue
        if source is not None:
            assert np.frombuffer(raw, spec.datatype.numpy).reshape(shape).nbytes == size
        elif spec.datatype.name == "FP32" and raw:
            struct.unpack_from("<f", raw)

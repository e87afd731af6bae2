"""Infer requests over REST: valid, mutated and random, read whole and read by a form, and compared.

Invariant: for any bytes, a request is read or refused with a RequestError, whether its JSON was cut or not, and the
same comes out. The data of what is read is what Python's ``json`` and NumPy make of it. Where a request is of the key
of another one, the other's form reads the inputs and the id that ``read_request`` reads, or nothing: however the second
request was made of the first, by other values or by other bytes. So does its layout where the request is of that.

A case is the JSON, and behind a NUL the binary data.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.sessions import mutate
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.rest.cutting import cut
from toutates.protocol.rest.generate import read_generate_request
from toutates.protocol.rest.request import InferRequest, Target, read_request
from toutates.protocol.sequence_parameters import said_in
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import RequestError

__all__ = ["check", "make_case"]

TARGET = Target("m", "1", 10_000)
#: Of a model that has an input whose name is that of a member that every request has.
SIGNATURE = Signature((TensorSpec("inputs", BY_NAME["FP64"], (-1,)),), (), batched=True)
NUMBERS = (
    "0",
    "1",
    "-1",
    "2.5",
    "1e3",
    "-0",
    "300",
    "70000",
    "1e39",
    "18446744073709551615",
    "NaN",
    "-Inf",
    "Infinity",
)
ODD = ("", "null", "true", '"a"', "{}", "[]", "01", "1.", "1e999", "9" * 30, "nan", '{"data":[1]}', "[1", "1]")
STRINGS = ('"a"', '""', '"]"', '"\\""', '"\\u00e9"', '"\u00e9"', '"\\ud800"', '"[1,2]"', '"\\"data\\":[1]"', '"Inf"')
IDENTIFIERS = ('"7"', '""', '"0123456789abcdef"', '"a\\"b"', '"\u00e9"', "1", '"\\u0041"', '"a b,c:d]}"')
SEQUENCES = ("5", "5", "1234567890123456789", "18446744073709551615", "0", "05", "-1", "1.5", '"a b"', '""', '"\u00e9"')
SHAPES = ("[1]", "[2]", "[1,2]", "[2,1]", "[0]", "[4]", "[]", "[2,-1]", "[9223372036854775807]", "[1.0]")

SEQUENCE_VALUE = re.compile(rb'("sequence_[a-z]+": ?)(?:[0-9]+|"[^"]*"|true|false)')

# --- cases -----------------------------------------------------------------------------------------------------------


def make_case(rng: random.Random) -> bytes:
    """A request that is nearly right; with some bytes changed at times."""
    text, binary = _request(rng)
    octets = text.encode() + b"\0" + binary
    return mutate(octets, rng) if rng.random() < 0.3 else octets


def _request(rng: random.Random) -> tuple[str, bytes]:
    binary = b""
    tensors: list[str] = []
    for name in rng.choice(("x", "x", "xy", "xyz", "")):
        text, data = _input(rng, name)
        tensors.append(text)
        binary += data
    members = [("inputs", f"[{','.join(tensors)}]")]
    if rng.random() < 0.4:
        members.insert(rng.randrange(2), ("id", rng.choice(IDENTIFIERS)))
    if rng.random() < 0.3:
        binary_output = rng.choices(("true", "false", "1"), (6, 3, 1))[0]
        members.append(
            ("outputs", rng.choice(('[{"name":"y","parameters":{"binary_data":true}}]', "[]", '[{"name":"y"}]')))
        )
        members.append(
            ("parameters", f'{{"binary_data_output":{binary_output},"id":"x","k":{rng.choice(("1", "1", "[]"))}}}')
        )
    if rng.random() < 0.2:
        members.append(("parameters", _sequence(rng)))
    if rng.random() < 0.1:
        members.append((rng.choice(("data", "id", "inputs", "z")), rng.choice(('{"data":[5]}', "[1]", '"7"', "Inf"))))
    if rng.random() < 0.1:
        rng.shuffle(members)
    if rng.random() < 0.1:
        binary += b"surplus"
    return _object(rng, members), binary


def _sequence(rng: random.Random) -> str:
    """Parameters of a sequence, right or not, and not always where they belong."""
    members = [("sequence_id", rng.choice(SEQUENCES)), ("sequence_start", "true"), ("sequence_end", "false")]
    members = members[: rng.choice((1, 2, 3, 3))]
    if rng.random() < 0.2:
        members.append((rng.choice(("sequence_id", "sequence_end", "sequence_z")), rng.choice(("1", "true", '"a"'))))
    return _object(rng, members)


def _input(rng: random.Random, name: str) -> tuple[str, bytes]:
    datatype = rng.choice(("FP32", "INT8", "UINT64", "BOOL", "BYTES", "FP16", "BF16", "FP64", "INT64", "FP8"))
    shape = rng.choices(SHAPES, (4, 9, 4, 4, 1, 4, 1, 0.3, 0.2, 0.3))[0]
    members = [("name", f'"{name}"'), ("datatype", f'"{datatype}"'), ("shape", shape)]
    binary = b""
    if rng.random() < 0.3:
        binary = rng.randbytes(rng.choice((0, 4, 8)))
        size = len(binary) if rng.random() < 0.9 else rng.choice((0, 5, 2**40))
        more = f",{_sequence(rng)[1:-1]}" if rng.random() < 0.05 else ""
        members.append(("parameters", f'{{"binary_data_size":{size}{more}}}'))
    if not binary or rng.random() < 0.05:
        count = {"[1]": 1, "[0]": 0, "[4]": 4}.get(shape, 2)
        members.append(("data", _array(rng, datatype, count)))
    if rng.random() < 0.1:
        members.append(members[rng.randrange(len(members))])
    if rng.random() < 0.2:
        rng.shuffle(members)
    return _object(rng, members), binary


def _object(rng: random.Random, members: list[tuple[str, str]]) -> str:
    space = rng.choice(("", "", " ", "\n")) if rng.random() < 0.3 else ""
    return "{" + ("," + space).join(f'"{name}":{space}{value}' for name, value in members) + "}"


def _array(rng: random.Random, datatype: str, count: int) -> str:
    if rng.random() < 0.05:
        count = rng.choice((0, 1, 3, 200))
    words: tuple[str, ...] = STRINGS if datatype == "BYTES" else ("true", "false") if datatype == "BOOL" else NUMBERS
    if datatype not in ("BYTES", "BOOL") and rng.random() < 0.5:
        words = ("0", "1", "100")
    items = [rng.choice(words) if rng.random() < 0.98 else rng.choice(ODD) for _ in range(count)]
    while rng.random() < 0.3:
        at = rng.randint(0, len(items))
        items = [*items[:at], f"[{','.join(items[at:])}]"] if rng.random() < 0.7 else [f"[{item}]" for item in items]
    text = f"[{rng.choice((',', ',', ', ')).join(items)}]"
    if rng.random() < 0.05:  # brackets where none belong, in pairs or not
        for bracket in rng.choice(("[]", "[", "]")):
            at = rng.randint(0, len(text))
            text = text[:at] + bracket + text[at:]
    return text


# --- what must hold --------------------------------------------------------------------------------------------------


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    _check_generate(case)
    request = _read_both_ways(case)
    if request is None:
        return
    _check_data(case, request)
    if request.key is None:
        return
    chance = random.Random(case)
    for other in (case, *(_other(case, chance) for _ in range(4))):
        _check_form(other, request)
        _check_layout(other, case, request)


def _check_generate(case: bytes) -> None:
    """The same document as a request of the generate extension: it is read, or refused."""
    try:
        message, contents = read_generate_request(_split(case)[0], TARGET, SIGNATURE)
    except RequestError:
        return
    assert [tensor.name for tensor in message.inputs] == ["inputs"] * len(contents)
    assert [len(content) for content in contents] == [8 * prod(tensor.shape) for tensor in message.inputs]


def _split(case: bytes) -> tuple[bytes, bytes]:
    text, _, binary = case.partition(b"\0")
    return text, binary


def _read(case: bytes, *, cut_first: bool) -> InferRequest | tuple[type[RequestError], str]:
    text, binary = _split(case)
    body = b'"data":[' + text + binary + b"]}"
    start, json_end, end = 8, 8 + len(text), 8 + len(text) + len(binary)
    found = cut(body, start, json_end)
    try:
        return read_request(body, start, json_end, end, TARGET, found if cut_first else None)
    except RequestError as error:
        return type(error), str(error)


def _read_both_ways(case: bytes) -> InferRequest | None:
    whole, by_parts = _read(case, cut_first=False), _read(case, cut_first=True)
    if isinstance(whole, tuple) or isinstance(by_parts, tuple):
        assert whole == by_parts, "cut or not, a request is read or refused alike"
        return None
    assert whole.message == by_parts.message, "messages differ"
    assert _contents(whole) == _contents(by_parts), "contents differ"
    assert whole.identifier == by_parts.identifier, "ids differ"
    assert whole.form.outputs == by_parts.form.outputs, "outputs differ"
    return by_parts


def _contents(request: InferRequest) -> list[bytes]:
    return [bytes(content) for content in request.contents]


def _check_form(case: bytes, known: InferRequest) -> None:
    """If the case is of the key of a request that is known, the known form reads it as it has to be read."""
    text, binary = _split(case)
    body = b"[[" + text + binary + b'"'
    start, json_end, end = 2, 2 + len(text), 2 + len(text) + len(binary)
    found = cut(body, start, json_end)
    if found is None or found[0] != known.key:
        return
    result = known.form.read(found, body, json_end, end)
    if result is None:
        return
    buffer, spans = result
    contents = [bytes(buffer[spans[at] : spans[at + 1]]) for at in range(0, len(spans), 2)]
    judged = _read(case, cut_first=False)
    assert isinstance(judged, InferRequest), f"a form reads what is refused: {judged}"
    assert contents == _contents(judged), "a form reads other contents"
    assert known.form.identifier_of(found, body) == judged.identifier, "a form reads another id"
    assert known.form.outputs == judged.form.outputs
    assert found[4] == said_in(judged.message.parameters), "what is said of a sequence is read otherwise"
    expected, parameters = known.message.parameters, judged.message.parameters
    assert {*expected} == {*parameters}, "other parameters"


def _check_layout(case: bytes, like: bytes, known: InferRequest) -> None:
    """If the case is of the layout of a request that is known, it has the contents that the layout finds."""
    text, binary = _split(like)
    found = cut(text, 0, len(text))
    assert found is not None
    layout = known.form.layout(b"", found, text + binary, len(text))
    body = b"".join(_split(case))
    if layout is None or not body.startswith(layout.head):
        return
    if layout.reader is not None:
        content = layout.read(body)
        if content is None or _split(case)[1]:
            return
    elif len(_split(case)[0]) != len(layout.head) or len(body) != len(text + binary):
        return
    else:
        content = body
    contents = [content[layout.spans[at] : layout.spans[at + 1]] for at in range(0, len(layout.spans), 2)]
    judged = _read(case, cut_first=False)
    assert isinstance(judged, InferRequest), f"a layout finds what is refused: {judged}"
    assert contents == _contents(judged), "a layout finds other contents"
    assert judged.identifier == b"", "a layout passes over an id"
    assert known.form.outputs == judged.form.outputs


def _other(case: bytes, chance: random.Random) -> bytes:
    """Another request like this one: other elements, another id, or other bytes."""
    text, binary = _split(case)
    found = cut(text, 0, len(text))
    assert found is not None
    _, id_start, id_end, arrays, _ = found
    parts = [(arrays[at], arrays[at + 1]) for at in range(0, len(arrays), 2)]
    if id_end:
        parts.append((id_start, id_end))
    out, at = b"", 0
    for start, end in sorted(parts):
        out += text[at:start]
        at = end
        if chance.random() < 0.4:
            out += text[start:end]
        elif (start, end) == (id_start, id_end) and id_end:
            out += chance.choice(IDENTIFIERS).encode().strip(b'"')
        elif chance.random() < 0.5:
            out += mutate(text[start:end], chance)
        else:
            datatype = chance.choice(("FP32", "BYTES", "BOOL"))
            out += _array(chance, datatype, chance.choice((1, 2, 2, 4))).encode()
    out += text[at:]
    if chance.random() < 0.5:
        values = (*SEQUENCES, "true", "false")
        out = SEQUENCE_VALUE.sub(lambda found: found[1] + chance.choice(values).encode(), out)
    return out + b"\0" + (binary if chance.random() < 0.8 else chance.randbytes(len(binary)))


def _check_data(case: bytes, request: InferRequest) -> None:
    """Compare the data of numbers with what ``json`` and NumPy read, where no name is there twice."""
    text, _ = _split(case)
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except ValueError:  # twice, or words that json lacks
        return
    contents = iter(_contents(request))
    for tensor in document["inputs"]:
        if "shared_memory_region" in tensor.get("parameters", {}):
            continue
        content = next(contents)
        datatype = BY_NAME.get(tensor["datatype"])
        if "data" not in tensor or datatype is None or datatype.name in ("BF16", "BYTES") or 0 in tensor["shape"]:
            continue
        elements = list(_flat(tensor["data"]))
        with np.errstate(over="ignore"):
            if datatype.numpy.kind in "iu":
                wide = np.array([element % 2**64 for element in elements], np.uint64)
                expected = wide.astype(datatype.numpy)
            else:
                expected = np.array(elements).astype(datatype.numpy)
        assert content == expected.tobytes(), f"{datatype.name} is read wrong"
    assert next(contents, None) is None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name is there twice")
    return members


def _flat(data: list[Any]) -> Iterator[Any]:
    for item in data:
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item

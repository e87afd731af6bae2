"""Fuzz the reading of ModelInferRequests.

Invariant: for any bytes, ``scan`` returns None or exactly what protobuf finds in them, and raises nothing; and a
request that protobuf accepts is validated, or refused with a RequestError, and nothing else.

    python fuzz/fuzz_infer_request.py [--seconds 60] [--seed N]
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from harness import run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.errors import RequestError
from toutates.h2grpc import GrpcError
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.infer_request import scan
from toutates.protocol.infer_validation import validate
from toutates.protocol.signature import Signature, TensorSpec
from toutates.service.unary import parse

SIGNATURE = Signature(
    (
        TensorSpec("a", BY_NAME["FP32"], (4,)),
        TensorSpec("b", BY_NAME["BYTES"], (-1,)),
        TensorSpec("c", BY_NAME["INT8"], (2, -1)),
    ),
    (TensorSpec("x", BY_NAME["FP32"], (4,)), TensorSpec("y", BY_NAME["FP16"], (4,))),
    batched=True,
)
INTERESTING = (0, 1, 2, 4, -1, -2, 2**31, 2**62, -(2**63), 2**63 - 1)


def request(rng: random.Random) -> bytes:
    """A request that is nearly right."""
    message = ModelInferRequest(model_name="m", id=rng.choice(["", "id", "\u00e9" * 100]))
    for spec in SIGNATURE.inputs:
        if rng.random() < 0.1:
            continue
        tensor = message.inputs.add(name=spec.name, datatype=rng.choice([spec.datatype.name] * 9 + ["INT64", "??"]))
        tensor.shape.extend(size if size >= 0 else rng.choice(INTERESTING) for size in (1, *spec.shape))
        if rng.random() < 0.1:
            tensor.contents.fp32_contents.append(1)
        else:
            message.raw_input_contents.append(rng.randbytes(rng.choice([0, 4, 8, 16, 200])))
    if rng.random() < 0.3:
        message.outputs.add(name=rng.choice("xyz")).parameters["classification"].int64_param = rng.choice(INTERESTING)
    if rng.random() < 0.2:
        message.parameters[rng.choice(["priority", "timeout", "triton_x", "z"])].int64_param = rng.choice(INTERESTING)
    return message.SerializeToString()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change, cut or repeat some bytes."""
    out = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
        at = rng.randrange(len(out)) if out else 0
        kind = rng.randrange(4)
        if kind == 0 and out:
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            out += out[at : at + 30]
        else:
            out[at:at] = rng.randbytes(rng.randint(1, 4))
    return bytes(out)


def check(data: bytes, _: int) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    around = b"\xff" + data + b"\xff" * 3  # the scan must not look beyond its bounds
    scanned = scan(around, 1, 1 + len(data))
    try:
        parsed = parse(ModelInferRequest, data)
    except GrpcError:
        return  # `scan` does not look inside the constant part; what it returns then is never found under a key
    if scanned is not None:
        key, id_field, spans = scanned
        raws = [around[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]
        assert raws == list(parsed.raw_input_contents), "raw contents differ"
        assert ModelInferRequest.FromString(id_field).id == parsed.id, "ids differ"
        rest = ModelInferRequest.FromString(key)
        parsed_rest = ModelInferRequest.FromString(data)
        parsed_rest.ClearField("raw_input_contents")
        parsed_rest.ClearField("id")
        assert rest == parsed_rest, "the constant part differs"
    try:
        validate(parsed, [len(raw) for raw in parsed.raw_input_contents], SIGNATURE, "m")
    except RequestError:
        pass


def make_case(rng: random.Random) -> bytes:
    """A mutated request."""
    return mutate(request(rng), rng)


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", make_case, check))

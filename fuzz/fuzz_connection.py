"""Fuzz the connection with mutated sessions.

Invariant: whatever bytes arrive, cut wherever, ``receive_data`` raises nothing; the same bytes give the same events
however they are cut; and once the connection is lost, no call is open.

    python fuzz/fuzz_connection.py [--seconds 60] [--seed N]

A session that breaks the invariant is printed in hex and ends the run with 1; keep it as a case in ``tests/h2grpc``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from harness import run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.h2grpc import Call, Limits, MessageReceived, Method, ServerConnection, method_table
from toutates.h2grpc.frames import PREFACE

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/fuzz.Fuzz/Unary"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def echo(call: Call) -> None:
    """Handler of the one unary method."""
    call.reply(call.message)


async def stream(_: object) -> None:
    """Never run: the fuzzer drives the connection, and there is no worker."""


METHODS = method_table([Method("/fuzz.Fuzz/Unary", unary=echo), Method("/fuzz.Fuzz/Stream", stream=stream)])


def session(rng: random.Random) -> bytes:
    """The bytes of a client that behaves: some calls, pings, windows, settings."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for _ in range(rng.randint(1, 6)):
        stream_id = client.get_next_available_stream_id()
        fields = [*HEADERS, (f"x-{rng.randint(0, 3)}", "v" * rng.randint(0, 40))]
        if rng.random() < 0.3:
            fields[2] = (":path", rng.choice(["/fuzz.Fuzz/Stream", "/nope", "/"]))
        if rng.random() < 0.2:
            fields.append(("grpc-timeout", rng.choice(["1n", "5S", "x"])))
        without_body = rng.random() < 0.1
        client.send_headers(stream_id, fields, end_stream=without_body)
        if not without_body:
            message = rng.randbytes(rng.randint(0, 200))
            data = bytes([rng.random() < 0.1]) + len(message).to_bytes(4, "big") + message
            for at in range(0, len(data), step := rng.randint(1, 210)):
                last = at + step >= len(data)
                client.send_data(stream_id, data[at : at + step], end_stream=last, pad_length=rng.choice([None, 3]))
        if rng.random() < 0.3:
            client.ping(rng.randbytes(8))
        if rng.random() < 0.3:
            client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: rng.choice([0, 10, 65_535, 2**31 - 1])})
        if rng.random() < 0.2:
            client.reset_stream(stream_id, 8)
    return client.data_to_send()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Flip, drop, repeat or swap some bytes; the preface mostly stays."""
    keep = len(PREFACE) if rng.random() < 0.95 else 0
    out = bytearray(data)
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(keep, len(out))
        length = rng.randint(1, 20)
        kind = rng.randrange(4)
        if kind == 0:
            out[at] = rng.randrange(256)
        elif kind == 1 and len(out) > keep + 40:
            del out[at : at + length]
        elif kind == 2:
            out[at:at] = out[at : at + length]
        else:
            out[at : at + length] = rng.randbytes(length)
    return bytes(out)


def drive(data: bytes, cuts: list[int]) -> list[str]:
    """Events for ``data`` cut at ``cuts``. Each call is answered at once."""
    connection = ServerConnection(METHODS, Limits(), [])
    events: list[str] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for event in connection.receive_data(data[start:end], 0):
            if isinstance(event, Call):
                events.append(f"call {event.stream_id} {event.message!r}")
                event.reply(event.message)
            elif isinstance(event, MessageReceived):
                events.append(f"message {event.call.stream_id} {event.message!r}")
                connection.message_read(event.call, len(event.message))
            else:
                events.append(type(event).__name__)
    calls = list(connection.streams.values())
    connection.connection_lost()
    assert not connection.streams, "streams are left after the connection was lost"
    assert not any(call.open for call in calls), "a call is open after the connection was lost"
    return events


def make_case(rng: random.Random) -> bytes:
    """A mutated session."""
    return mutate(session(rng), rng)


def check(data: bytes, number: int) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    rng = random.Random(number)
    cuts = sorted(rng.sample(range(len(data)), min(rng.randint(0, 8), len(data))))
    whole, cut = drive(data, []), drive(data, cuts)
    assert whole == cut, f"events differ when cut at {cuts}: {whole} and {cut}"


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", make_case, check))

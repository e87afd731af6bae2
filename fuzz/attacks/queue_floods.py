"""A queue with priorities and timeouts: requests that overtake others, that expire as they come, or are cancelled."""

from __future__ import annotations

import random
from itertools import count
from typing import Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import Code, Kind, field, frame, framed, greeting, infer_message, request_block, unary, varint

__all__ = ["QueueFlood"]

_BLOCK: Final = request_block()
_AT_ONCE: Final = 400
#: Kinds of requests, each of which says something else.
_KINDS: Final = 64


def _parameter(name: str, number: int, value: int) -> bytes:
    """A parameter that is an integer: field 2 of InferParameter has 64 bits with a sign, field 5 none."""
    return field(4, field(1, name.encode()) + field(2, varint(number << 3) + varint(value)))


class QueueFlood(Attack):
    """Requests of any priority with timeouts from a microsecond on, for batches that wait for a second."""

    name = "queue-flood"
    summary = (
        "requests of any priority of 2^64-1, with timeouts from 1 us on, 400 at a time, a fifth of which is cancelled"
    )
    limit = "a look at the queue drops 256 at most; a task beside the workers tells those that are late: UNAVAILABLE"
    stops = ()
    connections = 2

    def prepare(self) -> None:
        """See ``Attack``."""
        rng = random.Random(1)
        said = [
            _parameter("priority", 5, rng.choice((1, 2, rng.getrandbits(64))))
            + _parameter("timeout", 2, rng.choice((1, 1_000, 100_000)))
            for _ in range(_KINDS)
        ]
        self._messages = [
            framed(infer_message("queued", [1, 4 + number % 3], bytes(4 * (4 + number % 3)), "FP32", rest=rest))
            for number, rest in enumerate(said)
        ]

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        expected = 0
        for sent in count(0, _AT_ONCE):
            calls: list[bytes] = []
            for number in range(sent, sent + _AT_ONCE):
                calls.append(unary(2 * number + 1, _BLOCK, self._messages[number % _KINDS]))
                if number % 5 == 4:
                    calls.append(frame(Kind.RST_STREAM, 0, 2 * number + 1, Code.CANCEL.to_bytes(4, "big")))
            await peer.send(b"".join(calls), _AT_ONCE)
            expected += _AT_ONCE * 4 // 5
            while peer.answered < expected:
                await peer.wait_answer()

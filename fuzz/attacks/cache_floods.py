"""The response cache: inputs that are all different, waiters for one slow or failing answer, and keys dear to make."""

from __future__ import annotations

import struct
from functools import cached_property
from itertools import count
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import Code, Kind, frame, framed, greeting, infer_message, request_block, unary

__all__ = ["CacheBits", "CacheFill", "CacheHuge", "CacheWaiters"]

_BLOCK: Final = request_block()
#: Of inputs that are looked for at all; larger ones are computed each time.
_MOST_HASHED: Final = 4_194_304


class _Different(Attack):
    """Requests to a cached model, each with another input than all before.

    Attributes:
        values: FP32 of an input.
        at_once: requests that are sent together, and then waited for.
    """

    stops = ()
    connections = 2
    values: ClassVar[int]
    at_once: ClassVar[int]

    @cached_property
    def _row(self) -> bytes:
        return bytes(4 * self.values)

    def prepare(self) -> None:
        """See ``Attack``."""
        assert self._row

    def contents(self, number: int) -> bytes:
        """The input of a request, which is counted over a connection."""
        row = bytearray(self._row)
        row[:16] = struct.pack("<qq", number, id(self))
        return bytes(row)

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        for sent in count(0, self.at_once):
            calls = []
            for number in range(sent, sent + self.at_once):
                message = infer_message("cached", [1, self.values], self.contents(number), "FP32")
                calls.append(unary(2 * number + 1, _BLOCK, framed(message)))
            await peer.send(b"".join(calls), self.at_once)
            while peer.answered < sent + self.at_once:
                await peer.wait_answer()


class CacheFill(_Different):
    """Answers that nobody will ask for again."""

    name = "cache-fill"
    summary = "inputs of 16 KiB to a model with a response cache (16 MiB), each another one, 50 at a time"
    limit = "`--response-cache-byte-size`: the answers that were used longest ago go"
    values = 4_096
    at_once = 50


class CacheBits(_Different):
    """Small inputs that differ by a bit, of which the next makes room for the last."""

    name = "cache-bits"
    summary = "inputs of 256 bytes to a model with a response cache, each of which differs by a bit from the last"
    limit = "a key is a hash of all that an answer is made of; an entry counts 1 KiB beside its answer"
    values = 64
    at_once = 400

    def contents(self, number: int) -> bytes:
        """See ``_Different``; numbers of Gray's code differ by a bit."""
        return struct.pack("<q", number ^ number >> 1) + bytes(4 * self.values - 8)


class CacheHuge(_Different):
    """The dearest keys that there are."""

    name = "cache-huge"
    summary = "inputs of 4 MiB to a model with a response cache, each another one, and as large as is looked for"
    limit = "inputs above 4 MiB are not looked for; a MiB is hashed in 1.5 ms; an answer above 16 MiB would not be kept"
    values = _MOST_HASHED // 4
    at_once = 4


class CacheWaiters(Attack):
    """Identical requests while the first is computed, for long or in vain; some callers leave."""

    name = "cache-waiters"
    summary = "identical requests to a model that takes 20 ms or fails, 500 at a time, a fifth of which is cancelled"
    limit = "1,024 wait for one, further ones are computed; if the run fails, all get the error at once"
    stops = ("grpc-status 13",)
    # All of their requests may wait at once. More would be computed, 20 ms each, for longer than the attack lasts.
    connections = 2

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        cancel = struct.pack(">I", Code.CANCEL)
        answered = 0
        for sent in count(0, 500):
            # Waits 20 ms, and fails for odd numbers.
            body = framed(infer_message("cached_slow", [1], struct.pack("<q", sent // 500), "INT64"))
            calls = []
            for at in range(500):
                stream_id = 2 * (sent + at) + 1
                calls.append(unary(stream_id, _BLOCK, body))
                if at % 5 == 0:  # the first among them, which the others wait for
                    calls.append(frame(Kind.RST_STREAM, 0, stream_id, cancel))
                else:
                    answered += 1
            await peer.send(b"".join(calls), 500)
            while peer.answered < answered:
                await peer.wait_answer()

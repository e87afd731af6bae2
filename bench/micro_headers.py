"""Microseconds to read the header block of a request that was not seen before.

    python bench/micro_headers.py [--rounds 15]

Blocks as clients send them whose metadata changes with each call, encoded by the ``hpack`` package, which indexes and
Huffman-codes as grpc-go does; read in order by one ``HeaderReader`` per round. The figure is the median of the rounds'
means. A block that was seen before costs a dictionary lookup instead, and is not measured here.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hpack import Encoder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.h2grpc import Limits, Method, method_table
from toutates.h2grpc.headers import HeaderReader

PATH = "/inference.GRPCInferenceService/ModelInfer"
BLOCKS = 2_000

Field = tuple[str, str, bool]


def request(*changing: Field) -> list[Field]:
    """A request's fields: name, value, whether the client keeps it out of the dynamic table."""
    return [
        (":method", "POST", False),
        (":scheme", "http", False),
        (":path", PATH, False),
        (":authority", "inference.example.com:8001", False),
        ("content-type", "application/grpc", False),
        ("user-agent", "grpc-go/1.70.0", False),
        ("te", "trailers", False),
        ("grpc-accept-encoding", "gzip", False),
        *changing,
    ]


def traceparent(rng: random.Random, *, unindexed: bool = False) -> Field:
    """W3C Trace Context: 55 characters."""
    return "traceparent", f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01", unindexed


def timeout(rng: random.Random) -> Field:
    """What is left of a second, as grpc-go says it."""
    return "grpc-timeout", f"{rng.randint(990_000, 999_999)}u", False


def cases() -> Iterator[tuple[str, list[bytes]]]:
    """Names and consecutive blocks of one connection each."""
    rng = random.Random(1)

    def blocks(changing: list[list[Field]], *, huffman: bool) -> list[bytes]:
        encoder = Encoder()
        return [encoder.encode(request(*fields), huffman) for fields in changing]

    times = range(BLOCKS)
    yield "deadline, indexed, Huffman (grpc-go)", blocks([[timeout(rng)] for _ in times], huffman=True)
    both = [[timeout(rng), traceparent(rng)] for _ in times]
    yield "deadline and traceparent, indexed, Huffman (grpc-go)", blocks(both, huffman=True)
    yield "deadline and traceparent, indexed, plain (grpc-java)", blocks(both, huffman=False)
    alone = [[traceparent(rng, unindexed=True)] for _ in times]
    yield "traceparent, not indexed, plain (C-core)", blocks(alone, huffman=False)


def measure(blocks: list[bytes], rounds: int) -> float:
    """Microseconds per block."""

    def unary(_: object) -> None: ...

    methods = method_table([Method(PATH, unary=unary)])
    means = []
    for _ in range(rounds):
        reader = HeaderReader(methods, Limits())
        start = time.process_time_ns()
        for block in blocks:
            reader.read(block)
        means.append((time.process_time_ns() - start) / len(blocks) / 1_000)
    return statistics.median(means)


def main() -> None:
    """Measure every case, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for name, blocks in cases():
        octets = statistics.mean(map(len, blocks))
        print(f"{measure(blocks, rounds):6.2f} us  {octets:4.0f} octets  {name}")


if __name__ == "__main__":
    main()

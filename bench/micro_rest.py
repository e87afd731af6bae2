"""Microseconds to read an infer request over REST and to write its answer, without HTTP, engine and model.

    python bench/micro_rest.py [--rounds 15]

Requests of 64 FP32 values, as tritonclient writes them, one after the other with other values and ids; answers of 8
and 64 values. "read" is the way of a request whose kind is known: cut, found by its key, and read by its form. The
figure is CPU time, the least of the rounds' means: other work on the machine makes means larger, never smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.cutting import cut
from toutates.protocol.rest.request import Target, read_request
from toutates.protocol.rest.response import ResponseTemplate

TARGET = Target("mlp", "", 64 * 1024 * 1024)
REQUESTS = 500


def body(values: Any, identifier: str, *, binary: bool, nested: bool = False) -> tuple[bytes, int]:
    """A request's body, and where its JSON ends."""
    tensor: dict[str, Any] = {"name": "x", "shape": list(values.shape), "datatype": "FP32"}
    if binary:
        tensor["parameters"] = {"binary_data_size": values.nbytes}
    else:
        tensor["data"] = values.tolist() if nested else values.ravel().tolist()
    document: dict[str, Any] = {"id": identifier} if identifier else {}
    document["inputs"] = [tensor]
    if binary:
        document["parameters"] = {"binary_data_output": True}
    text = json.dumps(document, separators=(",", ":")).encode()
    return (text + values.tobytes() if binary else text), len(text)


def reader(bodies: list[tuple[bytes, int]]) -> tuple[Callable[[], None], Callable[[], None]]:
    """What reads bodies of one kind by their form, and what reads them the long way."""
    forms = {}
    for octets, json_end in bodies[:1]:
        found = cut(octets, 0, json_end)
        request = read_request(octets, 0, json_end, len(octets), TARGET, found)
        assert request.key is not None
        forms[request.key] = request.form

    def by_form() -> None:
        for octets, json_end in bodies:
            found = cut(octets, 0, json_end)
            assert found is not None
            form = forms[found[0]]
            assert form.read(found, octets, json_end, len(octets)) is not None
            form.identifier_of(found, octets)

    def the_long_way() -> None:
        for octets, json_end in bodies:
            read_request(octets, 0, json_end, len(octets), TARGET, cut(octets, 0, json_end))

    return by_form, the_long_way


def writer(contents: list[bytes], identifier: bytes, *, binary: bool) -> Callable[[], None]:
    """What writes answers."""
    tensors = [WireTensor("y", "FP32", (1, len(contents[0]) // 4))]
    template = ResponseTemplate("mlp", "1", tensors, [binary], [len(contents[0])])

    def write() -> None:
        for content in contents:
            template.write(identifier, (content,))

    return write


def cases() -> dict[str, Callable[[], None]]:
    """Names, and what handles REQUESTS requests or answers."""
    rng = np.random.default_rng(1)
    values = [rng.standard_normal((1, 64)).astype(np.float32) for _ in range(REQUESTS)]
    found: dict[str, Callable[[], None]] = {}
    for name, binary, nested, with_id in (
        ("binary", True, False, False),
        ("binary, with an id", True, False, True),
        ("JSON", False, False, False),
        ("JSON, with an id", False, False, True),
        ("JSON, nested", False, True, False),
    ):
        bodies = [
            body(value, str(10_000 + at) if with_id else "", binary=binary, nested=nested)
            for at, value in enumerate(values)
        ]
        found[f"read {name}"], found[f"read {name}, the long way"] = reader(bodies)
    for count in (8, 64):
        contents = [value.tobytes()[: 4 * count] for value in values]
        found[f"write {count} values, binary"] = writer(contents, b"", binary=True)
        found[f"write {count} values, binary, with an id"] = writer(contents, b"10001", binary=True)
        found[f"write {count} values, JSON"] = writer(contents, b"", binary=False)
    return found


def large(count: int = 150_528) -> tuple[float, float, float]:
    """Nanoseconds a float to read a large array, the longest piece of it in ms, and nanoseconds to write it."""
    values = np.random.default_rng(1).standard_normal((1, count)).astype(np.float32)
    octets, json_end = body(values, "", binary=False)
    request = read_request(octets, 0, json_end, json_end, TARGET, cut(octets, 0, json_end))
    found = cut(octets, 0, json_end)
    assert found is not None
    template = ResponseTemplate("mlp", "1", [WireTensor("y", "FP32", (1, count))], [False], [values.nbytes])
    best, longest, writing = float("inf"), float("inf"), float("inf")
    for _ in range(7):
        ticks = [time.thread_time_ns()]
        request.form.read(found, octets, json_end, json_end, partial(_tick, ticks))
        _tick(ticks)
        best = min(best, (ticks[-1] - ticks[0]) / count)
        longest = min(longest, max(np.diff(ticks)) / 1e6)
        template.write(b"", (values.tobytes(),))
        writing = min(writing, (time.thread_time_ns() - ticks[-1]) / count)
    return best, longest, writing


def _tick(ticks: list[int]) -> None:
    ticks.append(time.thread_time_ns())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    measured = cases()
    least = dict.fromkeys(measured, float("inf"))
    for _ in range(rounds):
        for name, handle in measured.items():
            start = time.thread_time_ns()
            handle()
            least[name] = min(least[name], (time.thread_time_ns() - start) / REQUESTS / 1_000)
    for name, microseconds in least.items():
        print(f"{name:45s} {microseconds:7.2f} us")
    reading, longest, writing = large()
    print(
        f"150,528 values: read {reading:.0f} ns each, {longest:.1f} ms at most at a time; written {writing:.0f} ns each"
    )


if __name__ == "__main__":
    main()

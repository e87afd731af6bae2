"""Loads by the client of ``toutates bench``, in the benchmark's own process, whose CPU is not counted.

Being Python it sends fewer requests per second than h2load where a server is very fast, so that its figures compare
with each other and not with those of the other loads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.client import Outcome, percentile
from bench.errors import NoFigure
from toutates.bench.answer import ClientSide
from toutates.bench.client_connection import ClientConnection
from toutates.bench.driver import Driver, Unreachable
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.outcome import status_name
from toutates.bench.source import Source

__all__ = ["closed_loop"]

_LONGEST_SECONDS: Final = 300.0
_SILENCE_SECONDS: Final = 30.0
#: The prefix of gRPC's messages.
_PREFIX: Final = 5


def closed_loop(
    endpoint: Endpoint,
    connections: int,
    under_way: int,
    source: Source,
    count: int,
    check: Callable[[int, bytes], None] = lambda choice, message: None,
    make: Callable[[], ClientSide] = ClientConnection,
) -> Outcome:
    """Send requests, one for each answer, and wait for all answers. Each one's status is looked at.

    Args:
        endpoint: the server.
        connections: over which requests are sent.
        under_way: requests without an answer at a time.
        source: of the requests, which are so many.
        count: of the requests.
        check: of some answers, which contents were sent, and the message.
        make: a connection.

    Raises:
        NoFigure: not every request was answered, or a check raised it.
    """
    requests: Sequence[Any] = ()
    try:
        driver = Driver(endpoint, connections, requests, make)
    except Unreachable as error:
        raise NoFigure(f"a connection was not accepted: {error}") from error
    with contextlib.closing(driver):
        record = driver.run_closed(source, under_way, _LONGEST_SECONDS, _SILENCE_SECONDS)
    failed = {status_name(status) for status in record.statuses.tolist() if status}
    if failed or len(record.statuses) != count:
        raise NoFigure(f"of {count} requests some ended with {sorted(failed)}: {driver.texts}")
    for choice, message in driver.samples:
        check(choice, message[_PREFIX:] if endpoint.protocol == GRPC else message)
    times = sorted(((record.answered_ns - record.sent_ns) // 1_000).tolist())
    return Outcome(count, count / record.seconds, percentile(times, 0.5), percentile(times, 0.99))

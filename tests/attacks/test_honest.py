"""What honest clients say they saw."""

from __future__ import annotations

import threading
import time

import pytest

from fuzz.attacks.honest import Crowd, RawClient
from tests.e2e.process import ServerProcess


@pytest.mark.long
def test_a_request_that_is_still_under_way_counts_in_full(
    target: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, released = threading.Event(), threading.Event()
    call = RawClient.call

    def call_slowly(client: RawClient, number: int) -> None:
        if number == 5:
            slow.set()
            assert released.wait(120)
        call(client, number)

    monkeypatch.setattr(RawClient, "call", call_slowly)
    started = time.monotonic()
    with Crowd(target.port, with_triton=False) as crowd:
        assert slow.wait(120)
        ended = time.monotonic()
        timer = threading.Timer(0.2, released.set)
        timer.start()
        phase = crowd.phase(started, ended)
        timer.join()
    assert phase.worst_ms >= 200

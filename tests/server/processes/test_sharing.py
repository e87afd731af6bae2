"""What each of several processes gets of the server's settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from toutates.server.options import Options
from toutates.server.processes.sharing import count_of, shared_options
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError
from toutates.system.memory import available_memory
from toutates.system.topology import allowed_cpus

GRPC = Address("127.0.0.1", 1)


def parts_of(**given: Any) -> list[Options]:
    return shared_options(Options((Path("models"),), **given), GRPC, None)


def test_what_bounds_the_server_is_divided_and_the_rest_is_not() -> None:
    parts = parts_of(
        processes=3,
        processing_cores=4,
        max_inflight_requests=10,
        max_concurrent_connections=8,
        max_buffered_bytes=300,
        warnings=("said once",),
        server_id="me",
    )
    assert [one.processing_cores for one in parts] == [2, 1, 1]
    assert [one.max_inflight_requests for one in parts] == [4, 3, 3]
    assert [one.max_concurrent_connections for one in parts] == [3, 3, 2]
    assert [one.max_buffered_bytes for one in parts] == [100, 100, 100]
    assert [one.warnings for one in parts] == [("said once",), (), ()]
    changed = {
        *("processes", "processing_cores", "max_inflight_requests", "max_concurrent_connections"),
        *("max_buffered_bytes", "warnings", "server_id", "model_repositories"),
        *("shared_ports", "grpc_addr", "http_addr", "metrics_addr"),
    }
    default = Options((Path("models"),))
    for one in parts:
        assert (one.server_id, one.reuse_port, one.grpc_addr, one.http_addr) == ("me", True, GRPC, None)
        for field in fields(Options):
            assert field.name in changed or getattr(one, field.name) == getattr(default, field.name)


def test_auto_is_one_per_cpu_and_memory_is_divided_where_nothing_is_said() -> None:
    assert count_of(Options((), processes=0)) == len(allowed_cpus())
    assert count_of(Options((), processes=0, cpu_pinning=tuple(range(7)))) == 2
    assert [one.max_buffered_bytes for one in parts_of(processes=2)] == [available_memory() // 4] * 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"processing_cores": 2}, "--processing-cores: is divided among 3 processes, each of which needs one at least"),
        ({"max_inflight_requests": 2}, "--max-inflight-requests: is divided among 3 processes"),
        ({"max_inflight_requests": 4, "processing_cores": 6}, "--max-inflight-requests: is split over 2 workers"),
        ({"cpu_pinning": (0,)}, "--cpu-pinning: has fewer CPUs than there are processes"),
    ],
)
def test_what_is_too_little_to_be_divided_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parts_of(processes=3, **given)
    assert str(caught.value).startswith(text)

"""Aliases, traffic and shadows that lead to models which are loaded when a request needs them."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.control import answer, client_of, fails, index
from tests.e2e.models import add_model, gather_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import triton
from tests.e2e.test_control import put
from tests.e2e.test_traffic import ask, metrics, shadow, tensors
from tests.waiting import wait_until

httpclient = pytest.importorskip("tritonclient.http")

RULES: Final = """
aliases:
  live: fraud
  chain: live
  by-rest: rest
  asked: described
  old: {model: versions, version: 1}
  lame: broken
traffic:
  canary:
    split: [{model: main, weight: 3}, {model: fresh, weight: 1}]
    sticky: id
  half:
    split: [{model: broken, weight: 3}, {model: whole, weight: 1}]
    sticky: id
  differ:
    split: [{model: main, weight: 1}, {model: other, weight: 1}]
    sticky: id
  watched:
    split: [{model: watched-main, weight: 1}]
    shadow: {model: watched-copy, share: 1.0}
  lost:
    split: [{model: watched-main, weight: 1}]
    shadow: {model: broken, share: 1.0}
"""
ADDS: Final = {"fraud": 5, "rest": 6, "described": 7, "main": 1, "fresh": 2, "whole": 3}
FLAGS: Final = (
    *("--model-control-mode", "on-demand", "--model-memory", "1M", "--model-min-stay", "0"),
    *("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name, adds in ADDS.items():
        put(root, name, adds=adds)
    for name in ("watched-main", "watched-copy"):
        put(root, name, adds=9)
    for number in range(12):
        put(root, f"m{number}", adds=number)
    put(root, "versions", 1)
    put(root, "versions", 2)
    add_model(root, "other", gather_model(), 1)
    (put(root, "broken") / "model.onnx").write_bytes(b"no graph")
    (root / "traffic.yaml").write_text(RULES)
    with running(root, tmp_path_factory.mktemp("log"), FLAGS) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as one:
        yield one


def loaded(client: Any) -> set[str]:
    return {name for name, _, state, _ in index(client) if state == "READY"}


def push_out(client: Any) -> None:
    """Use so many others that those used before leave memory."""
    for number in range(12):
        assert answer(client, f"m{number}") == number


def test_an_alias_of_a_model_that_is_not_loaded_loads_it(client: Any) -> None:
    assert client.is_model_ready("live")
    assert "fraud" not in loaded(client), "asking loads nothing"
    assert ask(client, "live") == ask(client, "chain") == 5
    push_out(client)
    wait_until(lambda: "fraud" not in loaded(client))
    assert ask(client, "chain") == ask(client, "live") == 5, "what was remembered of the old one is forgotten"
    assert ask(client, "old") == 1


def test_an_alias_over_rest_and_metadata_load_too(server: ServerProcess, client: Any) -> None:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as rest:
        assert ask(rest, "by-rest", httpclient) == 6
    assert client.get_model_metadata("asked").name == "described"


def test_an_alias_of_a_model_that_cannot_be_loaded_says_why(client: Any) -> None:
    status, text = fails(lambda: answer(client, "lame"))
    assert status == "UNAVAILABLE"
    assert "model 'broken' cannot be loaded" in text


def test_a_split_loads_each_version_when_it_gets_a_request(client: Any) -> None:
    for _ in range(2):
        found = {str(number): ask(client, "canary", request_id=str(number)) for number in range(80)}
        assert 5 < Counter(found.values())[2] < 40
        push_out(client)
        wait_until(lambda: not {"main", "fresh"} & loaded(client))
    assert found == {name: ask(client, "canary", request_id=name) for name in found}, "ids keep their version"


def test_a_version_that_cannot_be_loaded_fails_only_its_own_requests(client: Any) -> None:
    def outcome(number: int) -> str:
        try:
            return str(ask(client, "half", request_id=str(number)))
        except InferenceServerException as error:
            return "failed" if "model 'broken' cannot be loaded" in str(error) else str(error)

    found = Counter(outcome(number) for number in range(80))
    assert found["3"] > 5, "though nothing else of the name was loaded, and most requests are for the other one"
    assert found["failed"] > 5
    assert found.keys() == {"3", "failed"}


def test_versions_that_take_other_requests_are_found_out_when_they_are_loaded(
    server: ServerProcess, client: Any
) -> None:
    def outcome(number: int) -> str:
        try:
            return str(ask(client, "differ", request_id=str(number)))
        except InferenceServerException as error:
            return str(error)

    found = Counter(outcome(number) for number in range(40))
    assert found.pop("1") > 5
    assert found, "some of them got the other one"
    assert all("INVALID_ARGUMENT" in text for text in found), found
    wait_until(lambda: "traffic.differ: " in server.log and "do not take the same requests" in server.log)


def test_many_at_once_for_an_alias_keep_their_order(server: ServerProcess, client: Any) -> None:
    push_out(client)
    wait_until(lambda: "fraud" not in loaded(client))
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(40):
        client.async_stream_infer(("live", "fraud")[number % 2], tensors(triton), request_id=str(number))
    got = [answers.get(timeout=120) for _ in range(40)]
    client.stop_stream()
    assert [error for _, error in got] == [None] * 40
    assert [int(result.get_response().id) for result, _ in got] == list(range(40))
    assert {int(result.as_numpy("OUTPUT")[0, 0]) for result, _ in got} == {5}


def test_a_shadow_that_is_not_loaded_is_loaded_and_compared(server: ServerProcess, client: Any) -> None:
    for expected in (5.0, 10.0):
        for _ in range(5):
            assert ask(client, "watched") == 9
        wait_until(partial(lambda number: shadow(server, "watched", "equal") == number, expected))
        push_out(client)
        wait_until(lambda: "watched-copy" not in loaded(client))
    assert shadow(server, "watched", "failed") == 0


def test_a_shadow_that_cannot_be_loaded_is_counted_as_failed(server: ServerProcess, client: Any) -> None:
    for _ in range(5):
        assert ask(client, "lost") == 9
    wait_until(lambda: shadow(server, "lost", "failed") == 5)
    assert metrics(server)["toutates_on_demand_load_failures_total"] < 5, "it is not tried for each of them"

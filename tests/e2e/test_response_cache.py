"""The response cache of a real server: what is found, counted, refused and forgotten, over gRPC, REST and a stream."""

from __future__ import annotations

import queue
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from onnx import TensorProto

from tests.e2e.control import client_of
from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.e2e.support import triton
from tests.ensembles import add_ensemble, add_graph, pbtxt, step
from tests.graphs import DOUBLE, unary
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

CACHED: Final = "response_cache { enable: true }"
SIZE: Final = 1 << 17
#: A model that sleeps for as many seconds as its input says, and answers with how often it was called.
COUNTING: Final = """
calls = 0

def execute(self, requests):
    answers = []
    for request in requests:
        self.calls += 1
        time.sleep(float(input_of(request).flat[0]))
        answers.append(answer(request, np.full((1, 4), self.calls, np.float32)))
    return answers
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    add_graph(root, "double", DOUBLE, config=CACHED)
    add_graph(root, "plain", DOUBLE)
    add_graph(root, "text", unary("Identity", ["n", 2], TensorProto.STRING), config=CACHED)
    chain = [step("double", "x=IN", "y=t"), step("plain", "x=t", "y=OUT")]
    add_ensemble(root, "chain", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], chain, more=CACHED))
    add_ensemble(root, "loose", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], chain))
    add_model(root, "counting", COUNTING, more=f"dynamic_batching {{}} {CACHED}")
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arguments = ["--model-control-mode", "explicit", "--load-model", "*", "--http-addr", "127.0.0.1:0"]
    arguments += ["--cache-config", f"local,size={SIZE}", "--metrics-addr", "127.0.0.1:0"]
    with running(repository, tmp_path_factory.mktemp("server"), arguments) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


def tensor(kind: Any, value: float, name: str = "x", rows: int = 1) -> Any:
    made = kind.InferInput(name, [rows, 4], "FP32")
    made.set_data_from_numpy(np.full((rows, 4), value, np.float32))
    return made


def ask(client: Any, model: str, value: float, *, kind: Any = triton, rows: int = 1, **more: Any) -> Any:
    name, output = ("IN", "OUT") if model in ("chain", "loose") else ("x", "y")
    return client.infer(model, [tensor(kind, value, name, rows)], **more).as_numpy(output)


def counts(client: Any, model: str) -> tuple[int, int, int, int, int]:
    """Answered, computed, hits, misses, and rows computed."""
    found = client.get_inference_statistics(model).model_stats[0]
    stats = found.inference_stats
    return (
        stats.success.count,
        stats.compute_infer.count,
        stats.cache_hit.count,
        stats.cache_miss.count,
        found.inference_count,
    )


def has_grown(client: Any, model: str, before: tuple[int, ...], by: tuple[int, ...]) -> None:
    """Wait until the first counters have grown by these numbers: a request is counted just after its answer."""

    def grown() -> bool:
        return tuple(now - then for now, then in zip(counts(client, model), before, strict=True))[: len(by)] == by

    wait_until(grown)


def metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name.startswith("nv")}


def test_the_same_request_is_computed_once_over_grpc_rest_and_a_stream(server: ServerProcess, client: Any) -> None:
    before = counts(client, "double")
    assert ask(client, "double", 1.5).tolist() == [[3] * 4]
    assert ask(client, "double", 1.5, request_id="another").tolist() == [[3] * 4]
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as rest:
        assert ask(rest, "double", 1.5, kind=http).tolist() == [[3] * 4]
        json = http.InferInput("x", [1, 4], "FP32")
        json.set_data_from_numpy(np.full((1, 4), 1.5, np.float32), binary_data=False)
        asked = [http.InferRequestedOutput("y", binary_data=False)]
        assert rest.infer("double", [json], outputs=asked).as_numpy("y").tolist() == [[3] * 4]
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(3):
        client.async_stream_infer("double", [tensor(triton, 1.5)], request_id=f"{number}")
    for number in range(3):
        result, error = answers.get(timeout=120)
        assert error is None
        assert (result.get_response().id, result.as_numpy("y").tolist()) == (f"{number}", [[3] * 4])
    client.stop_stream()
    has_grown(client, "double", before, (7, 1, 6, 1, 1))


def test_a_batch_is_an_entry_of_its_own_and_what_differs_is_computed(client: Any) -> None:
    before = counts(client, "double")
    assert ask(client, "double", 20, rows=2).tolist() == [[40] * 4] * 2
    assert ask(client, "double", 20, rows=2).tolist() == [[40] * 4] * 2
    assert ask(client, "double", 20).tolist() == [[40] * 4]
    assert ask(client, "double", 21).tolist() == [[42] * 4]
    has_grown(client, "double", before, (4, 3, 1, 3, 4))


def test_a_request_may_opt_out(client: Any) -> None:
    before = counts(client, "double")
    for _ in range(2):
        assert ask(client, "double", 30, parameters={"response_cache": False}).tolist() == [[60] * 4]
    has_grown(client, "double", before, (2, 2, 0, 0, 2))


def looked_up(client: Any, model: str) -> tuple[int, int]:
    stats = client.get_inference_statistics(model).model_stats[0].inference_stats
    return stats.cache_hit.count, stats.cache_miss.count


def test_a_model_that_does_not_ask_for_it_is_computed_each_time(client: Any) -> None:
    before = counts(client, "plain")
    for _ in range(3):
        ask(client, "plain", 1)
    has_grown(client, "plain", before, (3, 3, 0, 0, 3))


def test_texts_are_found_too(client: Any) -> None:
    before = counts(client, "text")
    given = np.array([[b"one", b""], [b"\xff\xfe", "zwölf".encode()]], object)
    for _ in range(2):
        text = triton.InferInput("x", [2, 2], "BYTES")
        text.set_data_from_numpy(given)
        assert client.infer("text", [text]).as_numpy("y").tolist() == given.tolist()
    has_grown(client, "text", before, (2, 1, 1, 1))


def test_identical_requests_at_the_same_time_are_computed_once(client: Any) -> None:
    before = counts(client, "counting")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(client, "counting", 0.2).tolist(), range(8)))
    assert answers == [answers[0]] * 8
    has_grown(client, "counting", before, (8, 1, 7, 1))


def test_what_a_model_may_read_belongs_to_the_key(client: Any) -> None:
    before = counts(client, "counting")
    for mode in ("a", "b", "a"):
        ask(client, "counting", 0, parameters={"mode": mode})
    has_grown(client, "counting", before, (3, 2, 1, 2))


def test_an_ensemble_is_found_whole_and_its_members_by_themselves(client: Any) -> None:
    before = {model: counts(client, model) for model in ("loose", "chain", "double", "plain")}
    for _ in range(2):
        assert ask(client, "chain", 7).tolist() == [[28] * 4]
    for model, by in (("chain", (2, 1, 1, 1)), ("double", (1, 1, 0, 1)), ("plain", (1, 1, 0, 0))):
        has_grown(client, model, before[model], by)
    assert ask(client, "loose", 7).tolist() == [[28] * 4]
    has_grown(client, "loose", before["loose"], (1, 1, 0, 0))
    has_grown(client, "double", before["double"], (2, 1, 1, 1))
    has_grown(client, "plain", before["plain"], (2, 2, 0, 0))


def test_a_model_that_is_loaded_again_begins_anew(client: Any) -> None:
    first = ask(client, "counting", 0)
    assert ask(client, "counting", 0).tolist() == first.tolist()
    client.unload_model("counting")
    client.load_model("counting")
    assert ask(client, "counting", 0).tolist() == [[1] * 4]


def test_its_metrics(server: ServerProcess, client: Any) -> None:
    for _ in range(2):
        ask(client, "double", -1)
    labels = '{model="double",version="1"}'
    names = [f"nv_cache_num_{what}_per_model{labels}" for what in ("hits", "misses")]
    # A request is counted just after its answer, and a page of metrics holds for a while.
    wait_until(
        lambda: (seen := looked_up(client, "double")) == tuple(map(metrics(server).get, names)) and min(seen) > 0
    )
    found = metrics(server)
    assert not any(name.startswith("nv_cache") and 'model="plain"' in name for name in found)
    assert 0 < found["nv_cache_util"] < 1
    assert found["nv_cache_num_lookups"] == found["nv_cache_num_hits"] + found["nv_cache_num_misses"]
    assert found["nv_cache_num_entries"] > 0
    assert found["nv_cache_num_evictions"] == 0
    assert {"nv_cache_lookup_duration", "nv_cache_insertion_duration"} <= found.keys()


def test_a_client_that_never_repeats_fills_no_more_than_the_cache(server: ServerProcess, client: Any) -> None:
    for value in range(300):
        ask(client, "double", 1_000 + value, rows=64 if value % 2 else 1)
    # A page of metrics holds for a while.
    wait_until(lambda: metrics(server)["nv_cache_num_evictions"] > 0)
    assert 0.9 < metrics(server)["nv_cache_util"] <= 1

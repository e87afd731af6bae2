"""Half an emoji by every way in which a text leaves: REST, TorchServe, spans, metrics, text APIs, several processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import models
from tests.e2e.http import Peer, get, peer_of, post
from tests.e2e.process import FRESH, ServerProcess, running
from tests.infer.tracing.collector import Collector, collecting
from tests.text_models import make_folder
from tests.waiting import wait_until

pytestmark = pytest.mark.long

HALF = chr(0xD83D)
SHOWN = r"\ud83d"
MODEL = """
import triton_python_backend_utils as pb_utils

HALF = chr(0xD83D)

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("asked", "How often, " + HALF, pb_utils.MetricFamily.COUNTER)
        self.count = self.family.Metric(labels={"who": HALF})

    def execute(self, requests):
        self.count.increment(1)
        raise ValueError("it says " + HALF)
"""
CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "body" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "result" data_type: TYPE_STRING dims: [ 1 ] }
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    models.add_model(root, "good", models.negating_model(1))
    (root / "says" / "1").mkdir(parents=True)
    (root / "says" / "1" / "model.py").write_text(MODEL)
    (root / "says" / "config.pbtxt").write_text(CONFIG)
    pooling = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
    make_folder(root / "vectors", modules=[pooling])
    return root


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(scope="module", params=["one process", "two processes", "a terminal of ASCII"])
def server(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    pages = ("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--torchserve-api")
    traces = ("--trace-endpoint", collector.url, "--trace-rate", "1", "--trace-level", "TIMESTAMPS")
    processes = ("--processes", "2") if request.param == "two processes" else ()
    start = FRESH if request.param == "a terminal of ASCII" else ()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ASCII.items() if start else ():
            patch.setenv(name, value)
        with running(repository, tmp_path_factory.mktemp("log"), (*pages, *traces, *processes), start) as process:
            yield process
            assert process.stop() == 0
            assert "UnicodeEncodeError" not in process.log


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Peer]:
    with peer_of(server.rest_port) as one:
        yield one


def infer(peer: Peer) -> str:
    tensor = {"name": "body", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    answer = peer.ask(post("/v2/models/says/infer", json.dumps({"inputs": [tensor]})))
    assert answer.status == 500
    said: str = answer.document["error"]
    return said


def test_an_exception_is_answered_by_rest_and_torchserve(peer: Peer) -> None:
    assert f"it says {SHOWN}" in infer(peer)
    answer = peer.ask(post("/predictions/says", "x"))
    assert answer.status >= 500
    assert answer.document["message"]


def test_a_span_has_the_error(peer: Peer, collector: Collector) -> None:
    before = len(collector.spans())
    infer(peer)
    wait_until(lambda: any(SHOWN in span.status.message for span in collector.spans()[before:]))


def test_labels_of_metrics_are_written(server: ServerProcess, peer: Peer) -> None:
    infer(peer)
    with peer_of(server.http_port) as pages:

        def page() -> str:
            answer = pages.ask(get("/metrics"))
            assert answer.status == 200
            return answer.body.decode()

        # The page escapes the backslash, as its format says.
        wait_until(lambda: r'who="\\ud83d"' in page())


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        ("/v1/embeddings", {"model": "vectors", "input": ["a", "b" + HALF]}, "input[1]"),
        ("/v1/rerank", {"model": "vectors", "query": "ab" + HALF, "documents": ["a"]}, "query"),
        ("/embed", {"inputs": ["a", HALF]}, "inputs[1]"),
    ],
)
def test_a_text_for_an_embedding_is_named_with_its_place(
    peer: Peer, path: str, body: dict[str, object], at: str
) -> None:
    answer = peer.ask(post(path, json.dumps(body), "content-type: application/json"))
    assert 400 <= answer.status < 500
    said = answer.body.decode()
    assert f"`{at}` is no valid Unicode" in said
    assert "U+D83D" in said
    assert peer.ask(get("/v2/health/live")).status == 200

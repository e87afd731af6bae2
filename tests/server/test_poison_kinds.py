"""Memory that a run has not written is found whatever kind of request it was of: backends write all rows but one."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.e2e.poisoned import VARIABLE
from tests.e2e.process import run as run_command
from tests.e2e.process import running
from tests.e2e.python_models import add_model
from tests.e2e.sequence_models import write_accumulator
from tests.e2e.test_padding import CONFIG, SEGMENTS_PBTXT
from tests.e2e.test_python_model_calls import CALL
from tests.ensembles import add_graph
from tests.graphs import DOUBLE, SEGMENTS, TEXTS
from tests.server.inside import Inside, serve
from tests.server.test_poison import NEG_AND_INPUT
from tests.text_models import encoder_graph, make_folder, save_weights, table
from toutates.backends.onnx.session import ModelSession
from toutates.backends.text.encoder import Graph, Table
from toutates.engine.cache.port import CachingPort
from toutates.engine.lane import PackedLane
from toutates.system.address import Address
from toutates.system.poison import Poison, current

pytestmark = pytest.mark.long

grpc_client = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils")

CAUGHT = "output '%s' of model '%s' has memory that nobody wrote"
CACHED = "response_cache { enable: true }"
#: A model that calls another one.
CALLING = (
    CALL
    + """
def execute(self, requests):
    return [answer(r, self.value(self.call("double", input_of(r)).exec())) for r in requests]
"""
)
STATIC = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
CLASSIFIER = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
#: Routes of texts, what is asked, the model that computes it, and the status of a failed run.
ROUTES = [
    ("/v1/embeddings", {"model": "table", "input": ["one two", "three"]}, "table", 500),
    ("/v1/embeddings", {"model": "minilm", "input": ["one two", "three"]}, "minilm", 500),
    ("/embed", {"model": "table", "inputs": ["one two", "three"]}, "table", 424),
    ("/embed", {"model": "minilm", "inputs": ["one two", "three"]}, "minilm", 424),
    ("/rerank", {"model": "judge", "query": "one", "texts": ["two", "three"]}, "judge", 424),
    ("/v1/rerank", {"model": "judge", "query": "one", "documents": ["two", "three"]}, "judge", 500),
]


def poison_of_test() -> Poison:
    poison = current()
    assert poison is not None
    return poison


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], threading.Event]:
    """Have runs of an ONNX model leave the last row of an output as it was, as long as the event is set."""

    def leave(model: str, output: str) -> threading.Event:
        run, run_raw = ModelSession.run, ModelSession.run_raw
        leaves = threading.Event()
        leaves.set()

        def place(session: ModelSession) -> int | None:
            names = [tensor.name for tensor in session.signature.outputs]
            return names.index(output) if session.model == model and leaves.is_set() else None

        def careless(session: ModelSession, batch: Any, first: int, rows: int) -> Any:
            at = place(session)
            if at is None or not isinstance(batch.lane, PackedLane):
                return run(session, batch, first, rows)
            before = batch.lane.outputs(batch, first, rows)[at].tobytes()
            outputs = run(session, batch, first, rows)
            data = list(outputs.data)
            content = data[at]
            assert isinstance(content, bytes)
            written = len(content) // rows * (rows - 1)
            data[at] = content[:written] + before[written:]
            return dataclasses.replace(outputs, data=tuple(data))

        def careless_raw(session: ModelSession, batch: Any, first: int, rows: int) -> Any:
            """A run that makes its own arrays, which are none of the server's."""
            arrays = run_raw(session, batch, first, rows)
            at = place(session)
            if at is not None:
                written = arrays[at]
                assert isinstance(written, np.ndarray)
                own = np.empty_like(written, order="C")
                poison_of_test().fill(own)
                own[:-1] = written[:-1]
                arrays[at] = own
            return arrays

        monkeypatch.setattr(ModelSession, "run", careless)
        monkeypatch.setattr(ModelSession, "run_raw", careless_raw)
        return leaves

    return leave


@pytest.fixture(autouse=True)
def _pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is on while a test looks at the pattern, too."""
    monkeypatch.setenv(VARIABLE, os.environ.get(VARIABLE, "1"))
    if current() is None:
        pytest.skip(f"{VARIABLE} is 0")


def ask(inside: Inside, model: str, **more: Any) -> Any:
    """Ask for two rows over gRPC; an array by name."""
    inputs = more.pop("inputs", {"x": np.arange(8, dtype=np.float32).reshape(2, 4)})
    given = []
    for name, array in inputs.items():
        given.append(grpc_client.InferInput(name, list(array.shape), utils.np_to_triton_dtype(array.dtype)))
        given[-1].set_data_from_numpy(array)
    with grpc_client.InferenceServerClient(f"127.0.0.1:{inside.port}") as client:
        return client.infer(model, given, client_timeout=120, **more)


def refused(inside: Inside, model: str, output: str, of: str, **more: Any) -> None:
    with pytest.raises(utils.InferenceServerException) as raised:
        ask(inside, model, **more)
    assert CAUGHT % (output, of) in str(raised.value)


# --- the engine -------------------------------------------------------------------------------------------------------


def test_the_state_of_a_sequence_that_a_run_has_not_written_goes_to_no_request(
    tmp_path: Path, leaving: Callable[[str, str], threading.Event]
) -> None:
    write_accumulator(tmp_path, "sums")
    leaves = leaving("sums", "SUM_OUT")

    def one(inside: Inside, value: int, **more: Any) -> Any:
        inputs = {"INPUT": np.full((1, 1), value, np.int32)}
        return ask(inside, "sums", inputs=inputs, sequence_id=7, **more).as_numpy("OUTPUT")[0, 0]

    def visit(inside: Inside) -> None:
        inputs = {"INPUT": np.full((1, 1), 3, np.int32)}
        refused(inside, "sums", "SUM_OUT", "sums", inputs=inputs, sequence_id=7, sequence_start=True)
        leaves.clear()
        assert one(inside, 3, sequence_start=True) == 3
        assert one(inside, 4) == 7
        assert one(inside, 5, sequence_end=True) == 12
        assert one(inside, 6, sequence_start=True) == 6  # and of the states of the one before nothing is left

    assert serve(tmp_path, visit, finds=True) == 0


def test_an_answer_that_was_refused_is_not_in_the_cache(
    tmp_path: Path, leaving: Callable[[str, str], threading.Event]
) -> None:
    add_graph(tmp_path, "double", DOUBLE, config=CACHED)
    leaves = leaving("double", "y")

    def visit(inside: Inside) -> None:
        for _ in range(2):
            refused(inside, "double", "y", "double")
        leaves.clear()
        for _ in range(2):
            np.testing.assert_array_equal(ask(inside, "double").as_numpy("y"), [[0, 2, 4, 6], [8, 10, 12, 14]])

    assert serve(tmp_path, visit, finds=True, response_cache_bytes=1 << 20) == 0


def test_an_answer_that_was_kept_is_searched_when_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_graph(tmp_path, "double", DOUBLE, config=CACHED)
    keep = CachingPort._keep

    def keep_wrongly(port: CachingPort, key: bytes, parts: Any) -> Any:
        insert = port._cache.insert

        def insert_another(key: bytes, outputs: Any, *more: Any) -> Any:
            array = np.empty(len(outputs.data[0]), np.uint8)
            poison_of_test().fill(array)
            return insert(key, dataclasses.replace(outputs, data=(array.tobytes(),)), *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(port._cache, "insert", insert_another)
            return keep(port, key, parts)

    monkeypatch.setattr(CachingPort, "_keep", keep_wrongly)

    def visit(inside: Inside) -> None:
        np.testing.assert_array_equal(ask(inside, "double").as_numpy("y"), [[0, 2, 4, 6], [8, 10, 12, 14]])
        refused(inside, "double", "y", "double")

    assert serve(tmp_path, visit, finds=True, response_cache_bytes=1 << 20) == 0


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_call_of_a_python_model_gets_the_error(
    tmp_path: Path, isolation: str, leaving: Callable[[str, str], threading.Event]
) -> None:
    add_graph(tmp_path, "double", DOUBLE)
    add_model(tmp_path, "calling", CALLING, isolation=isolation)
    leaves = leaving("double", "y")

    def visit(inside: Inside) -> None:
        refused(inside, "calling", "y", "double")
        leaves.clear()
        np.testing.assert_array_equal(ask(inside, "calling").as_numpy("y"), [[0, 2, 4, 6], [8, 10, 12, 14]])

    assert serve(tmp_path, visit, finds=True) == 0


def test_padded_rows_are_searched(tmp_path: Path, leaving: Callable[[str, str], threading.Event]) -> None:
    add_graph(tmp_path, "texts", TEXTS)
    (tmp_path / "texts" / "1" / "config.yaml").write_text(CONFIG)
    leaving("texts", "each")

    def visit(inside: Inside) -> None:
        refused(inside, "texts", "each", "texts", inputs={"ids": np.arange(1, 12, dtype=np.int64).reshape(1, 11)})

    assert serve(tmp_path, visit, finds=True) == 0


def test_ragged_rows_are_searched(tmp_path: Path, leaving: Callable[[str, str], threading.Event]) -> None:
    add_graph(tmp_path, "segments", SEGMENTS, config=SEGMENTS_PBTXT)
    leaving("segments", "sum")
    inputs = {"values": np.arange(5, dtype=np.int64).reshape(1, 5), "weight": np.full((1, 1), 2, np.int64)}

    def visit(inside: Inside) -> None:
        refused(inside, "segments", "sum", "segments", inputs=inputs)

    assert serve(tmp_path, visit, finds=True) == 0


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, threading.Event]:
    """Text models whose encoders leave the last text of a run unwritten, as long as the event is set."""
    make_folder(
        tmp_path / "table",
        graph=b"",
        files={"modules.json": [{"idx": 0, "path": "", "type": STATIC}]},
    )
    save_weights(tmp_path / "table", embedding_weight=table())
    (tmp_path / "table" / "config.json").unlink()
    document = json.loads((tmp_path / "table" / "tokenizer.json").read_text())
    (tmp_path / "table" / "tokenizer.json").write_text(json.dumps({**document, "truncation": None}))
    make_folder(
        tmp_path / "minilm",
        modules=[("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})],
    )
    make_folder(tmp_path / "judge", graph=encoder_graph("logits", columns=1), modules=None, config=CLASSIFIER)
    sums, run = Table.sums, Graph.run
    leaves = threading.Event()

    def careless_sums(encoder: Any, given: Any) -> Any:
        found = sums(encoder, given)
        if leaves.is_set():
            found[-1] = encoder._allocate(found.shape, np.float32)[-1]
        return found

    def careless_run(encoder: Any, rows: Any, length: int) -> Any:
        features = run(encoder, rows, length)
        if leaves.is_set():
            for values in (features.tokens, features.vectors):
                if values is not None:
                    own = np.empty_like(values, order="C")
                    poison_of_test().fill(own)
                    values[-1] = own[-1]
        return features

    monkeypatch.setattr(Table, "sums", careless_sums)
    monkeypatch.setattr(Graph, "run", careless_run)
    return tmp_path, leaves


@pytest.mark.parametrize(("path", "document", "model", "status"), ROUTES)
def test_vectors_of_texts_are_searched(
    texts: tuple[Path, threading.Event], path: str, document: Any, model: str, status: int
) -> None:
    repository, leaves = texts

    def post(inside: Inside) -> requests.Response:
        assert inside.server.rest_address is not None
        url = f"http://127.0.0.1:{inside.server.rest_address[1]}{path}"
        return requests.post(url, json=document, timeout=120)

    def visit(inside: Inside) -> None:
        sound = post(inside)
        assert sound.status_code == 200, sound.text
        leaves.set()
        found = post(inside)
        assert found.status_code == status, found.text
        assert f"of model '{model}' has memory that nobody wrote" in json.dumps(found.json())
        leaves.clear()
        assert post(inside).status_code == 200

    assert serve(repository, visit, finds=True, http_addr=Address("127.0.0.1", 0)) == 0


@pytest.mark.parametrize("model", ["table", "minilm"])
def test_vectors_of_bytes_are_searched(texts: tuple[Path, threading.Event], model: str) -> None:
    repository, leaves = texts
    inputs = {"text": np.array([["one two"], ["three"]], np.object_)}

    def visit(inside: Inside) -> None:
        before = ask(inside, model, inputs=inputs).as_numpy("embedding")
        leaves.set()
        refused(inside, model, "features", model, inputs=inputs)
        leaves.clear()
        np.testing.assert_array_equal(ask(inside, model, inputs=inputs).as_numpy("embedding"), before)

    assert serve(repository, visit, finds=True) == 0


# --- the start --------------------------------------------------------------------------------------------------------


def test_the_pattern_is_in_the_log_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    add_graph(repository, "model", NEG_AND_INPUT)
    patterns = set()
    monkeypatch.setenv(VARIABLE, "1")
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running(repository, folder) as server:
            [told] = [line for line in server.log.splitlines() if f"{VARIABLE}: buffers are filled" in line]
            assert server.log.index(told) < server.log.index("READY")
            patterns.add(told)
    assert len({line.partition("the pattern ")[2] for line in patterns}) == 2


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_wrong_value_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str) -> None:
    add_graph(tmp_path, "model", NEG_AND_INPUT)
    monkeypatch.setenv(VARIABLE, "yes")
    ended = run_command("--model-repository", str(tmp_path), "--grpc-addr", "127.0.0.1:0", "--processes", processes)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"toutates: error: {VARIABLE}: is neither 1 nor the 32 hexadecimal digits of 16 different bytes from 80 to fe "
        "(got 'yes')\n"
    )

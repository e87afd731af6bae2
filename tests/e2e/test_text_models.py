"""Text models as ordinary ones: BYTES in, FP32 out, over gRPC and REST, with everything that watches a model."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.e2e.control import client_of, fails
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import triton
from tests.text_models import DIM, encoder_graph, hidden, ids_of, make_folder, table
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

POOLING = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
LABELS = {str(at): f"label {at}" for at in range(DIM)}
CLASSIFIER = {"architectures": ["BertForSequenceClassification"], "id2label": LABELS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    make_folder(
        root / "flat",
        modules=[POOLING],
        files={
            "config_sentence_transformers.json": {"prompts": {"query": "query : "}},
            "sentence_bert_config.json": {"max_seq_length": 8},
        },
    )
    make_folder(root / "classifier" / "1", graph=encoder_graph("logits"), modules=None, config=CLASSIFIER)
    make_folder(
        root / "multi" / "1",
        modules=[("1_Mask", "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask", {})],
    )
    declared = make_folder(root / "declared" / "1", modules=[POOLING])
    (declared.parent / "config.pbtxt").write_text(
        'backend: "text"\nmax_batch_size: 4\ninput { name: "text" data_type: TYPE_STRING dims: [1] }\n'
        'output { name: "embedding" data_type: TYPE_FP32 dims: [6] }\n'
        'parameters { key: "truncate" value { string_value: "true" } }\n'
    )
    broken = make_folder(root / "broken", modules=[POOLING])
    (broken / "tokenizer.json").write_text("{}")
    flags = ("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")
    with running(root, tmp_path_factory.mktemp("log"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as one:
        yield one


def strings(name: str, values: Sequence[bytes], module: Any = triton) -> Any:
    """An input of BYTES."""
    array = np.array(values, np.object_).reshape(len(values), 1)
    tensor = module.InferInput(name, list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def mean(text: str) -> Any:
    """The vector of a text."""
    return hidden(ids_of(text)).mean(0)


TEXTS = ["one", "two three", "", "one two three four five six"]
WANTED = np.array([mean(text) for text in TEXTS])


def test_clients_send_strings_and_get_vectors_over_grpc_and_rest(server: ServerProcess, client: Any) -> None:
    values = [text.encode() for text in TEXTS]
    for model in ("flat", "declared"):
        found = client.infer(model, [strings("text", values)]).as_numpy("embedding")
        npt.assert_allclose(found, WANTED, rtol=1e-5)
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as rest:
        found = rest.infer("flat", [strings("text", values, http)]).as_numpy("embedding")
        npt.assert_allclose(found, WANTED, rtol=1e-5)
    assert client.infer("flat", [strings("text", [])]).as_numpy("embedding").shape == (0, DIM)


def test_metadata_and_configuration_are_those_of_a_model(client: Any) -> None:
    metadata = client.get_model_metadata("flat", as_json=True)
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]}]
    assert metadata["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": ["-1", str(DIM)]}]
    config = client.get_model_config("flat").config
    assert (config.backend, config.max_batch_size) == ("text", 64)
    assert client.get_model_config("declared").config.max_batch_size == 4


def test_parameters_of_a_request_choose_prompt_cut_and_scores(client: Any) -> None:
    text = [strings("text", [b"one two"])]
    found = client.infer("flat", text, parameters={"prompt_name": "query"}).as_numpy("embedding")
    npt.assert_allclose(found, [mean("query : one two")], rtol=1e-5)
    found = client.infer("flat", text, parameters={"normalize": True}).as_numpy("embedding")
    npt.assert_allclose(found, [mean("one two") / np.linalg.norm(mean("one two"))], rtol=1e-5)
    long = [strings("text", [b"one two three four five six one"])]
    found = client.infer("flat", long, parameters={"truncation_direction": "left"}).as_numpy("embedding")
    npt.assert_allclose(found, [mean("two three four five six one")], rtol=1e-5)
    assert (
        "the text has 9 tokens, and the model takes at most 8"
        in fails(lambda: client.infer("flat", long, parameters={"truncate": False}))[1]
    )
    assert (
        "has no prompt 'passage'; it has: query"
        in fails(lambda: client.infer("flat", text, parameters={"prompt_name": "passage"}))[1]
    )
    assert (
        "the parameter 'truncate' must be a bool"
        in fails(lambda: client.infer("flat", text, parameters={"truncate": "no"}))[1]
    )


def test_classifiers_have_labels_and_pairs(client: Any) -> None:
    texts = [b"one two", b"six"]
    plain = client.infer("classifier", [strings("text", texts)]).as_numpy("scores")
    npt.assert_allclose(plain, [table()[ids_of(one.decode())].mean(0) for one in texts], rtol=1e-5)
    pair = [strings("text", [b"one"]), strings("text_pair", [b"two"])]
    found = client.infer("classifier", pair).as_numpy("scores")
    npt.assert_allclose(found, [table()[[2, 6, 3, 7, 3]].mean(0)], rtol=1e-5)
    wanted = triton.InferRequestedOutput("scores", class_count=1)
    [best] = client.infer("classifier", [strings("text", [b"six"])], outputs=[wanted]).as_numpy("scores")[0]
    assert best.decode().endswith(f":label {plain[1].argmax()}")


def test_multi_vectors_are_padded_to_the_longest_text_of_a_request(client: Any) -> None:
    result = client.infer("multi", [strings("text", [b"one", b"one two three"])])
    assert result.as_numpy("tokens").tolist() == [[3], [5]]
    embedding = result.as_numpy("embedding")
    assert embedding.shape == (2, 5, DIM)
    npt.assert_allclose(embedding[0], [*hidden(ids_of("one")), np.zeros(DIM), np.zeros(DIM)], rtol=1e-5)


def test_a_text_that_is_no_utf8_fails_its_request_by_its_number(client: Any) -> None:
    assert (
        "text 1: the text is no valid UTF-8"
        in fails(lambda: client.infer("flat", [strings("text", [b"one", b"\xff\xfe"])]))[1]
    )
    assert (
        "no valid UTF-8" in fails(lambda: client.infer("flat", [strings("text", [b"\xed\xa0\x80"])]))[1]
    )  # a lone surrogate
    assert "at most 4096 texts" in fails(lambda: client.infer("flat", [strings("text", [b"one"] * 4_097)]))[1]


def test_a_tokenizer_that_cannot_be_read_fails_its_model_alone(client: Any) -> None:
    index = {entry.name: entry for entry in client.get_model_repository_index().models}
    assert index["broken"].state == "UNAVAILABLE"
    assert "is no tokenizer that can be read" in index["broken"].reason
    assert client.is_model_ready("flat")


def test_statistics_and_metrics_count_texts_and_tokens(server: ServerProcess, client: Any) -> None:
    def counted() -> tuple[int, int]:
        [own] = client.get_inference_statistics("declared").model_stats
        return int(own.inference_stats.success.count), int(own.inference_count)

    before = counted()
    client.infer("declared", [strings("text", [b"one two", b"six"])])
    wait_until(lambda: counted() == (before[0] + 1, before[1] + 2))
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=120) as answer:
        metrics = answer.read().decode()
    assert 'toutates_real_elements_total{model="declared",version="1"}' in metrics
    for name in ("text_cut_total", "text_read_total", "text_read_seconds_total"):
        assert f"# TYPE toutates_{name} counter\n" in metrics
    read = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("toutates_text_") and line.partition("{")[2].startswith('model="declared",version="1"} ')
    }
    assert read["toutates_text_cut_total"] == 0
    assert read["toutates_text_read_total"] >= 2
    assert read["toutates_text_read_seconds_total"] > 0
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/status.json", timeout=120) as answer:
        assert "declared" in json.dumps(json.load(answer))


def test_texts_of_many_requests_share_batches(server: ServerProcess, client: Any) -> None:
    values = [text.encode() for text in TEXTS]
    results: list[Any] = []
    for _ in range(50):
        client.async_infer("flat", [strings("text", values)], lambda result, error: results.append((result, error)))
    wait_until(lambda: len(results) == 50)
    for result, error in results:
        assert error is None
        npt.assert_allclose(result.as_numpy("embedding"), WANTED, rtol=1e-5)
    [own] = client.get_inference_statistics("flat").model_stats
    assert own.execution_count < own.inference_count

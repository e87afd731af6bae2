"""The APIs for text of a server with real models, asked by the clients that people use."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.testing as npt
import pytest
import requests
from onnx import TensorProto, helper

from tests.e2e.http import get, peer_of, post
from tests.e2e.process import ROOT, ServerProcess, run, running
from tests.graphs import model, tensor
from tests.optional import skip_without
from tests.text_models import encoder_graph, hidden, ids_of, make_folder
from tests.waiting import wait_until

skip_without("openai")

POOLING: Final = "sentence_transformers.models.Pooling"
NORMALIZE: Final = "sentence_transformers.models.Normalize"
CLASSES: Final = {"id2label": {str(at): name for at, name in enumerate("abcdef")}}
PAGE: Final = (ROOT / "docs" / "text-apis.md").read_text()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    make_folder(
        path / "minilm",
        modules=[("1_Pooling", POOLING, {"pooling_mode_mean_tokens": True}), ("2_Normalize", NORMALIZE, None)],
        files={"config_sentence_transformers.json": {"prompts": {"query": "query: "}}},
    )
    make_folder(
        path / "mood",
        graph=encoder_graph("logits"),
        modules=None,
        config={"architectures": ["BertForSequenceClassification"], **CLASSES},
    )
    make_folder(
        path / "judge",
        graph=encoder_graph("logits", columns=1),
        modules=None,
        config={"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
    )
    # One that is no text model, but makes a vector of a string.
    node = helper.make_node(
        "LabelEncoder", ["text"], ["embedding"], domain="ai.onnx.ml", keys_strings=["one"], values_floats=[1.0]
    )
    (path / "labels" / "1").mkdir(parents=True)
    graph = model([node], [tensor("text", ["n", 1], TensorProto.STRING)], [tensor("embedding", ["n", 1])])
    (path / "labels" / "1" / "model.onnx").write_bytes(graph)
    make_folder(path / "broken")
    (path / "broken" / "tokenizer.json").write_text("{")
    return path


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text("sk-first\n")
    flags = ("--http-addr", "127.0.0.1:0", "--api-key-file", str(folder / "keys"), "--strict-readiness=false")
    with running(repository, folder, flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    url = f"http://127.0.0.1:{server.rest_port}/v1"
    import httpx
    import openai

    second = request.param == "HTTP/2"
    transport: Any = httpx.Client(http1=not second, http2=second, timeout=120)
    with openai.OpenAI(base_url=url, api_key="sk-first", max_retries=0, http_client=transport) as made:
        yield made


def vector_of(text: str) -> Any:
    mean = hidden(ids_of(text)).mean(axis=0)
    return mean / np.linalg.norm(mean)


def ask(server: ServerProcess, path: str, document: Any, key: str = "sk-first") -> requests.Response:
    url = f"http://127.0.0.1:{server.rest_port}{path}"
    return requests.post(url, json=document, headers={"authorization": f"Bearer {key}"}, timeout=120)


# --- OpenAI's client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_the_client_gets_the_models_vectors(client: Any, more: dict[str, Any]) -> None:
    answer = client.embeddings.create(model="minilm", input=["one two", "three"], **more)
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("minilm", 7, 7)
    for entry, text in zip(answer.data, ("one two", "three"), strict=True):
        values = entry.embedding
        if isinstance(values, str):  # whom the caller asks for base64 gets it
            values = np.frombuffer(base64.b64decode(values), "<f4")
        npt.assert_allclose(values, vector_of(text), rtol=1e-5, atol=1e-6)


def test_the_client_sends_token_ids_dimensions_and_our_own_members(client: Any) -> None:
    [entry] = client.embeddings.create(model="minilm", input=ids_of("one two")).data
    npt.assert_allclose(entry.embedding, vector_of("one two"), rtol=1e-5, atol=1e-6)
    [entry] = client.embeddings.create(model="minilm", input="one", dimensions=2, user="me").data
    assert len(entry.embedding) == 2
    for more in ({"model": "minilm:query"}, {"model": "minilm", "extra_body": {"prompt_name": "query"}}):
        [entry] = client.embeddings.create(input="one", **more).data
        npt.assert_allclose(entry.embedding, vector_of("query : one"), rtol=1e-5, atol=1e-6)


def test_the_client_sends_2048_texts_of_all_lengths(client: Any) -> None:
    texts = [" ".join(["one", "two", "six"] * (1 + at % 15)) for at in range(2_048)]
    data = client.embeddings.create(model="minilm", input=texts).data
    assert [entry.index for entry in data] == list(range(2_048))
    found = np.array([entry.embedding for entry in data])
    npt.assert_allclose(found, [vector_of(text) for text in texts], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "error", "param"),
    [
        ({"model": "other", "input": "a"}, "NotFoundError", "model"),
        ({"model": "broken", "input": "a"}, "NotFoundError", "model"),
        ({"model": "mood", "input": "a"}, "BadRequestError", "model"),
        ({"model": "minilm", "input": ""}, "BadRequestError", "input"),
        ({"model": "minilm", "input": ["one"] * 2_049}, "BadRequestError", "input"),
        ({"model": "minilm", "input": [1, 99]}, "BadRequestError", "input[0]"),
        ({"model": "minilm", "input": [2**31 - 1]}, "BadRequestError", "input[0]"),
        ({"model": "minilm", "input": "one", "dimensions": 7}, "BadRequestError", "dimensions"),
        ({"model": "minilm", "input": "one", "extra_body": {"x": 1}}, "BadRequestError", "x"),
        (
            {"model": "minilm", "input": "one " * 100, "extra_body": {"truncate": False}},
            "BadRequestError",
            "input[0]",
        ),
    ],
)
def test_the_client_raises_its_own_errors(client: Any, asked: dict[str, Any], error: str, param: str) -> None:
    import openai

    with pytest.raises(getattr(openai, error)) as raised:
        client.embeddings.create(**asked)
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


def test_the_client_lists_models(client: Any) -> None:
    import openai

    assert [model.id for model in client.models.list()] == ["judge", "minilm", "mood"]
    assert client.models.retrieve("minilm").id == "minilm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_wrong_key_is_an_authentication_error_until_the_file_says_otherwise(
    server: ServerProcess, client: Any
) -> None:
    import openai

    def error_of(key: str) -> str:
        with openai.OpenAI(base_url=client.base_url, api_key=key, max_retries=0) as other:
            try:
                other.models.list()
            except openai.AuthenticationError as error:
                return str(error.code)
        return ""

    keys = server.log_path.parent / "keys"
    assert error_of("sk-second") == "invalid_api_key"
    keys.write_text("sk-first\nsk-second\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not error_of("sk-second"))
    keys.write_text("")
    wait_until(lambda: "has no key" in server.log)
    assert not error_of("sk-first")
    # A key that is taken out of the file is good no more, without a signal.
    keys.write_bytes(b"\xef\xbb\xbfsk-first\n")
    wait_until(lambda: error_of("sk-second") == "invalid_api_key")
    assert not error_of("sk-first")


# --- other APIs ------------------------------------------------------------------------------------------------------


def test_routes_of_tei(server: ServerProcess) -> None:
    assert np.shape(ask(server, "/embed", {"inputs": ["one", "two"]}).json()) == (2, 6)
    assert np.shape(ask(server, "/embed_all", {"inputs": "one two"}).json()) == (1, 4, 6)
    scores = ask(server, "/predict", {"inputs": "one"}).json()
    assert {entry["label"] for entry in scores} == set("abcdef")
    assert sum(entry["score"] for entry in scores) == pytest.approx(1, abs=1e-5)
    [one, _] = ask(server, "/similarity", {"inputs": {"source_sentence": "one", "sentences": ["one", "two"]}}).json()
    assert one == pytest.approx(1, abs=1e-6)
    [tokens] = ask(server, "/tokenize", {"inputs": "one two", "model": "minilm"}).json()
    assert [token["text"] for token in tokens] == ["[CLS]", "one", "two", "[SEP]"]
    assert ask(server, "/decode", {"ids": [6, 7], "model": "minilm"}).json() == ["one two"]
    assert (
        'toutates_text_answers_total{route="/embed_all",status="200"} 1'
        in requests.get(f"http://127.0.0.1:{server.rest_port}/metrics", timeout=120).text
    )
    answer = ask(server, "/embed_sparse", {"inputs": "one"})
    assert (answer.status_code, answer.json()["error_type"]) == (404, "Validation")
    ranks = ask(server, "/rerank", {"query": "one", "texts": ["two", "three four"], "return_text": True}).json()
    assert sorted(entry["text"] for entry in ranks) == ["three four", "two"]
    ranked = ask(server, "/v2/rerank", {"query": "one", "documents": ["two", "three four"], "top_n": 1}).json()
    assert [entry["index"] for entry in ranked["results"]] == [ranks[0]["index"]]
    answer = ask(server, "/rerank", {"query": "one", "texts": ["two"], "model": "minilm"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    with peer_of(server.rest_port) as peer:
        assert peer.ask(get("/health")).status == 200
        about = peer.ask(get("/info?model=minilm", "authorization: Bearer sk-first"))
        assert about.document["model_type"] == {"embedding": {"pooling": "mean"}}


def test_the_client_of_the_hugging_face_hub_asks_the_servers_own_route(server: ServerProcess) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    url = f"http://127.0.0.1:{server.rest_port}/?model="
    client = hub.InferenceClient(model=f"{url}mood", token="sk-first", timeout=120)
    best = ask(server, "/predict", {"inputs": "one"}).json()[0]
    assert client.text_classification("one") == best
    assert client.text_classification("one", top_k=1, function_to_apply="softmax") == best
    client = hub.InferenceClient(model=f"{url}minilm", token="sk-first", timeout=120)
    npt.assert_allclose(client.feature_extraction("one", truncate=True), [vector_of("one")], atol=1e-6)
    assert client.sentence_similarity("one", ["one", "two"])[0] == pytest.approx(1, abs=1e-6)


def test_what_is_not_there_is_said_to_openais_client_in_its_form(client: Any) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions") as raised:
        client.chat.completions.create(model="minilm", messages=[])
    assert raised.value.type == "invalid_request_error"


def test_members_of_other_servers_are_carried_out_or_named(client: Any) -> None:
    made = client.embeddings.with_raw_response.create(
        model="minilm", input="one two six", extra_body={"truncate_prompt_tokens": 4, "priority": 1, "normalized": True}
    )
    assert made.headers["x-ignored-members"] == "priority"
    npt.assert_allclose(made.parse().data[0].embedding, vector_of("one two"), rtol=1e-5, atol=1e-6)


def test_the_proxys_route(server: ServerProcess) -> None:
    assert ask(server, "/v1/embedding?model=labels", [{"query": "one"}, {"query": "é"}]).json() == [
        {"embedding": [1.0]},
        {"embedding": [0.0]},
    ]
    answer = ask(server, "/v1/embedding?model=mood", [{"query": "one"}])
    assert (answer.status_code, answer.json()) == (400, {"msg": "the model 'mood' is not an embedding model"})
    document = ask(server, "/v1/embedding", [{"query": "one"}, {"query": "two"}]).json()
    npt.assert_allclose([entry["embedding"] for entry in document], [vector_of("one"), vector_of("two")], atol=1e-6)


def test_ten_megabytes_of_text_do_not_keep_others_waiting_for_ever(server: ServerProcess) -> None:
    text = "one two " * 1_250_000
    answers: list[int] = []

    def ask_much() -> None:
        answers.append(ask(server, "/embed", {"inputs": [text]}).status_code)

    asking = threading.Thread(target=ask_much)
    asking.start()
    others = [ask(server, "/embed", {"inputs": "one"}).status_code for _ in range(20)]
    asking.join()
    assert others == [200] * 20
    assert answers[0] in (200, 422)


def test_requests_that_come_slowly_or_end_early_cost_nobody_else(server: ServerProcess) -> None:
    octets = post(
        "/embed", json.dumps({"inputs": "one"}), "content-type: application/json", "authorization: Bearer sk-first"
    )
    with peer_of(server.rest_port) as slow, peer_of(server.rest_port) as gone:
        gone.sock.sendall(octets[:-5])
        slow.sock.sendall(octets[:-5])
        assert ask(server, "/embed", {"inputs": "one"}).status_code == 200
        assert slow.ask(octets[-5:]).status == 200


# --- the page --------------------------------------------------------------------------------------------------------

BLOCKS: Final = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("commands", BLOCKS)
def test_the_commands_of_the_page_work(server: ServerProcess, commands: str) -> None:
    script = (
        'set -euo pipefail\ncurl() { command curl -sS --fail-with-body -H "authorization: Bearer sk-first" "$@"; }\n'
    )
    # The page's repository has one model.
    commands = re.sub(r"localhost:8000/(tokenize|info)", r"localhost:8000/\1?model=minilm", commands)
    script += commands.replace("localhost:8000", f"127.0.0.1:{server.rest_port}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_client_of_the_page_works(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    code = code.replace("localhost:8000", f"127.0.0.1:{server.rest_port}").replace('"none"', '"sk-first"')
    names: dict[str, Any] = {}
    exec(code, names)
    names["client"].close()
    assert len(names["answer"].data) == 2


@pytest.mark.parametrize("api", ["openai", "tei"])
def test_embeddings_are_measured_by_toutates_bench(server: ServerProcess, api: str) -> None:
    arguments = ["--api", api, "-m", "minilm", "-b", "2", "--string-length", "20", "--concurrency", "2", "--json"]
    arguments += ["--seconds", "0.15", "--repeats", "1", "--warmup", "0", "-H", "Authorization: Bearer sk-first"]
    ended = run("bench", f"http://127.0.0.1:{server.rest_port}", *arguments)
    found = json.loads(ended.stdout)
    assert found["statuses"] == {"OK": found["statuses"]["OK"]}, found["texts"]
    assert found["checked"] > 0
    assert found["wrong"] == []
    assert ended.returncode == bool(found["doubt"])  # on a busy machine

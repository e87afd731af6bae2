"""LangChain's embeddings as docs/langchain.md has them, and what it sends without the setting that the page names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
import requests

from tests.docs_blocks import code_blocks
from tests.e2e.process import ServerProcess, running
from tests.text_models import WORDS, hidden, ids_of, make_folder

PAGE = "langchain.md"
POOLING = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    yaml, pbtxt = "".join(code_blocks(PAGE, "yaml")), code_blocks(PAGE, "")[-1]
    for name, file, text in (("minilm", "", ""), ("by_yaml", "config.yaml", yaml), ("by_pbtxt", "config.pbtxt", pbtxt)):
        path = make_folder(models / name, modules=[POOLING])
        if file:
            (path / file).write_text(text)
    with running(models, tmp_path_factory.mktemp("server"), ("--http-addr", "127.0.0.1:0")) as process:
        yield process
        assert process.stop() == 0


def embed(server: ServerProcess, model: str, given: Any) -> requests.Response:
    document = {"input": given, "model": model, "encoding_format": "float"}
    return requests.post(f"http://127.0.0.1:{server.rest_port}/v1/embeddings", json=document, timeout=120)


@pytest.mark.parametrize("given", [[[6, 7]], [[6, 7, 8], [9]], [6, 7], [[2, 6, 3], [4, 6]], [[1_000_000]]])
def test_ids_of_another_tokenizer_are_refused_in_openais_form(server: ServerProcess, given: list[Any]) -> None:
    answer = embed(server, "minilm", given)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", None)
    assert error["param"] in ("input[0]", "input[1]")
    assert "check_embedding_ctx_length=False" in error["message"]


def test_ids_of_the_models_tokenizer_are_its_text(server: ServerProcess) -> None:
    own, text = (embed(server, "minilm", given).json()["data"][0] for given in (ids_of("one two"), "one two"))
    assert own == text


@pytest.mark.parametrize("model", ["by_yaml", "by_pbtxt"])
def test_the_configurations_of_the_page_take_any_ids(server: ServerProcess, model: str) -> None:
    [entry] = embed(server, model, [6, 7]).json()["data"]
    npt.assert_allclose(entry["embedding"], hidden([6, 7]).mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("path", "member"), [("/embed", "inputs"), ("/embed_all", "inputs"), ("/", "inputs")])
def test_ids_are_held_to_the_same_by_the_other_apis(server: ServerProcess, path: str, member: str) -> None:
    url = f"http://127.0.0.1:{server.rest_port}{path}"
    for given, status in (([[6, 7]], 422), ([ids_of("one")], 200)):
        answer = requests.post(url, json={member: given, "model": "minilm"}, timeout=120)
        assert answer.status_code == status
        assert status == 200 or "check_embedding_ctx_length=False" in answer.json()["error"]


# --- LangChain itself ------------------------------------------------------------------------------------------------


def test_the_code_of_the_page_works(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    [code], [printed] = code_blocks(PAGE, "python"), code_blocks(PAGE, "text")
    names: dict[str, Any] = {}
    exec(code.replace("localhost:8000", f"127.0.0.1:{server.rest_port}"), names)
    assert capsys.readouterr().out == printed
    [own] = names["embeddings"].embed_documents(["one two"])
    npt.assert_allclose(own, hidden(ids_of("one two")).mean(axis=0), rtol=1e-5, atol=1e-6)


def test_what_langchain_sends_by_itself_is_refused(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    import openai
    import tiktoken

    # OpenAI's own vocabulary is fetched from the network; any other one sends ids in the same way.
    octets = {bytes([value]): value for value in range(256)}
    made = tiktoken.Encoding("octets", pat_str=r"[\s\S]", mergeable_ranks=octets, special_tokens={})
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda model: made)
    url = f"http://127.0.0.1:{server.rest_port}/v1"
    embeddings = langchain.OpenAIEmbeddings(base_url=url, api_key="none", model="minilm")
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        embeddings.embed_documents(["".join(chr(at) for at in range(4, len(WORDS)))])
    assert np.isfinite(embed(server, "minilm", "one").json()["data"][0]["embedding"]).all()

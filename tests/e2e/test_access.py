"""A server with an access file, asked by the clients that people use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import requests

from tests.access.tokens import bearer, digest, public_jwk, token, write_keys
from tests.e2e.control import EXPLICIT
from tests.e2e.health import request_of, status_of
from tests.e2e.http import get, peer_of, post
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.wire import client_of
from tests.optional import skip_without
from tests.text_models import make_folder
from tests.waiting import wait_until

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")

skip_without("jwt")

RULES: Final = f"""
anonymous: [health]
keys:
  - {{name: search, sha256: {digest("sk-search")}, groups: [inference, metadata, statistics, model-repository],
     models: ["mine*", minilm]}}
  - {{name: admin, sha256: {digest("sk-admin")},
     groups: [inference, metadata, model-repository, logging, trace, statistics, reflection]}}
  - {{name: slow, sha256: {digest("sk-slow")}, groups: [inference],
     quota: {{rows_per_second: 0.01, burst_seconds: 200}}}}
  - {{name: slower, sha256: {digest("sk-slower")}, groups: [inference],
     quota: {{rows_per_second: 0.01, burst_seconds: 200}}}}
tokens:
  - {{issuer: "https://issuer.example", audience: toutates, jwks: jwks.json, groups: [inference]}}
"""
ROWS: Final = np.arange(8, dtype=np.int32).reshape(2, 4)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    write_keys(folder, [public_jwk("rsa")])
    (folder / "access.yaml").write_text(RULES)
    return folder / "access.yaml"


@pytest.fixture(scope="module")
def server(rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("server")
    for name in ("mine", "mine-too", "theirs"):
        add_model(models, name, versioned_model(1), 1)
    pooling = "sentence_transformers.models.Pooling"
    make_folder(models / "minilm", modules=[("1_Pooling", pooling, {"pooling_mode_mean_tokens": True})])
    flags = ["--http-addr", "127.0.0.1:0", "--access-file", str(rules), *EXPLICIT, "--load-model=*"]
    with running(models, folder, flags) as process:
        yield process
        assert process.stop() == 0
        for text in ("Traceback", "sk-search", "sk-admin", "eyJ"):
            assert text not in process.log


@pytest.fixture
def grpc(server: ServerProcess) -> Iterator[Any]:
    with grpcclient.InferenceServerClient(server.address) as client:
        yield client


@pytest.fixture
def rest(server: ServerProcess) -> Iterator[Any]:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
        yield client


def headers(key: str) -> dict[str, str]:
    return {"authorization": bearer(key).decode()} if key else {}


def infer(client: Any, model: str, key: str, rows: Any = ROWS) -> Any:
    module = grpcclient if isinstance(client, grpcclient.InferenceServerClient) else httpclient
    given = module.InferInput("INPUT", list(rows.shape), "INT32")
    given.set_data_from_numpy(rows)
    return client.infer(model, [given], headers=headers(key)).as_numpy("OUTPUT")


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, str]:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as error:
        call(*arguments, **options)
    return str(error.value.status()).removeprefix("StatusCode."), error.value.message()


def test_callers_over_http2_are_those_over_http1(server: ServerProcess) -> None:
    given = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [2, 4], "data": list(range(8))}]}
    base = f"http://127.0.0.1:{server.rest_port}/v2/models"
    statuses: list[list[tuple[int, str]]] = []
    with httpx.Client(timeout=120) as first, httpx.Client(http2=True, http1=False, timeout=120) as second:
        for client in (first, second):
            statuses.append([])
            for key in ("", "wrong", "sk-search", "sk-admin", token(), token(exp=1)):
                for model in ("mine", "theirs", "nowhere"):
                    answer = client.post(f"{base}/{model}/infer", json=given, headers=headers(key))
                    statuses[-1].append((answer.status_code, answer.text if answer.status_code != 200 else ""))
            assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.http_version == "HTTP/2"
        assert statuses[0] == statuses[1]
        assert {200, 401, 403, 404} == {status for status, _ in statuses[1]}


def test_a_quota_over_http2(server: ServerProcess) -> None:
    given = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [2, 4], "data": list(range(8))}]}
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/mine/infer"
    with httpx.Client(http2=True, http1=False, timeout=120) as client:
        answer = client.post(url, json=given, headers=headers("sk-slower"))
        while answer.status_code == 200:
            answer = client.post(url, json=given, headers=headers("sk-slower"))
        assert (answer.status_code, answer.http_version) == (429, "HTTP/2")
        assert int(answer.headers["retry-after"]) > 0


def test_tokens_that_are_dear_to_refuse_end_a_connection_over_http2(server: ServerProcess) -> None:
    path, json = "/v2/models/mine/infer", [("content-type", "application/json")]
    with client_of(server.rest_port) as client, client_of(server.rest_port) as other:
        answers = 0
        while client.terminated is None:
            forged = bearer(f"{token(sub=str(answers))[:-8]}AAAAAAAA").decode()
            stream_id = client.start(path, [*json, ("authorization", forged)])
            client.send(stream_id, b"{}")
            answer = client.answer(stream_id)
            answers += answer.headers.get(":status") == "401"
        assert 5 <= answers < 1_000
        stream_id = other.start(path, [*json, ("authorization", bearer("sk-slow").decode())])
        other.send(stream_id, b"{}")
        assert other.answer(stream_id).headers[":status"] != "401"


def test_keys_and_tokens_let_in_over_grpc_and_rest(grpc: Any, rest: Any) -> None:
    for client, missing, forbidden in ((grpc, "UNAUTHENTICATED", "PERMISSION_DENIED"), (rest, "401", "403")):
        first = infer(client, "mine", "sk-search")
        for key in ("sk-admin", token()):
            np.testing.assert_array_equal(infer(client, "mine", key), first)
            np.testing.assert_array_equal(infer(client, "theirs", key), first)
        for key in ("", "wrong", token("other", head={"kid": "rsa"}), token(exp=1)):
            assert refusal(infer, client, "mine", key)[0] == missing
        for model in ("theirs", "nowhere"):  # which does not tell whether there is one
            found = refusal(infer, client, model, "sk-search")
            assert found == (forbidden, f"key search may not use the model '{model}'")
        assert refusal(client.get_server_metadata, headers=headers(token()))[0] == forbidden
        assert client.is_server_ready()
        assert client.is_server_ready(headers=headers("wrong"))


def test_a_stream_is_looked_at_message_by_message(grpc: Any) -> None:
    found: list[Any] = []
    grpc.start_stream(lambda result, error: found.append((result, error)), headers=headers("sk-search"))
    given = grpcclient.InferInput("INPUT", list(ROWS.shape), "INT32")
    given.set_data_from_numpy(ROWS)
    for model in ("mine", "theirs", "mine"):
        grpc.async_stream_infer(model, [given])
    wait_until(lambda: len(found) == 3)
    grpc.stop_stream()
    assert [error is None for _, error in found] == [True, False, True]
    assert "may not use the model 'theirs'" in str(found[1][1])


def test_what_is_told_of_models_is_told_of_ones_own(grpc: Any, rest: Any) -> None:
    mine = headers("sk-search")
    assert grpc.get_model_metadata("mine", headers=mine).name == "mine"
    assert refusal(grpc.get_model_metadata, "theirs", headers=mine)[0] == "PERMISSION_DENIED"
    index = grpc.get_model_repository_index(headers=mine)
    assert sorted(model.name for model in index.models) == ["mine", "mine-too", "minilm"]
    assert len(grpc.get_model_repository_index(headers=headers("sk-admin")).models) == 4
    statistics = grpc.get_inference_statistics(headers=mine)
    assert {one.name for one in statistics.model_stats} == {"mine", "mine-too", "minilm"}
    assert refusal(rest.get_model_metadata, "theirs", headers=mine)[0] == "403"
    assert sorted(model["name"] for model in rest.get_model_repository_index(headers=mine)) == sorted(
        ("mine", "mine-too", "minilm")
    )
    names = {one["name"] for one in rest.get_inference_statistics(headers=mine)["model_stats"]}
    assert names == {"mine", "mine-too", "minilm"}


def test_models_are_loaded_and_unloaded_by_those_who_may(server: ServerProcess, grpc: Any, rest: Any) -> None:
    mine = headers("sk-search")
    for client, forbidden in ((grpc, "PERMISSION_DENIED"), (rest, "403")):
        assert refusal(client.unload_model, "theirs", headers=mine)[0] == forbidden
        assert refusal(client.unload_model, "mine", headers=headers(token()))[0] == forbidden
        client.unload_model("mine-too", headers=mine)
        client.load_model("mine-too", headers=mine)
        assert refusal(client.update_log_settings, {"log_verbose_level": 0}, headers=mine)[0] == forbidden
        client.get_log_settings(headers=headers("sk-admin"))


def test_changes_leave_a_line_with_who_has_made_them(server: ServerProcess, grpc: Any, rest: Any) -> None:
    admin = headers("sk-admin")
    for client, via in ((grpc, "gRPC"), (rest, "REST")):
        client.load_model("theirs", headers=admin)
        with pytest.raises(Exception, match="nowhere"):
            client.load_model("nowhere", headers=admin)
        client.update_log_settings({"log_verbose_level": 0}, headers=admin)
        client.get_log_settings(headers=admin)
        for line in (
            rf"audit\W.*load of 'theirs' by key admin \(127\.0\.0\.1:\d+, {via}\): done",
            rf"load of 'nowhere' by key admin \(127\.0\.0\.1:\d+, {via}\): refused: .*nowhere",
            rf"log settings: log_verbose_level by key admin \(127\.0\.0\.1:\d+, {via}\): done",
        ):
            wait_until(lambda line=line: len(re.findall(line, server.log)) == 1)  # type: ignore[misc]


def test_a_quota_counts_the_rows_of_all_transports(server: ServerProcess, grpc: Any, rest: Any) -> None:
    infer(grpc, "mine", "sk-slow")
    status, text = refusal(infer, rest, "mine", "sk-slow", np.zeros((2, 4), dtype=np.int32))
    assert status == "429"
    assert "has used up its quota; try again in" in text
    assert refusal(infer, grpc, "mine", "sk-slow")[0] == "RESOURCE_EXHAUSTED"
    document: Any = {"inputs": [{"name": "INPUT", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/mine/infer"
    answer = requests.post(url, json=document, headers=headers("sk-slow"), timeout=120)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 200


def test_the_apis_for_text_ask_for_the_same(server: ServerProcess) -> None:
    skip_without("openai")
    import openai

    def ask(key: str, model: str) -> int:
        url = f"http://127.0.0.1:{server.rest_port}/v1"
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            try:
                client.embeddings.create(model=model, input=["a", "b"])
            except openai.APIStatusError as error:
                return error.status_code
            return 200

    assert ask("sk-search", "minilm") == 200
    assert [ask("sk-search", "theirs"), ask("wrong", "minilm"), ask("sk-slow", "minilm")] == [403, 401, 429]


def test_pages_ask_too_and_health_is_open(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        assert peer.ask(get("/health/ready")).status == 200
        answer = peer.ask(get("/openapi.json"))
        assert answer.status == 401
        assert answer.fields["www-authenticate"] == "Bearer"
        assert peer.ask(get("/metrics", "authorization: Bearer sk-admin")).status == 403
        whole = peer.ask(get("/openapi.json", "authorization: Bearer sk-admin"))
        assert whole.status == 200
        assert b"theirs" not in whole.body
        assert peer.ask(post("/v2/models/mine/infer", "{}", "authorization: Bearer x" + "y" * 9_000)).status == 401


def test_a_connection_has_few_signatures_checked(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        forged = token("other", head={"kid": "rsa"}, sub="mallory")
        answer = peer.ask(get("/v2", f"authorization: Bearer {forged}"))
        assert (answer.status, answer.fields["connection"]) == (401, "close")


def test_new_rules_hold_for_open_connections_and_broken_ones_do_not(
    server: ServerProcess, rules: Path, grpc: Any, rest: Any
) -> None:
    infer(grpc, "mine", "sk-search")
    infer(rest, "mine", "sk-search")
    rules.write_text(RULES.replace(digest("sk-search"), digest("sk-renewed")))
    for client in (grpc, rest):
        wait_until(lambda client=client: _status(client, "sk-renewed") == "")  # type: ignore[misc]
        assert refusal(infer, client, "mine", "sk-search")[0] in ("UNAUTHENTICATED", "401")
    rules.write_text("keys: [")
    wait_until(lambda: "until then the rules read before stay in force" in server.log)
    infer(grpc, "mine", "sk-renewed")
    rules.write_text(RULES)
    wait_until(lambda: _status(grpc, "sk-search") == "")


def _status(client: Any, key: str) -> str:
    try:
        infer(client, "mine", key)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("anonymous", [False, True])
def test_health_of_models_is_for_those_who_may_see_them(anonymous: bool, tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    models, access = tmp_path / "models", tmp_path / "access.yaml"
    for name in ("mine", "theirs"):
        add_model(models, name, versioned_model(1), 1)
    key = f'- {{name: search, sha256: {digest("sk-search")}, groups: [health], models: ["mine*"]}}'
    access.write_text(("anonymous: [health]\n" if anonymous else "") + f"keys:\n  {key}\n")
    with (
        running(models, tmp_path, ["--access-file", str(access)]) as process,
        grpc.insecure_channel(process.address) as channel,
    ):

        def check(service: str, key: str = "sk-search") -> str:
            request = request_of(service)
            metadata = list(headers(key).items())
            try:
                answer = channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=120, metadata=metadata)
            except grpc.RpcError as error:
                return str(error.code().name)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(request, timeout=120, metadata=metadata)
            assert next(watch) == answer
            watch.cancel()
            return status_of(answer)

        assert [check(name) for name in ("", "ready", "mine")] == ["SERVING"] * 3
        # What is open to all is not asked about keys.
        assert check("theirs") == ("SERVING" if anonymous else "NOT_FOUND")
        assert check("nothing") == "NOT_FOUND"
        assert check("", "") == ("SERVING" if anonymous else "UNAUTHENTICATED")

"""Aliases, traffic and shadows, as clients meet them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import requests

from tests.access.tokens import bearer, digest
from tests.e2e.control import EXPLICIT, answer, client_of
from tests.e2e.models import add_model, gather_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.streams import answers_of, triton_stream
from tests.e2e.support import triton
from tests.text_models import make_folder
from tests.waiting import wait_until

httpclient = pytest.importorskip("tritonclient.http")

RULES: Final = """
aliases:
  live: fraud
  old: {model: ranker, version: 1}
  chain: live
  ranking: ranker
traffic:
  ranker:
    split: [{version: 1, weight: 75}, {version: 3, weight: 25}]
    sticky: id
  random:
    split: [{model: ranker, version: 1, weight: 1}, {model: ranker, version: 3, weight: 1}]
  by-user:
    split: [{model: ranker, version: 1, weight: 1}, {model: ranker, version: 3, weight: 1}]
    sticky: parameter:user
  watched:
    split: [{model: ranker, version: 1, weight: 1}]
    shadow: {model: copy, share: 1.0}
  suspicious:
    split: [{model: ranker, version: 1, weight: 1}]
    shadow: {model: ranker, version: 3, share: 1.0}
"""
FLAGS: Final = (*EXPLICIT, "--load-model=*", "--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")


def add_models(root: Path) -> None:
    for version in (1, 2, 3):
        add_model(root, "ranker", versioned_model(version), version)
    add_model(root, "fraud", versioned_model(5), 5)
    add_model(root, "copy", versioned_model(1), 1)
    add_model(root, "other", gather_model(), 1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    add_models(root)
    (root / "traffic.yaml").write_text(RULES)
    return root


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(models, tmp_path_factory.mktemp("server"), FLAGS) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def grpc(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def rest(server: ServerProcess) -> Iterator[Any]:
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
        yield client


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.rest_port}/v2/repository/traffic"


def tensors(client: Any) -> list[Any]:
    tensor = client.InferInput("INPUT", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
    return [tensor]


def ask(client: Any, model: str, module: Any = triton, **about: Any) -> int:
    """What the version adds that answers; gRPC's and REST's clients have the same methods."""
    return int(client.infer(model, tensors(module), **about).as_numpy("OUTPUT")[0, 0])


def metrics(server: ServerProcess) -> dict[str, float]:
    text = requests.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=120).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def shadow(server: ServerProcess, name: str, outcome: str) -> float:
    found = [
        value
        for key, value in metrics(server).items()
        if key.startswith("toutates_shadow_requests_total") and f'name="{name}"' in key and f'"{outcome}"' in key
    ]
    return sum(found)


# --- aliases ---------------------------------------------------------------------------------------------------------


def test_alias_answers_as_its_model_by_every_transport(server: ServerProcess, grpc: Any, rest: Any) -> None:
    assert [ask(grpc, name) for name in ("live", "chain", "old")] == [5, 5, 1]
    assert [ask(rest, name, httpclient) for name in ("live", "chain", "old")] == [5, 5, 1]
    with triton_stream(server.address) as (client, answers):
        for name in ("live", "old"):
            client.async_stream_infer(name, tensors(triton))
        found = [(int(result.as_numpy("OUTPUT")[0, 0]), error) for result, error in answers_of(answers, 2)]
    assert found == [(5, None), (1, None)]


def test_answers_tell_the_version_that_has_answered(grpc: Any, rest: Any) -> None:
    response = grpc.infer("old", tensors(triton)).get_response()
    assert (response.model_name, response.model_version) == ("ranker", "1")
    document = rest.infer("old", tensors(httpclient)).get_response()
    assert (document["model_name"], document["model_version"]) == ("ranker", "1")


def test_alias_has_metadata_config_readiness_and_statistics_of_its_model(grpc: Any, rest: Any) -> None:
    metadata = grpc.get_model_metadata("old")
    assert (metadata.name, list(metadata.versions)) == ("ranker", ["1"])
    assert grpc.get_model_config("live").config.name == "fraud"
    assert grpc.is_model_ready("live")
    assert grpc.is_model_ready("live", "5")
    assert not grpc.is_model_ready("nowhere")
    assert [(one.name, one.version) for one in grpc.get_inference_statistics("old").model_stats] == [("ranker", "1")]
    assert rest.get_model_metadata("live")["name"] == "fraud"
    told = [(one["name"], one["version"]) for one in rest.get_inference_statistics("random")["model_stats"]]
    assert told == [("ranker", "1"), ("ranker", "3")]


def test_alias_of_a_model_passes_versions_on_and_one_of_a_version_refuses_others(grpc: Any) -> None:
    assert ask(grpc, "live", model_version="5") == 5
    assert ask(grpc, "ranking", model_version="2") == 2
    assert ask(grpc, "old", model_version="1") == 1
    with pytest.raises(triton.InferenceServerException, match="'old' stands for 'ranker' version 1"):
        ask(grpc, "old", model_version="2")
    with pytest.raises(triton.InferenceServerException, match="divided between versions; name none"):
        ask(grpc, "random", model_version="1")


# --- splits ----------------------------------------------------------------------------------------------------------


def test_requests_are_split_by_weight_and_stay_with_their_id(grpc: Any, rest: Any) -> None:
    ids = [f"user-{number}" for number in range(200)]
    first = [ask(grpc, "ranker", request_id=one) for one in ids]
    assert set(first) == {1, 3}
    # 200 draws with a probability of 0.25 lie between 25 and 75 but for one time in 100,000.
    assert 25 < Counter(first)[3] < 75
    assert [ask(grpc, "ranker", request_id=one) for one in ids] == first
    # The same id gets the same version over REST, and by an alias.
    assert [ask(rest, "ranker", httpclient, request_id=one) for one in ids[:40]] == first[:40]
    assert [ask(grpc, "ranking", request_id=one) for one in ids[:40]] == first[:40]


def test_ids_with_escapes_are_the_same_over_both_transports(grpc: Any, rest: Any) -> None:
    ids = [f'a "{number}" \\ é\n' for number in range(30)]
    first = [ask(grpc, "ranker", request_id=one) for one in ids]
    assert [ask(rest, "ranker", httpclient, request_id=one) for one in ids] == first


def test_version_that_is_named_gets_its_requests_whatever_the_weights(grpc: Any) -> None:
    assert [ask(grpc, "ranker", model_version=str(version)) for version in (1, 2, 3)] == [1, 2, 3]


def test_requests_without_identity_are_split_at_random(grpc: Any) -> None:
    found = Counter(ask(grpc, "random") for _ in range(200))
    assert set(found) == {1, 3}
    assert found[1] > 50
    assert found[3] > 50


def test_requests_stay_with_a_parameter(grpc: Any, rest: Any) -> None:
    users = [f"u{number}" for number in range(40)]
    first = [ask(grpc, "by-user", parameters={"user": one}) for one in users]
    assert set(first) == {1, 3}
    assert [ask(grpc, "by-user", parameters={"user": one}) for one in users] == first
    assert [ask(rest, "by-user", httpclient, parameters={"user": one}) for one in users] == first


def test_metrics_count_requests_by_version(server: ServerProcess, grpc: Any) -> None:
    keys = [
        f'toutates_traffic_requests_total{{name="random",model="ranker",version="{version}"}}' for version in (1, 3)
    ]

    def counted() -> float:
        found = metrics(server)
        return sum(found.get(key, 0) for key in keys)

    before = counted()
    for _ in range(20):
        ask(grpc, "random")
    # A text of metrics may be some moments old.
    wait_until(lambda: counted() >= before + 20)


def test_inputs_of_a_wrong_size_are_refused_as_by_the_model(grpc: Any) -> None:
    ask(grpc, "random")
    tensor = triton.InferInput("INPUT", [1, 3], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 3), np.int32))
    with pytest.raises(triton.InferenceServerException, match="unexpected shape for input 'INPUT' for model 'ranker'"):
        grpc.infer("random", [tensor])


# --- shadows ---------------------------------------------------------------------------------------------------------


def test_answers_of_a_shadow_are_compared_and_not_sent(server: ServerProcess, grpc: Any, rest: Any) -> None:
    before = [shadow(server, "watched", "equal"), shadow(server, "suspicious", "different")]
    assert {ask(grpc, name) for name in ("watched", "suspicious") for _ in range(10)} == {1}
    assert {ask(rest, name, httpclient) for name in ("watched", "suspicious") for _ in range(10)} == {1}
    wait_until(lambda: shadow(server, "watched", "equal") - before[0] == 20)
    wait_until(lambda: shadow(server, "suspicious", "different") - before[1] == 20)
    assert shadow(server, "watched", "different") == shadow(server, "watched", "failed") == 0


def test_shadow_that_is_unloaded_fails_alone(server: ServerProcess, grpc: Any) -> None:
    grpc.unload_model("copy")
    assert [ask(grpc, "watched") for _ in range(5)] == [1] * 5
    wait_until(lambda: shadow(server, "watched", "failed") == 5)
    grpc.load_model("copy")
    equal = shadow(server, "watched", "equal")
    assert ask(grpc, "watched") == 1
    wait_until(lambda: shadow(server, "watched", "equal") == equal + 1)


# --- changes ---------------------------------------------------------------------------------------------------------


def test_alias_is_switched_by_a_request(grpc: Any, url: str) -> None:
    change = {"aliases": {"moving": "fraud"}}
    assert requests.post(url, json=change, timeout=120).json()["aliases"]["moving"] == "fraud"
    assert ask(grpc, "moving") == 5
    requests.post(url, json={"aliases": {"moving": {"model": "ranker", "version": 2}}}, timeout=120)
    assert ask(grpc, "moving") == 2
    requests.post(url, json={"aliases": {"moving": None}}, timeout=120)
    with pytest.raises(triton.InferenceServerException, match="unknown model: 'moving'"):
        ask(grpc, "moving")
    assert "moving" not in requests.get(url, timeout=120).json()["aliases"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"aliases": {"a": "nowhere"}}, "there is no model 'nowhere'"),
        ({"aliases": {"a": {"model": "ranker", "version": 9}}}, "has no version 9"),
        ({"aliases": {"a": "b", "b": "a"}}, "comes back to itself"),
        ({"aliases": {"a": "a"}}, "comes back to itself"),
        ({"aliases": {"fraud": "ranker"}}, "a model has this name"),
        ({"aliases": {"a": 3}}, "aliases.a: is not a mapping"),
        ({"aliases": {"a/b": "fraud"}}, "no name that requests can have"),
        ({"aliases": []}, "aliases: is not a mapping"),
        ({"traffic": {"a": {}}}, "neither `split` nor `shadow`"),
        ({"traffic": {"a": {"split": [{"model": "fraud", "weight": 0}]}}}, "weight: is not an integer from 1"),
        ({"traffic": {"a": {"split": [{"model": "fraud", "weight": -1}]}}}, "weight: is not an integer from 1"),
        ({"traffic": {"a": {"split": [{"model": "fraud", "weight": "1"}]}}}, "weight: is not an integer from 1"),
        ({"traffic": {"a": {"split": [{"model": "fraud", "weight": 1.5}]}}}, "weight: is not an integer from 1"),
        ({"traffic": {"a": {"split": [{"model": "fraud", "weight": True}]}}}, "weight: is not an integer from 1"),
        (
            {"traffic": {"a": {"split": [{"model": "fraud", "weight": 1}, {"model": "other", "weight": 1}]}}},
            "do not take the same requests: input 'INPUT'",
        ),
        (
            {"traffic": {"a": {"split": [{"model": "fraud", "weight": 1}] * 2}}},
            "names a version twice",
        ),
        ({"traffic": {"a": {"split": [{"model": "ranker", "weight": 1}]}}}, "has traffic of its own"),
        ({"traffic": {"fraud": {"shadow": {"version": 5, "share": 2}}}}, "above 0 and up to 1"),
        ({"traffic": {"fraud": {"shadow": {"model": "other"}}}}, "does not take the requests"),
        ({"traffic": {"fraud": {"split": [{"version": 5, "weight": 1}], "sticky": "ip"}}}, "is neither `id`"),
        ({"extra": {}}, "extra: unknown key"),
    ],
)
def test_change_that_cannot_be_used_is_refused_and_changes_nothing(
    url: str, change: dict[str, Any], problem: str
) -> None:
    before = requests.get(url, timeout=120).json()
    response = requests.post(url, json=change, timeout=120)
    assert response.status_code == 400
    assert problem in response.json()["error"]
    assert requests.get(url, timeout=120).json() == before


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b'{"aliases": {"a": ' + b"[" * 50_000], ids=["", "list", "cut", "deep"]
)
def test_body_that_is_no_object_is_refused(url: str, body: bytes) -> None:
    assert requests.post(url, data=body, timeout=120).status_code == 400


def test_unloaded_target_is_told_by_name_and_comes_back(grpc: Any, url: str) -> None:
    assert ask(grpc, "live") == 5
    grpc.unload_model("fraud")
    with pytest.raises(triton.InferenceServerException, match="'live' stands for model 'fraud'"):
        ask(grpc, "live")
    assert not grpc.is_model_ready("live")
    grpc.load_model("fraud")
    assert ask(grpc, "live") == 5


def test_changed_file_is_read_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add_models(root)
    file = root / "traffic.yaml"
    file.write_text("aliases: {live: ranker}\n")
    (tmp_path / "server").mkdir()
    with running(root, tmp_path / "server", FLAGS) as server, client_of(server) as client:
        url = f"http://127.0.0.1:{server.rest_port}/v2/repository/traffic"
        assert answer(client, "live") == 3
        file.write_text("aliases: {live: fraud}\n")
        wait_until(lambda: answer(client, "live") == 5)
        file.write_text("aliases: {live: nowhere}\n")
        wait_until(lambda: "no model 'nowhere'" in requests.get(url, timeout=120).json()["problem"])
        file.write_text("aliases: [\n")
        wait_until(lambda: "traffic.yaml" in requests.get(url, timeout=120).json()["problem"])
        assert answer(client, "live") == 5
        assert client.is_server_ready()
        # A file whose model is still to come is in force once it is there.
        file.write_text("aliases: {live: late}\n")
        wait_until(lambda: "no model 'late'" in requests.get(url, timeout=120).json()["problem"])
        add_model(root, "late", versioned_model(9), 1)
        client.load_model("late")
        wait_until(lambda: answer(client, "live") == 9)
        assert requests.get(url, timeout=120).json()["problem"] == ""
        assert server.log.count("no model 'nowhere'") == 1
        # A file that is missing or empty changes nothing; one that says that there are no rules does.
        file.unlink()
        wait_until(lambda: "is missing" in requests.get(url, timeout=120).json()["problem"])
        file.write_text("")
        wait_until(lambda: "is empty" in requests.get(url, timeout=120).json()["problem"])
        assert answer(client, "live") == 9
        file.write_bytes(b"\xef\xbb\xbfaliases: {}\n")
        wait_until(lambda: not requests.get(url, timeout=120).json()["aliases"])
        assert server.stop() == 0
        assert "Traceback" not in server.log


# --- access ----------------------------------------------------------------------------------------------------------

ACCESS: Final = f"""
keys:
  - {{name: narrow, sha256: {digest("sk-narrow")}, models: ["mine*"],
     groups: [inference, metadata, health, model-config, statistics, model-repository, shared-memory]}}
  - {{name: both, sha256: {digest("sk-both")}, models: ["mine*", "theirs"], groups: [inference, metadata]}}
  - {{name: all, sha256: {digest("sk-all")}, groups: [metrics]}}
  - {{name: target, sha256: {digest("sk-target")}, models: ["theirs"], groups: [inference]}}
"""


def known_as(key: str) -> dict[str, str]:
    """Headers with a key; clients write others beside it."""
    return {"authorization": bearer(key).decode()}


@pytest.mark.parametrize("transport", ["gRPC", "REST"])
def test_names_are_no_way_round_the_access_rules(tmp_path: Path, transport: str) -> None:
    root = tmp_path / "models"
    add_model(root, "mine", versioned_model(1), 1)
    add_model(root, "theirs", versioned_model(2), 1)
    (root / "traffic.yaml").write_text(
        "aliases: {mine-alias: theirs, mine-own: mine}\n"
        "traffic: {mine-split: {split: [{model: mine, weight: 1}, {model: theirs, weight: 1}]}}\n"
    )
    (tmp_path / "access.yaml").write_text(ACCESS)
    (tmp_path / "server").mkdir()
    flags = [*FLAGS, "--access-file", str(tmp_path / "access.yaml")]
    with running(root, tmp_path / "server", flags) as server:
        rest = transport == "REST"
        module = httpclient if rest else triton
        client = module.InferenceServerClient(f"127.0.0.1:{server.rest_port}" if rest else server.address)

        def asks(key: str, name: str) -> int:
            return ask(client, name, module, headers={"authorization": bearer(key).decode()})

        # What one caller's request has left in the memory of plans is no way in for another.
        for _ in range(2):
            assert asks("sk-both", "mine-alias") == 2
            assert asks("sk-both", "mine-split") in (1, 2)
            assert asks("sk-narrow", "mine-own") == 1
            for key, name in (("sk-narrow", "mine-alias"), ("sk-narrow", "mine-split"), ("sk-target", "mine-alias")):
                with pytest.raises(module.InferenceServerException, match="may not use the model '" + name):
                    asks(key, name)
        headers = {"authorization": bearer("sk-narrow").decode()}
        with pytest.raises(module.InferenceServerException, match="may not use"):
            client.get_model_metadata("mine-alias", headers=headers)
        if rest:
            # The name of a region is none of a model.
            url = f"http://127.0.0.1:{server.rest_port}/v2/systemsharedmemory/region/theirs/status"
            assert requests.get(url, headers=known_as("sk-narrow"), timeout=120).status_code == 404
            url = f"http://127.0.0.1:{server.rest_port}/v2/repository/traffic"
            change = {"aliases": {"mine-new": "theirs"}}
            assert requests.post(url, json=change, headers=headers, timeout=120).status_code == 403
            assert requests.get(url, headers=headers, timeout=120).status_code == 403
            assert requests.get(url, timeout=120).status_code == 401
        client.close()


@pytest.mark.parametrize("transport", ["gRPC", "REST"])
def test_names_are_no_way_round_the_access_rules_to_a_model_that_is_loaded_first(
    tmp_path: Path, transport: str
) -> None:
    root = tmp_path / "models"
    add_model(root, "mine", versioned_model(1), 1)
    add_model(root, "theirs", versioned_model(2), 1)
    make_folder(root / "texts")
    (root / "traffic.yaml").write_text(
        "aliases: {mine-alias: theirs, mine-texts: texts}\n"
        "traffic: {mine-split: {split: [{model: theirs, weight: 1}, {model: texts, weight: 1}]}}\n"
    )
    (tmp_path / "access.yaml").write_text(ACCESS)
    (tmp_path / "server").mkdir()
    flags = ["--model-control-mode", "on-demand", "--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"]
    with running(root, tmp_path / "server", [*flags, "--access-file", str(tmp_path / "access.yaml")]) as server:
        rest = transport == "REST"
        module = httpclient if rest else triton
        client = module.InferenceServerClient(f"127.0.0.1:{server.rest_port}" if rest else server.address)

        def loads() -> int:
            url = f"http://127.0.0.1:{server.http_port}/metrics"
            text = requests.get(url, headers=known_as("sk-all"), timeout=120).text
            return int(text.partition("\ntoutates_on_demand_loads_total ")[2].partition("\n")[0])

        for name in ("mine-alias", "mine-split"):
            for call in (
                lambda name: client.get_model_metadata(name, headers=known_as("sk-narrow")),
                lambda name: client.get_model_config(name, headers=known_as("sk-narrow")),
                lambda name: client.is_model_ready(name, "1", headers=known_as("sk-narrow")),
                lambda name: ask(client, name, module, headers=known_as("sk-narrow")),
            ):
                try:
                    assert call(name) is False, "an answer of REST about readiness, which has no text"
                except module.InferenceServerException as refused:
                    assert f"may not use the model '{name}'" in str(refused)  # noqa: PT017 - or none is raised
        if rest:
            url = f"http://127.0.0.1:{server.rest_port}"
            for name in ("mine-texts", "mine-texts:query"):
                body = {"model": name, "input": ["a"]}
                refusal = requests.post(f"{url}/v1/embeddings", json=body, headers=known_as("sk-narrow"), timeout=120)
                assert (refusal.status_code, "may not use" in refusal.text) == (403, True)
            url += "/v2/models/mine-alias/versions/1/ready"
            assert requests.get(url, headers=known_as("sk-narrow"), timeout=120).status_code == 403
        assert client.get_model_metadata("mine", headers=known_as("sk-both"))
        wait_until(loads)
        assert loads() == 1, "nothing is loaded for those who may not use it"
        assert client.get_model_metadata("mine-alias", headers=known_as("sk-both"))
        wait_until(lambda: loads() == 2)
        client.close()


def test_change_is_refused_where_models_are_not_changed_by_request(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add_model(root, "mine", versioned_model(1), 1)
    (tmp_path / "server").mkdir()
    with running(root, tmp_path / "server", ["--http-addr", "127.0.0.1:0"]) as server:
        url = f"http://127.0.0.1:{server.rest_port}/v2/repository/traffic"
        response = requests.post(url, data=json.dumps({"aliases": {"a": "mine"}}), timeout=120)
        assert "not allowed" in response.json()["error"]
        assert requests.get(url, timeout=120).json() == {"aliases": {}, "traffic": {}, "problem": ""}

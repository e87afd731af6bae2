"""What an operator can choose for REST, and models that change while it is served."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.control import EXPLICIT
from tests.e2e.http import get, peer_of, post
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

HTTP = ("--http-addr", "127.0.0.1:0")
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def client_of(server: ServerProcess) -> Any:
    return http.InferenceServerClient(f"127.0.0.1:{server.rest_port}")


def answers(client: Any, model: str, values: Any = ROWS) -> Any:
    given = http.InferInput("INPUT", list(values.shape), http.np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(values)
    return client.infer(model, [given]).as_numpy("OUTPUT")


def test_models_are_loaded_changed_and_unloaded(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_model(models, "versions", versioned_model(1), 1)
    numbers = ROWS.astype(np.int32)
    with running(models, tmp_path, [*HTTP, *EXPLICIT]) as server, client_of(server) as client:
        (listed,) = client.get_model_repository_index()
        assert listed == {"name": "versions"}
        with pytest.raises(http.InferenceServerException, match="unknown model: 'versions'"):
            answers(client, "versions", numbers)
        client.load_model("versions")
        first = answers(client, "versions", numbers)
        np.testing.assert_array_equal(answers(client, "versions", numbers), first)
        client.load_model("versions", config="{}", files={"file:7/model.onnx": versioned_model(2)})
        assert not np.array_equal(answers(client, "versions", numbers), first)
        client.unload_model("versions")
        wait_until(lambda: not client.is_model_ready("versions"))
        with pytest.raises(http.InferenceServerException, match="none"):
            client.load_model("none")
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_another_version_policy_leaves_versions_that_stay_alone(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for version in (1, 2, 3):
        add_model(models, "versions", versioned_model(version), version)
    numbers = ROWS.astype(np.int32)

    def load(policy: str) -> None:
        (models / "versions" / "config.pbtxt").write_text(f"version_policy {{ {policy} }}\n")
        client.load_model("versions")

    def states() -> list[tuple[str, str]]:
        return [(one["version"], one["state"]) for one in client.get_model_repository_index() if "state" in one]

    def counts() -> dict[str, int]:
        found = client.get_inference_statistics("versions")["model_stats"]
        return {one["version"]: one["inference_count"] for one in found}

    with running(models, tmp_path, [*HTTP, *EXPLICIT]) as server, client_of(server) as client:
        load("specific { versions: [1, 2] }")
        answers(client, "versions", numbers)
        assert counts() == {"1": 0, "2": 2}
        load("all {}")
        assert counts() == {"1": 0, "2": 2, "3": 0}  # it would begin at 0 if the version had been loaded again
        assert client.get_model_config("versions", "2")["version_policy"] == {"all": {}}
        load("specific { versions: [2] }")
        assert counts() == {"2": 2}
        assert client.get_model_config("versions")["version_policy"] == {"specific": {"versions": [2]}}
        assert ("2", "READY") in states()
        (models / "versions" / "4").mkdir()
        (models / "versions" / "4" / "model.onnx").write_bytes(b"nonsense")
        with pytest.raises(http.InferenceServerException):
            load("specific { versions: [2, 4] }")  # what is not applied is not shown
        assert client.get_model_config("versions")["version_policy"] == {"specific": {"versions": [2]}}
        load("specific { versions: [2] } } max_batch_size: 5 dynamic_batching {")
        assert counts() == {"2": 0}


def test_whoever_asks_for_many_pages_does_not_hold_up_changes_of_models(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_model(models, "versions", versioned_model(1), 1)
    with running(models, tmp_path, [*HTTP, *EXPLICIT]) as server, client_of(server) as client, ExitStack() as stack:
        peers = [stack.enter_context(peer_of(server.rest_port)) for _ in range(8)]
        for _ in range(5):
            for peer in peers:
                peer.sock.sendall(get("/metrics") * 64)
            client.load_model("versions")
            client.unload_model("versions")


def test_restricted_endpoints_want_their_header(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "dynamic", "--http-restricted-api", "metadata,model-repository:X-Key=secret"]
    with running(repository, tmp_path, flags) as server, peer_of(server.rest_port) as peer:
        refusal = {"error": "This API is restricted, expecting header 'X-Key'"}
        for request in (get("/v2"), get("/v2", "x-key: wrong"), post("/v2", "{}"), post("/v2/repository/index", "")):
            answer = peer.ask(request)
            assert (answer.status, answer.document) == (403, refusal)
        assert peer.ask(get("/v2", "x-key: secret")).document["name"] == "triton"
        assert peer.ask(get("/v2/health/live")).status == 200
        assert "secret" not in server.log


def test_what_is_restricted_over_grpc_is_not_open_over_rest(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "dynamic", "--grpc-restricted-protocol", "metadata:key=secret"]
    with running(repository, tmp_path, flags) as server:
        for port in (server.port, server.rest_port):
            with peer_of(port) as peer:
                assert peer.ask(get("/v2")).status == 403
                assert peer.ask(get("/v2", "triton-grpc-protocol-key: secret")).status == 200


def test_header_fields_are_forwarded_and_reserved_ones_refused(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "dynamic", "--http-header-forward-pattern", "^(x-|priority)"]
    body = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [1]}]})
    path = "/v2/models/dynamic/infer"
    with running(repository, tmp_path, flags) as server, peer_of(server.rest_port) as peer:
        for _ in range(2):
            assert peer.ask(post(path, body, "X-Tenant: a")).status == 200
            answer = peer.ask(post(path, body, "priority: 1"))
            assert answer.status == 400
            assert "Header 'priority' is reserved for Triton usage" in answer.document["error"]
        wait_until(lambda: "X-Tenant" in server.log)  # models get no parameters, and the log says so


def test_json_above_the_limit_is_refused_before_it_is_read(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "dynamic", "--http-max-input-size", "100"]
    text = "request JSON size of 101 bytes exceeds the maximum allowed input size of 100 bytes"
    with running(repository, tmp_path, flags) as server:
        for endpoint in ("infer", "generate"):
            with peer_of(server.rest_port) as peer:
                answer = peer.ask(post(f"/v2/models/dynamic/{endpoint}", " " * 101))
                assert answer.status == 400
                assert text in answer.document["error"]
                assert peer.ended()


@pytest.mark.parametrize("own_port", [True, False])
def test_metrics_and_health_are_there_as_well(repository: Path, tmp_path: Path, own_port: bool) -> None:
    with running(repository, tmp_path, [*HTTP, "--load-models", "dynamic"]) as server, client_of(server) as client:
        answers(client, "dynamic")
        with peer_of(server.rest_port if own_port else server.port) as peer:
            assert (peer.ask(get("/health/live")).body, peer.ask(get("/health/ready")).body) == (b"live\n", b"ready\n")
            text = peer.ask(get("/metrics")).body.decode()
            assert 'nv_inference_request_success{model="dynamic",version="1"} 1' in text
            assert peer.ask(post("/metrics", "")).status == 405


def test_the_access_log_has_requests_over_rest(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "dynamic", "--access-log-rate", "1"]
    with running(repository, tmp_path, flags) as server, client_of(server) as client:
        answers(client, "dynamic")
        with pytest.raises(http.InferenceServerException):
            answers(client, "none")
        wait_until(lambda: "status=OK" in server.log and "status=NOT_FOUND" in server.log)


def test_requests_in_flight_are_counted_until_they_are_answered_or_refused(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "dynamic", "--max-inflight-requests", "1"]
    large = {"name": "INPUT", "shape": [1, 40_000], "datatype": "FP32", "data": [1.5] * 40_000}
    path = "/v2/models/dynamic/infer"
    with running(repository, tmp_path, flags) as server, peer_of(server.rest_port) as peer:
        for _ in range(3):
            assert peer.ask(post(path, json.dumps({"inputs": [large]}))).status == 200
            answer = peer.ask(post(path, json.dumps({"inputs": [{**large, "shape": [1, 39_999]}]})))
            assert answer.status == 500
            assert peer.ask(post(path, "{}")).status == 500
        with client_of(server) as client:
            answers(client, "dynamic")
        peer.sock.sendall(post(path, json.dumps({"inputs": [large]})) * 2)  # the second while the first is read
        assert [peer.read().status for _ in range(2)] == [200, 503]

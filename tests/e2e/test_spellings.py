"""Names of models whose letters are composed in one way in the repository, and in another by clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal
from unicodedata import normalize
from urllib.parse import quote

import grpc
import numpy as np
import pytest

from tests.access.tokens import bearer, digest
from tests.e2e.control import EXPLICIT
from tests.e2e.health import request_of, status_of
from tests.e2e.http import get, peer_of, post
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import run, running
from tests.e2e.python_models import add_model as add_python_model
from tests.e2e.support import SERVICE, Tensor, call, channel_to, infer, outputs_of, pb, request
from tests.ensembles import pbtxt
from tests.waiting import wait_until

Form = Literal["NFC", "NFD"]

NAME: Final = "café"
FORMS: Final[tuple[Form, ...]] = ("NFC", "NFD")
ROWS: Final = np.arange(8, dtype=np.int32).reshape(2, 4)
OTHER: Final[dict[Form, Form]] = {"NFC": "NFD", "NFD": "NFC"}
CALLS: Final = """
def execute(self, requests):
    responses = []
    for request in requests:
        inner = pb_utils.Tensor("INPUT", input_of(request))
        call = pb_utils.InferenceRequest(model_name=%r, requested_output_names=["OUTPUT"], inputs=[inner])
        answered = call.exec()
        if answered.has_error():
            responses.append(pb_utils.InferenceResponse(error=answered.error()))
        else:
            responses.append(answer(request, pb_utils.get_output_tensor_by_name(answered, "OUTPUT").as_numpy()))
    return responses
"""


def asked(name: str) -> Any:
    return request(name, Tensor("INPUT", "INT32", (2, 4), ROWS.tobytes()))


def states(channel: Any) -> list[str]:
    answer = call(channel, SERVICE + "RepositoryIndex", b"")
    return [one.state for one in pb.RepositoryIndexResponse.FromString(answer).models]


def body() -> str:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [2, 4], "data": ROWS.ravel().tolist()}
    return json.dumps({"inputs": [tensor]})


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_found_however_its_letters_are_composed(form: Form, tmp_path: Path) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    own, others = normalize(form, NAME), normalize(OTHER[form], NAME)
    add_model(repository, own, versioned_model(1), 1)
    step = others, {"INPUT": "IN"}, {"OUTPUT": "OUT"}
    ensemble = pbtxt(["IN INT32 [4]"], ["OUT INT32 [4]"], [step])
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ensemble)
    with (
        running(repository, log, ["--http-addr", "127.0.0.1:0"]) as process,
        channel_to(process.address) as channel,
        peer_of(process.rest_port) as peer,
    ):
        for name in (own, others, own, others):
            response = infer(channel, asked(name))
            np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], ROWS + 1)
            assert response.model_name == own
            stream = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([asked(name).SerializeToString()]))
            assert pb.ModelStreamInferResponse.FromString(next(stream)).infer_response.model_name == own
            path = f"/v2/models/{quote(name)}"
            assert peer.ask(post(f"{path}/infer", body())).document["model_name"] == own
            for end in ("", "/ready", "/config", "/stats", "/versions/1/ready"):
                answer = peer.ask(get(path + end))
                assert answer.status == 200, (end, answer)
            assert peer.ask(get(path)).document["name"] == own
            stats = call(channel, SERVICE + "ModelStatistics", pb.ModelStatisticsRequest(name=name).SerializeToString())
            [statistics] = pb.ModelStatisticsResponse.FromString(stats).model_stats
            assert statistics.name == own
            check = request_of(name)
            assert status_of(call(channel, "/grpc.health.v1.Health/Check", check)) == "SERVING"
        assert statistics.inference_stats.success.count == 12
        given = request("ensemble", Tensor("IN", "INT32", (2, 4), ROWS.tobytes()))
        np.testing.assert_array_equal(outputs_of(infer(channel, given))["OUT"], ROWS + 1)
        assert peer.ask(get("/v2/models/cafe")).status == 404


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_loaded_and_unloaded_however_its_letters_are_composed(form: Form, tmp_path: Path) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    own, others = normalize(form, NAME), normalize(OTHER[form], NAME)
    add_model(repository, own, versioned_model(1), 1)
    with running(repository, log, EXPLICIT) as process, channel_to(process.address) as channel:
        for _ in range(2):
            load = pb.RepositoryModelLoadRequest(model_name=others).SerializeToString()
            call(channel, SERVICE + "RepositoryModelLoad", load)
            answer = call(channel, SERVICE + "RepositoryIndex", b"")
            [model] = pb.RepositoryIndexResponse.FromString(answer).models
            assert (model.name, model.state) == (own, "READY")
            assert infer(channel, asked(others)).model_name == own
            call(channel, SERVICE + "RepositoryModelUnload", load)
            wait_until(lambda: states(channel) == ["UNAVAILABLE"])


def test_access_knows_a_model_however_its_letters_are_composed(tmp_path: Path) -> None:
    repository, access, log = tmp_path / "models", tmp_path / "access.yaml", tmp_path / "log"
    log.mkdir()
    for name in (NAME, "thé"):
        add_model(repository, normalize("NFC", name), versioned_model(1), 1)
    access.write_text(
        f"keys:\n  - {{name: own, sha256: {digest('sk-own')}, groups: [inference, metadata], models: ['café*']}}\n"
    )
    key = bearer("sk-own").decode()
    flags = ["--http-addr", "127.0.0.1:0", "--access-file", str(access)]
    with (
        running(repository, log, flags) as process,
        channel_to(process.address) as channel,
        peer_of(process.rest_port) as peer,
    ):
        for form in FORMS:
            own, theirs = normalize(form, NAME), normalize(form, "thé")
            metadata = [("authorization", key)]
            assert infer(channel, asked(own), metadata=metadata).model_name == normalize("NFC", NAME)
            with pytest.raises(grpc.RpcError) as caught:
                infer(channel, asked(theirs), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            field = f"Authorization: {key}"
            for name, status in ((own, 200), (theirs, 403)):
                assert peer.ask(post(f"/v2/models/{quote(name)}/infer", body(), field)).status == status
                assert peer.ask(get(f"/v2/models/{quote(name)}", field)).status == status


def test_of_two_folders_of_one_name_the_second_is_reported_and_both_are_served(tmp_path: Path) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    for number, form in enumerate(FORMS, 1):
        add_model(repository, normalize(form, NAME), versioned_model(number), 1)
    with running(repository, log) as process, channel_to(process.address) as channel:
        for number, form in enumerate(FORMS, 1):
            answer = outputs_of(infer(channel, asked(normalize(form, NAME))))["OUTPUT"]
            np.testing.assert_array_equal(answer, ROWS + number)
        assert process.log.count("how its letters are composed") == 1
        assert ascii(normalize("NFC", NAME)) in process.log
    checked = run("check", str(repository)).stdout
    assert checked.count("how its letters are composed") == 1
    assert ascii(normalize("NFC", NAME)) in checked


def test_a_call_of_a_python_model_finds_it_too(tmp_path: Path) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    add_model(repository, normalize("NFD", NAME), versioned_model(1), 1)
    add_python_model(repository, "calls", CALLS % normalize("NFC", NAME), datatype="INT32")
    with running(repository, log) as process, channel_to(process.address) as channel:
        given = request("calls", Tensor("x", "INT32", (2, 4), ROWS.tobytes()))
        np.testing.assert_array_equal(outputs_of(infer(channel, given))["y"], ROWS + 1)


@pytest.mark.parametrize("form", FORMS)
def test_aliases_and_traffic_are_found_and_find_models_however_their_letters_are_composed(
    form: Form, tmp_path: Path
) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    add_model(repository, normalize(form, NAME), versioned_model(1), 1)
    # Each name of the rules in the one form, and what it stands for in the other.
    model = normalize(OTHER[form], NAME)
    rules = {
        "aliases": {normalize(form, "thé"): model, normalize(form, "crème"): normalize(OTHER[form], "thé")},
        "traffic": {normalize(OTHER[form], "thé"): {"split": [{"model": model, "version": 1, "weight": 1}]}},
    }
    (repository / "traffic.yaml").write_text(json.dumps(rules, ensure_ascii=False))
    with (
        running(
            repository, log, ["--http-addr", "127.0.0.1:0", "--model-control-mode", "explicit", "--load-model", "*"]
        ) as process,
        channel_to(process.address) as channel,
        peer_of(process.rest_port) as peer,
    ):
        for name in ("thé", "crème"):
            for spelled in (normalize("NFC", name), normalize("NFD", name)):
                np.testing.assert_array_equal(outputs_of(infer(channel, asked(spelled)))["OUTPUT"], ROWS + 1)
                assert peer.ask(post(f"/v2/models/{quote(spelled)}/infer", body())).status == 200
                assert peer.ask(get(f"/v2/models/{quote(spelled)}/ready")).status == 200
        # A change names what it takes away or replaces in any form.
        change = json.dumps({"aliases": {normalize(OTHER[form], "crème"): None}})
        assert peer.ask(post("/v2/repository/traffic", change)).status == 200
        assert peer.ask(get(f"/v2/models/{quote(normalize(form, 'crème'))}/ready")).status == 404
        twice = json.dumps({"aliases": {normalize(one, "été"): model for one in FORMS}})
        refused = peer.ask(post("/v2/repository/traffic", twice))
        assert refused.status == 400
        assert "twice: its letters are composed otherwise" in refused.document["error"]

"""The files for KServe and Knative: KServe's own models of its objects know each key, and the server each argument."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.support import DEPLOY, ROOT
from toutates.command.main import parse_options


def objects(folder: str) -> list[dict[str, Any]]:
    return [item for path in sorted((DEPLOY / folder).glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]


def containers(item: Any) -> Iterator[dict[str, Any]]:
    """The containers of an object, and the models of InferenceServices, which are such in all but name."""
    if isinstance(item, dict):
        for key, value in item.items():
            if key == "containers":
                yield from value
            elif key == "model":
                yield value
            else:
                yield from containers(value)


def arguments(item: dict[str, Any]) -> list[str]:
    [container] = containers(item["spec"])
    return [argument.replace("{{.Name}}", "digits") for argument in container["args"]]


def unknown_to_kserve(items: list[dict[str, Any]]) -> str:
    command = [sys.executable, str(Path(__file__).with_name("kserve_keys.py"))]
    done = subprocess.run(
        command, input=json.dumps(items), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(find_spec("kserve") is None, reason="kserve is not installed")
def test_kserve_knows_each_key() -> None:
    wrong = deepcopy(objects("kserve")[0])
    wrong["spec"]["predictor"]["model"] |= {"modelformat": {"name": "onnx"}, "args": "--a"}
    wrong["metadata"]["name"] = "wrong"
    assert unknown_to_kserve([*objects("kserve"), wrong]).splitlines() == [
        "wrong.spec.predictor.model.modelformat: there is no such key in V1beta1ModelSpec",
        "wrong.spec.predictor.model.args: a list is wanted",
    ]


def test_the_server_takes_the_arguments_of_the_runtimes() -> None:
    ours, tritons = (item for item in objects("kserve") if item["kind"] == "ClusterServingRuntime")
    for item in (ours, tritons):
        options = parse_options(arguments(item))
        assert options.http_addr is not None
        assert options.metrics_addr is not None
        # What KServe's own runtimes listen on, and where its annotations send Prometheus.
        assert (options.http_addr.port, options.grpc_addr.port) == (8080, 9000)
        assert item["spec"]["annotations"]["prometheus.kserve.io/port"] == str(options.metrics_addr.port)
        assert options.model_repositories == (Path("/mnt/models"),)
    assert ours["metadata"]["name"] == "toutates"


def test_the_services_ask_for_a_runtime_a_format_and_a_port_that_there_are() -> None:
    runtime = next(item for item in objects("kserve") if item["metadata"]["name"] == "toutates")
    formats = {entry["name"] for entry in runtime["spec"]["supportedModelFormats"]}
    options = parse_options(arguments(runtime))
    assert options.http_addr is not None
    ports = {"grpc-v2": options.grpc_addr.port, "v2": options.http_addr.port}
    services = [item for item in objects("kserve") if item["kind"] == "InferenceService"]
    assert len(services) == 3
    for service in services:
        model = service["spec"]["predictor"]["model"]
        assert model["runtime"] == "toutates"
        assert model["modelFormat"]["name"] in formats
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        [port] = model["ports"]
        assert port["containerPort"] == ports[model["protocolVersion"]]


def test_knatives_one_port_is_that_of_grpc_which_speaks_rest_too() -> None:
    [service] = objects("knative")
    options = parse_options(arguments(service))
    [container] = containers(service["spec"])
    assert container["ports"] == [{"name": "h2c", "containerPort": options.grpc_addr.port}]
    assert options.http_addr is None
    assert json.dumps(service).count(str(options.grpc_addr.port)) == 3  # flag, port and probe

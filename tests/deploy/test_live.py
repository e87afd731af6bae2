"""A server under load, watched by a real Prometheus that is configured as the compose file's is."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import yaml

from tests.deploy.support import DASHBOARDS, DEPLOY, ROOT, Expression, alerts, expressions, read_yaml, spec_of
from tests.e2e.process import ServerProcess, environment, running
from tests.e2e.support import triton
from tests.ports import free_port
from toutates.observe.metrics.spec import Presence

#: By this is divided, and it stands still: this server has no models on S3. GPUs are the other exception.
STANDS_STILL: Final = "toutates_s3_download_seconds_total"
#: The window of rates; ten scrapes, so that a busy machine may miss some.
WINDOW: Final = "10s"
_SECONDS: Final = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The example models, as the compose file serves them."""
    models = tmp_path_factory.mktemp("models")
    script = [sys.executable, str(ROOT / "examples" / "make_repository.py"), str(models)]
    subprocess.run(script, env=environment(), check=True, capture_output=True, timeout=120)
    with running(models, tmp_path_factory.mktemp("server"), ["--metrics-addr", "127.0.0.1:0"]) as process:
        yield process


@pytest.fixture(scope="module")
def metrics(server: ServerProcess) -> str:
    """Where its HTTP side listens, host:port."""
    found = re.search(r"metrics on http://([\d.]+:\d+)/metrics", server.log)
    assert found is not None, server.log
    return found[1]


@contextmanager
def load(server: ServerProcess) -> Iterator[None]:
    """Requests to three models, one after the other, as long as the block lasts."""
    mlp = triton.InferInput("INPUT", [3, 64], "FP32")
    mlp.set_data_from_numpy(np.zeros((3, 64), np.float32))
    row = np.zeros((1, 16), np.int32)
    simple = [triton.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in range(2)]
    for tensor in simple:
        tensor.set_data_from_numpy(row)
    stopping = threading.Event()
    failed: list[Exception] = []

    def send() -> None:
        try:
            with triton.InferenceServerClient(server.address) as client:
                while not stopping.wait(0.001):
                    client.infer("mlp", [mlp])
                    client.infer("simple", simple)
                    with pytest.raises(triton.InferenceServerException):
                        client.infer("nobody", [mlp])
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(_SECONDS)
    assert not failed, failed


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus with our configuration, in a hurry; yields its URL."""
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus: tests/peers.sh")
    config = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *flags], cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://{address}/api/v1/"
    finally:
        process.terminate()
        process.wait(_SECONDS)


def ask(url: str, **parameters: str) -> Any:
    data = urllib.parse.urlencode(parameters).encode() if parameters else None
    with urllib.request.urlopen(url, data, timeout=120) as response:
        return json.load(response)["data"]


def eventually(missing: Callable[[], object]) -> None:
    """Wait until nothing is missing any more."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            found = missing()
        except OSError as error:  # Prometheus does not listen yet
            found = error
        if not found:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def test_a_scrape_has_every_metric_that_dashboards_and_alerts_ask_for(metrics: str) -> None:
    every = [one for name in DASHBOARDS for one in expressions(name)]
    every += [Expression(name, rule["expr"]) for name, rule in alerts().items()]
    asked = set().union(*(one.metrics() for one in every)) - {"up"}

    def missing() -> set[str]:
        text = urllib.request.urlopen(f"http://{metrics}/metrics", timeout=120).read().decode()
        there = {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
        return {name for name in asked - there if not of_gpu(name)}

    eventually(missing)  # a worker has a CPU clock once its thread runs


def of_gpu(metric: str) -> bool:
    spec = spec_of(metric)
    return spec is not None and spec.presence not in (Presence.ALWAYS, Presence.MODELS)


def test_prometheus_takes_the_rules_and_every_query_has_an_answer(
    server: ServerProcess, metrics: str, tmp_path: Path
) -> None:
    # Annotations mark what happens seldom.
    queries = [one for name in DASHBOARDS for one in expressions(name) if one.legend or "$__rate" in one.text]
    queries = [one for one in queries if not any(map(of_gpu, one.metrics()))]
    assert len(queries) > 60

    def without_data(url: str) -> list[str]:
        missing = []
        for one in queries:
            values = [series["value"][1] for series in ask(url + "query", query=one.filled(WINDOW))["result"]]
            is_exempt = STANDS_STILL in one.metrics()
            if not values or not (is_exempt or any(not math.isnan(float(value)) for value in values)):
                missing.append(f"{one.where}: {one.text}")
        return missing

    def unhealthy_rules(url: str) -> list[Any]:
        rules = [rule for group in ask(url + "rules")["groups"] for rule in group["rules"]]
        return [rule for rule in rules if rule["health"] != "ok"] if len(rules) == len(alerts()) else ["missing"]

    with prometheus(tmp_path, metrics) as url, load(server):
        eventually(lambda: [one for one in ask(url + "targets")["activeTargets"] if one["health"] != "up"])
        eventually(lambda: unhealthy_rules(url))
        eventually(lambda: without_data(url))

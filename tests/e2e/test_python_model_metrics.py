"""Metrics that Python models keep by themselves, on the server's /metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.waiting import wait_until

METHODS = """
def initialize(self, args):
    name = args["model_name"]
    family = pb_utils.MetricFamily
    self.families = [
        family("rows_seen", "Rows,\\nof all.", family.COUNTER),
        family("depth", "Now.", family.GAUGE),
        family("sizes", "Of rows.", family.HISTOGRAM),
        family("toutates_info", "Not mine.", family.COUNTER),
        family("sizes_count", "Not mine either.", family.COUNTER),
    ]
    self.rows = self.families[0].Metric({"of": name, "odd": 'a"b\\\\'})
    self.depth = self.families[1].Metric({"of": name})
    self.sizes = self.families[2].Metric({"of": name}, buckets=[1, 2.5])
    self.stolen = [one.Metric() for one in self.families[3:]]
    self.rows.increment(1)

def execute(self, requests):
    for request in requests:
        for number in input_of(request)[:, 0]:
            self.rows.increment(float(number))
            self.depth.set(number)
            self.sizes.observe(number)
    return [answer(request, np.full_like(input_of(request), os.getpid())) for request in requests]
"""


def ask(server: ServerProcess, model: str, number: float) -> int:
    """Send a number to a model; returns the process that has answered."""
    rows = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number] * 4}
    return int(post(server, f"/v2/models/{model}/infer", {"inputs": [rows]})["outputs"][0]["data"][0])


def post(server: ServerProcess, path: str, said: object) -> dict[str, list[dict[str, list[float]]]]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.rest_port}{path}", json.dumps(said).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or b"{}")  # type: ignore[no-any-return]


def scrape(server: ServerProcess, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text: str = answer.read().decode()
    return text


def value(server: ServerProcess, start: str) -> float | None:
    """The value of the sample whose line begins so; None if there is none."""
    for line in scrape(server).splitlines():
        if line.startswith(start + " "):
            return float(line.rpartition(" ")[2])
    return None


@contextmanager
def serving(root: Path, folder: Path, *flags: str) -> Iterator[ServerProcess]:
    addresses = ["--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"]
    control = ["--model-control-mode", "explicit", "--load-model", "*"]
    with running(root, folder, flags=[*addresses, *control, *flags]) as process:
        yield process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for isolation in ("process", "thread"):
        add_model(root, isolation, METHODS, isolation=isolation, more="instance_group { count: 2 }")
    with serving(root, tmp_path_factory.mktemp("log")) as process:
        yield process


@pytest.mark.parametrize("model", ["process", "thread"])
def test_metrics_of_a_model_are_added_up_over_its_instances(server: ServerProcess, model: str) -> None:
    rows = f'rows_seen{{odd="a\\"b\\\\",of="{model}"}}'
    wait_until(lambda: value(server, rows) == 2)
    for number in (0.5, 1, 2, 3):
        ask(server, model, number)
    wait_until(lambda: value(server, rows) == 8.5)
    wait_until(lambda: value(server, f'sizes_bucket{{le="2.5",of="{model}"}}') == 3)
    assert value(server, f'sizes_bucket{{le="1.0",of="{model}"}}') == 2
    assert value(server, f'sizes_bucket{{le="+Inf",of="{model}"}}') == 4
    assert value(server, f'sizes_sum{{of="{model}"}}') == 6.5


def test_both_formats_can_be_read_and_no_name_of_the_servers_is_taken(server: ServerProcess) -> None:
    plain = {family.name: family for family in parse_text(scrape(server))}
    assert plain["depth"].type == "gauge"
    assert plain["sizes"].type == "histogram"
    assert {sample.labels["version"] for sample in plain["toutates_info"].samples} != set()
    text = scrape(server, "application/openmetrics-text; version=1.0.0")
    families = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {"depth", "sizes", "rows_seen"} <= families
    assert text.count("# TYPE toutates") > 3
    assert "Not mine" not in text
    wait_until(lambda: server.log.count("metric 'toutates_info' of model 'process' is left out") == 1)


def test_what_a_process_has_counted_stays_when_it_dies_and_goes_with_the_version(server: ServerProcess) -> None:
    name = 'sizes_count{of="process"}'
    before = value(server, name)
    assert before is not None
    pid = ask(server, "process", 1)
    wait_until(lambda: value(server, name) == before + 1)
    os.kill(pid, signal.SIGKILL)
    ask(server, "process", 1)
    wait_until(lambda: re.search("its process is (gone|started again)", server.log))
    wait_until(lambda: value(server, name) == before + 2)
    for model in ("process", "thread"):
        post(server, f"/v2/repository/models/{model}/unload", {})
        wait_until(lambda of=model: value(server, f'depth{{of="{of}"}}') is None)  # type: ignore[misc]
    assert "sizes" not in scrape(server)


def test_metrics_are_added_up_over_the_processes_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "log").mkdir()
    add_model(tmp_path / "models", "process", METHODS)
    with serving(tmp_path / "models", tmp_path / "log", "--processes", "2") as two:
        wait_until(lambda: _rows(two) == 2)
        ask(two, "process", 3)
        wait_until(lambda: _rows(two) == 5)


def _rows(server: ServerProcess) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in scrape(server).splitlines() if line.startswith("rows_seen{"))

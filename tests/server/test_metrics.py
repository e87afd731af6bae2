"""What a running server says of itself: the metrics' text, read by the parsers of prometheus_client and by promtool."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.held import Runs
from tests.e2e.models import add_model, versioned_model
from tests.e2e.wire import Client, client_of, framed
from tests.observe.metrics.support import PARSERS, Nvml
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.exposition import Exposition, Format
from toutates.observe.metrics.gpu import GpuGauges
from toutates.observe.metrics.spec import Kind, Presence
from toutates.protocol.grpc_service_pb2 import (
    ModelInferRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
)

SERVICE: Final = "/inference.GRPCInferenceService/"
#: Names that break Prometheus's rules, and are Triton's, for the sake of whose users they are there.
TRITONS_LINT: Final = {
    **{
        f"nv_inference_{part}_duration_us": {"_total", "abbreviated units"}
        for part in ("request", "queue", "compute_input", "compute_infer", "compute_output")
    },
    "nv_inference_request_success": {"_total"},
    "nv_inference_request_failure": {"_total"},
    "nv_inference_count": {"_total", "_count"},
    "nv_inference_exec_count": {"_total", "_count"},
    "nv_inference_pending_request_count": {"_count"},
    "nv_energy_consumption": {"_total"},
}
#: How each of those complaints begins.
LINT: Final = {
    'counter metrics should have "_total" suffix': "_total",
    "metric names should not contain abbreviated units": "abbreviated units",
    'non-histogram and non-summary metrics should not have "_count" suffix': "_count",
}

#: Metrics of what the models here do not use.
ELSEWHERE: Final = (
    Presence.PADDED,
    Presence.TARGETED,
    Presence.TEXT_MODELS,
    Presence.TEXTS,
    Presence.CACHED,
    Presence.CACHE,
    Presence.TRAFFIC,
    Presence.SHADOWS,
    Presence.DEMAND,
)


class Scrape:
    """One text, read; by name of the sample and labels in the order of their names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE ")}
        self.values: dict[tuple[str, ...], float] = {}
        self.labels: dict[str, set[str]] = {}
        for family in PARSERS[Format.TEXT](text):
            for sample in family.samples:
                name = sample.name
                if name not in CATALOGUE and name.removesuffix("_total") in CATALOGUE:
                    name = name.removesuffix("_total")  # which this parser gives Triton's counters
                key = (name, *(sample.labels[label] for label in sorted(sample.labels)))
                assert key not in self.values, f"{key} is there twice"
                self.values[key] = sample.value
                self.labels.setdefault(name, set()).update(sample.labels)

    def __call__(self, name: str, *labels: str) -> float:
        return self.values[name, *labels]


class Scraper:
    """Reads the metrics of a server in this process as its HTTP side does."""

    def __init__(self, inside: Inside, gpus: GpuGauges | None = None) -> None:
        assert inside.server.view is not None
        self._exposition = Exposition(inside.server.view, gpus=gpus)

    def text(self, form: Format = Format.TEXT) -> str:
        return b"".join(self._exposition.render(form)).decode()

    def __call__(self) -> Scrape:
        return Scrape(self.text())


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    """A few of the models, two of which have several versions or fail as they are told."""
    for name in ("slow", "gather", "versions", "mlp", "fixed", "texts"):
        os.symlink(repository / name, tmp_path / name)
    return tmp_path


def infer(model: str, datatype: str, values: Any, **fields: Any) -> bytes:
    array = np.array(values, {"INT64": np.int64, "INT32": np.int32, "FP32": np.float32}[datatype])
    message = ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="INPUT", datatype=datatype, shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    return message.SerializeToString()


def versions(rows: int, version: str = "") -> bytes:
    return infer("versions", "INT32", np.zeros((rows, 4)), model_version=version)


def slow(steps: int, rows: int = 1) -> bytes:
    return infer("slow", "INT64", np.full((rows, 1), steps))


def status_of(client: Client, message: bytes, method: str = "ModelInfer") -> str:
    """A call's grpc-status."""
    return client.call(SERVICE + method, message).status[0]


def statistics_of(client: Client, model: str, version: str = "") -> ModelStatistics:
    answer = client.call(
        SERVICE + "ModelStatistics", ModelStatisticsRequest(name=model, version=version).SerializeToString()
    )
    assert answer.status[0] == "0"
    [statistics] = ModelStatisticsResponse.FromString(answer.data[5:]).model_stats
    return statistics


def some_traffic(inside: Inside) -> None:
    with client_of(inside.port) as client:
        assert status_of(client, versions(3)) == "0"
        assert status_of(client, versions(5, "1")) == "0"
        assert status_of(client, infer("gather", "INT64", [[99]])) != "0"
        assert status_of(client, infer("nobody", "INT64", [[1]])) == "5"


# --- the list


def test_a_scrape_has_what_the_catalogue_has_in_both_formats(models: Path) -> None:
    def visit(inside: Inside) -> None:
        gpus = GpuGauges(Nvml())
        assert gpus.read()
        scraper = Scraper(inside, gpus)
        some_traffic(inside)
        scrape = scraper()
        elsewhere = (*ELSEWHERE, Presence.PROCESSES)
        shown = {name: one for name, one in CATALOGUE.items() if one.presence not in elsewhere}
        kinds = {name: "gauge" if one.kind is Kind.INFO else one.kind.value for name, one in shown.items()}
        assert scrape.types == kinds
        for name, spec in shown.items():
            of_histogram = {"le"} if spec.kind is Kind.HISTOGRAM else set()
            sample = f"{name}_bucket" if of_histogram else name
            assert scrape.labels[sample] == {*spec.labels, *of_histogram}
            help_line = f"# HELP {name} {spec.help}\n"
            assert scrape.text.count(help_line) == 1
        families = list(PARSERS[Format.OPENMETRICS](scraper.text(Format.OPENMETRICS)))
        assert len({one.name for one in families}) == len(families) == len(shown)
        assert all(math.isfinite(value) for value in scrape.values.values())

    assert serve(models, visit) == 0


def test_without_a_gpu_only_its_metrics_are_missing(models: Path) -> None:
    def visit(inside: Inside) -> None:
        scraper = Scraper(inside, GpuGauges(None))
        wait_until(lambda: all(worker.cpu_clock is not None for worker in inside.workers))
        # Nobody has asked for anything yet, and everything begins with 0.
        elsewhere = (*ELSEWHERE, Presence.GPUS, Presence.PROCESSES)
        expected = {name for name, spec in CATALOGUE.items() if spec.presence not in elsewhere}
        assert set(scraper().types) == expected

    assert serve(models, visit) == 0


def test_promtool_finds_fault_with_tritons_names_alone(models: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (tests/peers.sh)")
    texts: list[str] = []

    def visit(inside: Inside) -> None:
        gpus = GpuGauges(Nvml())
        assert gpus.read()
        some_traffic(inside)
        texts.append(Scraper(inside, gpus).text())

    assert serve(models, visit) == 0
    ended = subprocess.run(
        [promtool, "check", "metrics"], input=texts[0], capture_output=True, text=True, timeout=120, check=False
    )
    found: dict[str, set[str]] = {}
    for line in (ended.stdout + ended.stderr).splitlines():
        name, complaint = line.split(" ", 1)
        assert complaint in LINT, line
        found.setdefault(name, set()).add(LINT[complaint])
    assert found == TRITONS_LINT
    assert ended.returncode == 3  # that there was something; 1 is a text that cannot be read


# --- what is counted


def test_tags_of_a_model_are_labels_of_tritons_metrics_in_alphabetical_order(models: Path) -> None:
    add_model(models, "tagged", versioned_model(1))
    (models / "tagged" / "config.pbtxt").write_text(
        'metric_tags { key: "region" value: "eu" } metric_tags { key: "Team" value: "a\\"b" }'
    )

    def visit(inside: Inside) -> None:
        text = Scraper(inside).text()
        tags = '_Team="a\\"b",_region="eu",'
        own = f'{tags}model="tagged",version="1"'
        assert f"nv_inference_count{{{own}}} 0\n" in text
        assert f'nv_inference_request_failure{{{tags}model="tagged",reason="OTHER",version="1"}} 0\n' in text
        assert 'nv_inference_request_failure{model="mlp",reason="OTHER",version="1"} 0\n' in text
        lines = [line for line in text.splitlines() if "tagged" in line and line.startswith("nv_")]
        assert lines
        assert all(tags in line for line in lines)
        assert 'toutates_executors{model="tagged",version="1"} 1\n' in text
        Scrape(text)

    assert serve(models, visit) == 0


def test_requests_are_counted_by_how_they_end(models: Path) -> None:
    def visit(inside: Inside) -> None:
        scraper = Scraper(inside)
        with client_of(inside.port) as client:
            for rows in (1, 2, 2):
                assert status_of(client, versions(rows)) == "0"
            assert status_of(client, infer("gather", "INT64", [[1], [2]])) == "0"
            assert status_of(client, infer("gather", "INT64", [[99]])) not in "05"  # ONNX Runtime fails
            assert status_of(client, infer("gather", "INT32", [[1]])) == "3"  # of another type
            assert status_of(client, versions(1, "77")) == "5"
            assert status_of(client, b"\xff\xff") not in "05"
            for number in range(50):
                assert status_of(client, infer(f"nobody-{number}", "INT64", [[1]])) == "5"
        inside.wait_quiet()
        scrape = scraper()
        requests = {key[1:]: value for key, value in scrape.values.items() if key[0] == "inference_requests_total"}
        assert requests["versions", "ok"] == 3
        assert (requests["gather", "ok"], requests["gather", "error"]) == (1, 2)
        assert (requests["", "not_found"], requests["", "error"], requests["", "resource_exhausted"]) == (51, 1, 0)
        served = set(inside.server.manager.table.models)
        assert {model for model, _ in requests} == {*served, ""}
        assert {key[1] for key in scrape.values if key[0] == "inference_batches_total"} == served
        assert sum(value for (_, status), value in requests.items() if status != "ok") == 54
        failures = {
            reason: scrape("nv_inference_request_failure", "gather", reason, "1")
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
        }
        # What is invalid was never queued, and is none of Triton's failures.
        assert failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 1, "OTHER": 0}
        assert scrape("nv_inference_request_success", "versions", "10") == 3
        assert scrape("nv_inference_request_success", "versions", "2") == 0
        assert scrape("toutates_plan_cache_misses_total") >= 53
        assert scrape("toutates_streams_total", "0") >= 0

    assert serve(models, visit) == 0


def test_tritons_counters_are_those_of_model_statistics(models: Path) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for rows in (1, 3, 70):
                assert status_of(client, versions(rows)) == "0"
            assert status_of(client, infer("fixed", "FP32", np.zeros((2, 3)))) == "0"
            inside.wait_quiet()
            scrape = Scraper(inside)()
            for labels in (("versions", "10"), ("fixed", "1"), ("versions", "1")):
                statistics = statistics_of(client, *labels)
                own = statistics.inference_stats
                assert scrape("nv_inference_request_success", *labels) == own.success.count
                assert scrape("nv_inference_count", *labels) == statistics.inference_count
                assert scrape("nv_inference_exec_count", *labels) == statistics.execution_count
                for part, duration in (
                    ("request", own.success),
                    ("queue", own.queue),
                    ("compute_input", own.compute_input),
                    ("compute_infer", own.compute_infer),
                    ("compute_output", own.compute_output),
                ):
                    assert scrape(f"nv_inference_{part}_duration_us", *labels) == duration.ns // 1_000
                assert scrape("toutates_model_memory_bytes", *labels) == sum(
                    memory.byte_size for memory in statistics.memory_usage
                )
            assert scrape("nv_inference_count", "versions", "10") == 74
            assert 0 < scrape("nv_model_load_duration_secs", "versions", "10") < 60

    assert serve(models, visit) == 0


def test_histograms_hold_every_request_and_every_batch(models: Path) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for rows in (1, 2, 3, 70):
                assert status_of(client, versions(rows)) == "0"
        inside.wait_quiet()
        scrape = Scraper(inside)()
        steps = ("inference_in_queue", "exec_start", "exec_end", "output_processed")
        for name in ("request_duration", *steps):
            assert scrape(f"inference_{name}_seconds_count", "versions") == 4
            assert scrape(f"inference_{name}_seconds_bucket", "+Inf", "versions") == 4
        whole = scrape("inference_request_duration_seconds_sum", "versions")
        parts = sum(scrape(f"inference_{name}_seconds_sum", "versions") for name in steps)
        assert parts == pytest.approx(whole)
        assert scrape("inference_batches_total", "versions") == 5  # 70 rows are a batch of 64, and one of 6
        for name in ("batch_items", "batch_duration_seconds", "model_execution_seconds"):
            assert scrape(f"inference_{name}_count", "versions") == 5
        assert scrape("inference_batch_items_sum", "versions") == 76
        sizes = [scrape("inference_batch_items_bucket", bound, "versions") for bound in ("1.0", "2.0", "4.0", "32.0")]
        assert sizes == [1, 2, 3, 4]
        assert scrape("inference_client_batch_size_sum", "versions") == 76
        assert scrape("inference_client_batch_size_bucket", "64.0", "versions") == 3
        # The first request is always one of those whose first steps are timed.
        for name in ("request_model_proxy_aquired", "serialization_done"):
            assert scrape(f"inference_{name}_seconds_count", "versions") == 1
            assert 0 < scrape(f"inference_{name}_seconds_sum", "versions") < whole
        bounds = [key[1] for key in scrape.values if key[0] == "inference_request_duration_seconds_bucket"]
        original = [0.0001 * 2**power for power in range(18)]
        assert [float(bound) for bound in bounds[: len(original) + 4]][3:-1] == pytest.approx(original)

    assert serve(models, visit) == 0


def test_gauges_show_what_is_under_way(models: Path, runs: Runs) -> None:
    def visit(inside: Inside) -> None:
        scraper = Scraper(inside)
        idle = scraper()
        assert idle("inference_inflight", "slow") == idle("inference_executors_in_use", "slow") == 0
        assert idle("inference_capacity", "slow") == 2 * 2
        assert idle("inference_configured_batch_size", "slow") == 2
        assert idle("inference_capacity", "versions") == 3 * 64 * 16  # of all its versions
        assert idle("loaded_models") == 6
        assert idle("toutates_ready") == 1
        assert idle("toutates_model_versions", "READY") == 8
        with client_of(inside.port) as client:
            streams = [client.start(SERVICE + "ModelInfer") for _ in range(3)]
            with runs.held():
                client.send(streams[0], framed(slow(20, rows=2)))
                runs.wait_begun(1)
                for stream in streams[1:]:
                    client.send(stream, framed(slow(1)))
                wait_until(lambda: inside.occupancy("slow").waiting == 2)
                busy = scraper()
                refused = status_of(client, slow(1, rows=2))
            for stream in streams:
                assert client.answer(stream).status[0] == "0"
        assert (busy("inference_inflight", "slow"), busy("inference_executors_in_use", "slow")) == (4, 1)
        assert busy("nv_inference_pending_request_count", "slow", "1") == 2
        assert busy("toutates_batches_in_flight", "slow", "1") == busy("toutates_batches_capacity", "slow", "1") == 2
        assert busy("toutates_model_memory_bytes", "slow", "1") == 2 * 2 * 2 * 8  # batches, rows, in and out, INT64
        assert busy("toutates_connections", "0") == busy("toutates_connections_accepted_total", "0") == 1
        inside.wait_quiet()
        done = scraper()
        assert refused == "8"
        assert done("inference_requests_total", "slow", "resource_exhausted") == 1
        assert done("inference_inflight", "slow") == done("nv_inference_pending_request_count", "slow", "1") == 0
        assert done("toutates_executor_busy_seconds_total", "slow", "1") > 0.01
        assert done("toutates_batch_fill_ratio", "slow", "1") == 1
        assert 0 < done("toutates_worker_cpu_seconds_total", "0") < done("process_cpu_seconds_total") + 1

    assert serve(models, visit) == 0


# --- models that come and go


@contextmanager
def hammered(port: int, message: Callable[[], bytes]) -> Iterator[list[int]]:
    """Send requests until the block ends; how many were answered is in the list then."""
    stop = threading.Event()
    answered = [0]
    problems: list[str] = []

    def send() -> None:
        with client_of(port) as client:
            while not stop.is_set():
                status = status_of(client, message())
                answered[0] += status == "0"
                if status != "0":
                    problems.append(status)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield answered
    finally:
        stop.set()
        thread.join(120)
    assert problems == []


def test_counters_never_fall_while_a_model_is_replaced_under_load(tmp_path: Path) -> None:
    for number in (1, 2):
        add_model(tmp_path, "versions", versioned_model(number), number)

    def visit(inside: Inside) -> None:
        scraper = Scraper(inside)
        scrapes = [scraper()]
        with client_of(inside.port) as control, hammered(inside.port, lambda: versions(3, "2")) as answered:
            load = RepositoryModelLoadRequest(model_name="versions").SerializeToString()
            for number in range(3, 9):
                seen = answered[0]
                wait_until(lambda seen=seen: answered[0] > seen + 3)  # type: ignore[misc]
                scrapes.extend(scraper() for _ in range(3))
                (tmp_path / "versions" / "2" / "next").write_bytes(versioned_model(number))
                (tmp_path / "versions" / "2" / "next").replace(tmp_path / "versions" / "2" / "model.onnx")
                assert status_of(control, load, "RepositoryModelLoad") == "0"
        inside.wait_quiet()
        scrapes.append(scraper())
        for before, after in pairwise(scrapes):
            for key, value in after.values.items():
                name = key[0].removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
                if name.startswith("inference_") and CATALOGUE[name].kind is not Kind.GAUGE:
                    assert value >= before.values[key], key
        last = scrapes[-1]
        assert answered[0] > 20
        assert last("inference_requests_total", "versions", "ok") == answered[0]
        assert last("inference_client_batch_size_sum", "versions") == 3 * answered[0]
        # Triton's are the version's own, and began at 0 with it.
        assert last("nv_inference_request_success", "versions", "2") < answered[0]
        assert last("nv_inference_request_success", "versions", "1") == 0
        assert last("toutates_model_loads_total") == 2 + 6
        assert last("toutates_model_reloads_total") == last("toutates_model_unloads_total") == 6
        assert last("toutates_model_load_failures_total") == 0
        assert last("toutates_model_load_seconds_total") > 0

    assert serve(tmp_path, visit, model_control_mode="explicit", load_models=("versions",)) == 0


def test_a_model_that_is_unloaded_has_no_series_and_begins_anew(tmp_path: Path) -> None:
    add_model(tmp_path, "versions", versioned_model(1), 1)
    add_model(tmp_path, "broken", b"this is no graph", 1)

    def visit(inside: Inside) -> None:
        scraper = Scraper(inside)
        with client_of(inside.port) as client:
            assert status_of(client, versions(1)) == "0"
            assert scraper()("inference_requests_total", "versions", "ok") == 1
            message = RepositoryModelUnloadRequest(model_name="versions").SerializeToString()
            assert status_of(client, message, "RepositoryModelUnload") == "0"
            gone = scraper()
            assert not [key for key in gone.values if "versions" in key]
            assert gone("loaded_models") == 0
            assert gone("toutates_model_versions", "UNAVAILABLE") == 0
            assert status_of(client, versions(1)) != "0"
            message = RepositoryModelLoadRequest(model_name="versions").SerializeToString()
            assert status_of(client, message, "RepositoryModelLoad") == "0"
            back = scraper()
            assert back("inference_requests_total", "versions", "ok") == 0
            assert back("toutates_model_unloads_total") == 1
            assert back("toutates_model_reloads_total") == 0
            for name in ("broken", "nobody"):
                message = RepositoryModelLoadRequest(model_name=name).SerializeToString()
                assert status_of(client, message, "RepositoryModelLoad") != "0"
            after = scraper()
            assert after("toutates_model_load_failures_total") == 1
            assert after("toutates_model_versions", "UNAVAILABLE") == 1
            assert not [key for key in after.values if "nobody" in key or "broken" in key]

    assert serve(tmp_path, visit, model_control_mode="explicit", load_models=("versions",)) == 0


def test_workers_are_added_up(models: Path) -> None:
    def visit(inside: Inside) -> None:
        for _ in range(12):
            with client_of(inside.port) as client:
                assert status_of(client, versions(1)) == "0"
        # A connection is counted a moment after it is closed.
        wait_until(lambda: sum(worker.connections for worker in inside.workers) == 0)
        inside.wait_round()
        scrape = Scraper(inside)()
        assert scrape("inference_requests_total", "versions", "ok") == 12
        accepted = [scrape("toutates_connections_accepted_total", number) for number in "012"]
        assert sum(accepted) == sum(scrape("toutates_streams_total", number) for number in "012") == 12
        assert sum(scrape("toutates_sent_bytes_total", number) for number in "012") > 12 * 100
        assert sum(scrape("toutates_received_bytes_total", number) for number in "012") > 12 * 100

    assert serve(models, visit, processing_cores=3) == 0

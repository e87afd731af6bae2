"""The sum of several processes' reports, as metrics and the status page see it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from toutates.engine.counters import BUCKETS, BatchCounters, WorkerCounters
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.infer.counters import InferCounters
from toutates.models.graph_picture import graph_svg
from toutates.models.load_counters import LoadCounters
from toutates.models.table import ModelState
from toutates.net.housekeeping import Traffic
from toutates.net.schedule import Lateness
from toutates.observe.processes.replica import Replica
from toutates.observe.processes.report import (
    InferReport,
    ModelReport,
    Report,
    ServedReport,
    StepReport,
    TensorReport,
    VersionReport,
    WorkerReport,
    read_report,
)
from toutates.protocol.model_config_pb2 import ModelConfig

TENSOR = TensorReport("x", "FP32", (4,), optional=False)


def statistics(requests: int) -> VersionStatistics:
    durations = [requests] + [0] * (BUCKETS - 1)
    counters = WorkerCounters(success=requests, rows=2 * requests, durations=durations)
    occupancy = Occupancy(1, 1, 8, 2, 3, 64, 5, 6, 1, 1, 0, 100)
    return VersionStatistics(counters, {2: BatchCounters(requests)}, durations, durations, occupancy, 8, 1)


def report(requests: int, *, serial: int = 1, state: str = "READY", reason: str = "", graph: bytes = b"") -> Report:
    served = ServedReport(
        serial, (TENSOR,), (TENSOR,), batched=True, load_ns=7, advice="", tags={"team": "a"}, graph=graph
    )
    models = [ModelReport("m", "", (VersionReport(1, state, reason, served),))]
    steps = StepReport([requests] + [0] * (BUCKETS - 1), requests)
    return Report(
        models,
        complete=True,
        statistics=[statistics(requests)],
        workers=[WorkerReport("worker-0", 3, Traffic(4), {"streams": 1}, Lateness(), 0.5)],
        infer=[InferReport(InferCounters(parsed=1), requests, {"m": (steps, steps)})],
        loading=LoadCounters(loads=1),
        dropped_log_lines=1,
        traces=(requests, 1),
    )


def sent(one: Report) -> Report:
    """As it comes out at the other end."""
    return read_report(msgspec.msgpack.encode(one))


def requests_of(replica: Replica) -> int:
    [version] = replica.table.served()
    return version.servable.statistics().requests.success


def test_reports_are_added_up() -> None:
    replica = Replica(2)
    loading = replica.loading
    replica.update(0, sent(report(3)))
    replica.update(1, sent(report(4)))
    [version] = replica.table.served()
    read = version.servable.statistics()
    assert (read.requests.success, read.requests.rows, read.requests.durations[0]) == (7, 14, 7)
    assert read.batches == {2: BatchCounters(7)}
    assert (read.executors, read.batch_size, read.occupancy.row_capacity) == (2, 8, 128)
    assert (version.model, version.number, version.load_ns, dict(version.config.metric_tags)) == (
        "m",
        1,
        7,
        {"team": "a"},
    )
    assert version.signature.inputs[0].datatype.name == "FP32"
    assert [one.name for one in replica.workers] == ["0/worker-0", "1/worker-0"]
    assert loading.loads == 2
    assert sum(one.observer.seen for one in replica.infer) == 7
    assert (replica.dropped_log_lines, replica.traces) == (2, (7, 2))
    assert replica.table.ready


def test_ensembles_have_their_picture() -> None:
    replica = Replica(2)
    config = ModelConfig(name="m")
    config.ensemble_scheduling.step.add(model_name="inner", input_map={"x": "IN"}, output_map={"y": "OUT"})
    for process in range(2):
        replica.update(process, sent(report(1, graph=config.SerializeToString())))
    [version] = replica.table.served()
    assert "inner" in graph_svg(version.config)
    assert dict(version.config.metric_tags) == {"team": "a"}
    config.ensemble_scheduling.step[0].model_name = "another"
    for process in range(2):
        replica.update(process, sent(report(1, serial=2, graph=config.SerializeToString())))
    [version] = replica.table.served()
    assert "another" in graph_svg(version.config)
    with pytest.raises(msgspec.ValidationError, match="no graph, of model 'm'"):
        sent(report(1, graph=b"\xff"))


def test_sums_do_not_fall_when_a_process_ends_or_loads_anew() -> None:
    replica = Replica(2)
    replica.update(0, report(3))
    replica.update(1, report(4))
    [version] = replica.table.served()
    replica.forget(1)
    assert requests_of(replica) == 7
    assert [one.connections for one in replica.workers] == [3, 0]
    assert replica.loading.loads == 2
    assert sum(one.observer.seen for one in replica.infer) == 7
    replica.update(1, report(1))
    assert requests_of(replica) == 8
    replica.update(0, report(0, serial=2))
    assert requests_of(replica) == 8
    replica.update(0, replace(report(2), models=None))
    assert requests_of(replica) == 10
    assert replica.table.served() == [version], "the same object, so that its history goes on"


def test_a_version_is_ready_where_all_have_it_ready() -> None:
    replica = Replica(2)
    replica.update(0, report(0))
    replica.update(1, report(0, state="UNAVAILABLE", reason="lost"))
    entry = replica.table.models["m"].versions[1]
    assert (entry.state, entry.reason) == (ModelState.UNAVAILABLE, "process 1: lost")
    replica.update(0, report(0, state="UNAVAILABLE", reason="lost"))
    assert replica.table.models["m"].versions[1].reason == "lost"
    for number in (0, 1):
        replica.update(number, Report([], complete=True, statistics=[]))
    assert not replica.table.models


def test_numbers_of_models_that_were_not_told_of_are_passed_over() -> None:
    replica = Replica(1)
    replica.update(0, replace(report(3), models=None))
    assert not replica.workers
    replica.update(0, report(3))
    replica.update(0, replace(report(5), models=None, statistics=[]))
    assert requests_of(replica) == 3

"""Metrics of Python models: what models may do with them, and what the server reads of their memory."""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from toutates.backends.python.child import frames
from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.metric_table import MetricTable
from toutates.backends.python.child.metrics import MetricFamily, set_metric_table
from toutates.backends.python.metrics import TableReader, VersionMetrics
from toutates.engine.model_metrics import COUNTER, MOST_SERIES, ModelSeries, sum_series


@pytest.fixture
def memory() -> Iterator[Any]:
    memory = np.zeros(frames.METRICS_BYTES, np.uint8)
    set_metric_table(MetricTable(memory.data))
    yield memory
    set_metric_table(MetricTable(np.zeros(frames.METRICS_BYTES, np.uint8).data))


def values(memory: Any) -> dict[tuple[str, Any], Any]:
    return {(one.name, one.labels): one.values for one in TableReader(memory).read()}


def test_a_counter_rises_only(memory: Any) -> None:
    family = MetricFamily("a", "b", MetricFamily.COUNTER)
    metric = family.Metric({"x": "y"})
    metric.increment(2023)
    wrongs: list[tuple[Callable[[], object], str]] = [
        (lambda: metric.increment(-23.5), "only be incremented monotonically by non-negative"),
        (lambda: metric.set(1), "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        (lambda: metric.observe(1), "does not support Observe"),
        (lambda: metric.increment(math.nan), "non-negative"),
    ]
    for wrong, text in wrongs:
        with pytest.raises(TritonModelException, match=text):
            wrong()
    assert metric.value() == 2023
    assert values(memory) == {("a", (("x", "y"),)): (2023,)}


def test_a_gauge_goes_both_ways(memory: Any) -> None:
    family = MetricFamily("a", "b", kind=MetricFamily.GAUGE)
    metric = family.Metric()
    metric.increment(2023)
    metric.increment(-23.5)
    assert metric.value() == 1999.5
    metric.set(7)
    assert values(memory) == {("a", ()): (7,)}
    with pytest.raises(TritonModelException, match="KIND_GAUGE does not support Observe"):
        metric.observe(1)


def test_a_histogram_observes(memory: Any) -> None:
    family = MetricFamily(name="a", description="b", kind=MetricFamily.HISTOGRAM)
    metric = family.Metric(buckets=[0.1, 1.0, 2.5, 5.0, 10.0])
    for value in (0.05, 1.5, 6.0):
        metric.observe(value)
    assert values(memory)["a", ()] == (1, 0, 1, 0, 1, 0, pytest.approx(7.55))
    for wrong in (metric.value, lambda: metric.increment(1), lambda: metric.set(1)):
        with pytest.raises(TritonModelException, match="KIND_HISTOGRAM does not support"):
            wrong()
    without = family.Metric({"of": "none"}, buckets=[])
    without.observe(3)
    assert values(memory)["a", (("of", "none"),)] == (1, 3)


@pytest.mark.parametrize(
    ("kind", "labels", "buckets", "text"),
    [
        (0, "x", None, "Failed to create metric. Labels must be a dictionary."),
        (2, None, 3, "Failed to create metric. Buckets must be a list."),
        (0, None, [1], "Failed to create metric. Unexpected buckets found."),
        (2, None, None, "Failed to create metric. Missing required buckets."),
        (2, None, [2, 1], "must be finite, and ascend strictly"),
        (2, None, [1, 1], "must be finite, and ascend strictly"),
        (2, {"le": "1"}, [1], "'le' is no name of a label"),
        (0, {"a-b": "1"}, None, "'a-b' is no name of a label"),
        (0, {"a": 1}, None, "must be strings"),
        (0, {"a": "x" * 100_000}, None, "no room for its labels"),
    ],
)
def test_metrics_that_cannot_be_are_refused(memory: Any, kind: int, labels: Any, buckets: Any, text: str) -> None:
    family = MetricFamily("a", "b", kind)
    with pytest.raises(TritonModelException, match=text):
        family.Metric(labels, buckets)
    assert values(memory) == {}


def test_families_and_labels_of_the_same_name_are_shared(memory: Any) -> None:
    first, second = MetricFamily("a", "first"), MetricFamily("a", "second")
    one, two = first.Metric({"x": "y"}), second.Metric({"x": "y"})
    one.increment(1)
    two.increment(2)
    assert one.value() == two.value() == 3
    assert [series.help for series in TableReader(memory).read()] == ["first"]
    with pytest.raises(TritonModelException, match="Error when creating MetricFamily: 'a' is a family of kind COUNTER"):
        MetricFamily("a", "b", MetricFamily.GAUGE)
    with pytest.raises(TritonModelException, match="Error when creating MetricFamily: 'a b' is no name"):
        MetricFamily("a b", "b")


def test_what_the_model_lets_go_of_ends(memory: Any) -> None:
    family = MetricFamily("a", "b")
    reader = TableReader(memory)
    kept, gone = family.Metric({"x": "1"}), family.Metric({"x": "2"})
    assert len(reader.read()) == 2
    del gone
    gc.collect()
    assert [series.labels for series in reader.read()] == [(("x", "1"),)]
    del family
    gc.collect()
    assert reader.read() == []
    with pytest.raises(TritonModelException, match="Invalid metric operation as the corresponding 'MetricFamily'"):
        kept.increment(1)
    MetricFamily("a", "b", MetricFamily.GAUGE)


def test_there_is_room_for_so_many_and_for_others_when_they_are_gone(memory: Any) -> None:
    family = MetricFamily("a", "b")
    reader = TableReader(memory)
    for turn in range(5):
        metrics: list[Any] = []

        def fill(turn: int = turn, metrics: list[Any] = metrics) -> None:
            for at in range(frames.MAX_METRICS + 1):
                metrics.append(family.Metric({"at": f"{turn} {at}"}))
                metrics[-1].increment(at)

        with pytest.raises(TritonModelException, match="Failed to create metric"):
            fill()
        found = {series.labels[0][1]: series.values for series in reader.read()}
        assert found == {f"{turn} {at}": (at,) for at in range(len(metrics))}
        assert len(found) > 500
        metrics.clear()
        gc.collect()


def test_threads_lose_no_increment(memory: Any) -> None:
    metric = (family := MetricFamily("a", "b")).Metric()

    def increment() -> None:
        for _ in range(2_000):
            metric.increment(1)

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metric.value() == 8_000
    del family


GOOD = {"name": "a", "kind": 0, "help": "h", "labels": [["x", "y"]], "bounds": [], "at": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a b"},
        {"name": "a\n"},
        {"name": 3},
        {"kind": 3},
        {"kind": "counter"},
        {"help": None},
        {"labels": [["x", 3]]},
        {"labels": [["x", ["y"]]]},
        {"labels": [["x-y", "y"]]},
        {"labels": [["x", "y"], ["x", "z"]]},
        {"labels": [["x", "y", "z"]]},
        {"labels": [[f"x{at}", "y"] for at in range(30)]},
        {"labels": [["le", "y"]], "kind": 2},
        {"bounds": [1]},
        {"bounds": [2, 1], "kind": 2},
        {"bounds": [math.inf], "kind": 2},
        {"at": -1},
        {"at": 10**6},
        {"at": 10**30},
        {"at": 1.5},
        {"at": None},
        {"at": 1},  # where the number is none of a counter
        {"kind": 2, "at": 2},  # where the numbers are none of a histogram
    ],
)
def test_what_a_process_makes_up_is_left_out(change: dict[str, Any]) -> None:
    memory = np.zeros(frames.METRICS_BYTES, np.uint8)
    numbers = memory[frames.METRICS_NUMBERS_AT :].view("<f8")
    numbers[1], numbers[2] = math.nan, -1
    lines = [json.dumps({**GOOD, **change}), "[" * 10_000, "{", "3", "null", json.dumps({"gone": "x"})]
    lines.append(json.dumps({**GOOD, "name": "good", "at": 5}))
    text = "\n".join(lines).encode()
    memory[frames.METRICS_HEAD.size :][: len(text)] = np.frombuffer(text, np.uint8)
    frames.METRICS_HEAD.pack_into(memory.data, 0, 2, len(text))
    assert [series.name for series in TableReader(memory).read()] == ["good"]


@pytest.mark.parametrize("head", [(1, 10), (2, 2**60), (3, 2**64 - 1)])
def test_a_head_that_makes_no_sense_changes_nothing(head: tuple[int, int]) -> None:
    memory = np.zeros(frames.METRICS_BYTES, np.uint8)
    set_metric_table(table := MetricTable(memory.data))
    family = MetricFamily("a", "b")
    metric = family.Metric()
    reader = TableReader(memory)
    assert len(reader.read()) == 1
    frames.METRICS_HEAD.pack_into(memory.data, 0, *head)
    assert len(reader.read()) == 1
    del metric, table


def test_of_an_instance_that_ends_what_only_grows_stays(memory: Any) -> None:
    counter, gauge = MetricFamily("a", "b"), MetricFamily("g", "b", MetricFamily.GAUGE)
    metrics = [counter.Metric(), gauge.Metric()]
    for metric in metrics:
        metric.increment(3)
    version = VersionMetrics()
    first, _ = version.add(memory), version.add(memory)
    assert [one.values for one in version.series()] == [(6,), (6,)]
    version.end(first)
    version.end(first)
    assert [one.values for one in version.series()] == [(6,), (3,)]


def test_sums_are_bounded() -> None:
    series = [ModelSeries("a", COUNTER, "", (("x", str(at)),), (), (1,)) for at in range(MOST_SERIES + 10)]
    found = sum_series([*series, series[0]])
    assert len(found) == MOST_SERIES
    assert found[0].values == (2,)

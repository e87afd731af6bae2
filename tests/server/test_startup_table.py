"""The table printed at start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import onnxruntime
import pytest

from tests.engine.shown import shown_version
from tests.machines import LAPTOP, XEON, install
from toutates.models.table import ModelEntry, ModelState, ModelTable, VersionEntry
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.server.startup_table import placement_records, placement_table, startup_records, startup_table
from toutates.system.interpreter import describe_interpreter
from toutates.system.placement import place
from toutates.system.topology import read_topology

SIGNATURE = Signature(
    inputs=(TensorSpec("points", BY_NAME["FP32"], (2, -1)), TensorSpec("text", BY_NAME["BYTES"], (1,))),
    outputs=(TensorSpec("softmax", BY_NAME["FP16"], (8,)),),
    batched=True,
)


def ready(name: str, number: int = 1, signature: Signature = SIGNATURE, intra: int = 1) -> ModelEntry:
    threads = 2 * (intra - 1)
    served = shown_version(name, number, signature, batch_size=32, capacity=5, executors=2, pool_threads=threads)
    return ModelEntry(name, {number: VersionEntry(number, ModelState.READY, served=served)})


def lines(*models: ModelEntry) -> list[str]:
    return startup_table(ModelTable({model.name: model for model in models}), ["A", "B"], 1.25).splitlines()


def test_the_first_line_is_about_the_process() -> None:
    assert lines()[0] == f"{describe_interpreter()}; onnxruntime {onnxruntime.__version__}, A, B; loaded in 1.2 s"


def test_a_model_is_one_line_under_its_headings() -> None:
    _, headings, row = lines(ready("m"))
    assert headings.split() == ["MODEL", "VERSION", "STATE", "INPUTS", "OUTPUTS", "BATCH", "CAPACITY", "EXECUTORS"]
    words = "m 1 READY points FP32[-1,2,-1], text BYTES[-1,1] softmax FP16[-1,8] 32 5 2"
    assert " ".join(row.split()) == words


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    _, headings, narrow, wide = lines(ready("m"), ready("very_long_name_" * 5, 123_456_789))
    for heading, cell in {"VERSION": "123456789", "STATE": "READY", "INPUTS": "points", "CAPACITY": "5"}.items():
        at = headings.index(heading)
        assert wide[at:].startswith(cell)
    assert narrow.index("READY") == wide.index("READY")
    assert headings.rstrip() == headings


def test_a_model_without_a_batch_dimension_says_so() -> None:
    signature = Signature((TensorSpec("x", BY_NAME["INT64"], ()),), (TensorSpec("y", BY_NAME["INT64"], (3,)),), False)
    *_, row = lines(ready("m", signature=signature))
    assert row.split() == ["m", "1", "READY", "x", "INT64[]", "y", "INT64[3]", "none", "5", "2"]


def test_the_reason_of_a_broken_version_ends_its_line_and_widens_no_column() -> None:
    reason = "Internal: " + "a long reason " * 20
    broken = ModelEntry("broken", {2: VersionEntry(2, ModelState.UNAVAILABLE, reason)})
    empty = ModelEntry("empty", {}, "no version directory")
    _, headings, *rows = lines(ready("m"), broken, empty)
    assert rows[0] == f"broken 2       UNAVAILABLE {reason}".rstrip()
    assert rows[1] == "empty  -       UNAVAILABLE no version directory"
    assert headings.index("OUTPUTS") < 80


def test_several_reasons_are_several_lines_and_names_cannot_begin_one() -> None:
    broken = ModelEntry("a\x1b[31m\nb", {2: VersionEntry(2, ModelState.UNAVAILABLE, "first\nsecond")})
    _, _, first, second = lines(broken)
    assert first.split() == ["a\\x1b[31m\\nb", "2", "UNAVAILABLE", "first"]
    assert second == " " * first.index("first") + "second"


@pytest.mark.parametrize("may_be_empty", [True, False])
def test_without_models_there_is_a_line_that_says_so(may_be_empty: bool) -> None:
    table = ModelTable({}, may_be_empty=may_be_empty)
    said = "no models" if may_be_empty else "no model is served: the model repository has none"
    assert startup_table(table, ["A"], 1.25).splitlines()[1:] == [said]
    assert [record["event"] for record in startup_records(table, ["A"], 1.25)] == [said]


def test_without_models_the_reason_of_the_repositories_goes_first() -> None:
    table = ModelTable({}, may_be_empty=False)
    said = "'models' cannot be read: there is no such directory"
    assert startup_table(table, ["A"], 1.25, said).splitlines()[1:] == [said]
    assert [record["event"] for record in startup_records(table, ["A"], 1.25, said)] == [said]


def test_of_very_many_models_those_that_are_not_ready_are_listed_and_the_rest_counted() -> None:
    many = [ready(f"m{number:04d}") for number in range(300)]
    broken = ModelEntry("broken", {2: VersionEntry(2, ModelState.UNAVAILABLE, "Internal: no graph")})
    _, _, row, summary = lines(*many, broken)
    assert row.split()[:3] == ["broken", "2", "UNAVAILABLE"]
    assert summary == "301 versions of 301 models: 300 are ready, 1 are not; RepositoryIndex has all"
    table = ModelTable({model.name: model for model in (*many, broken)})
    records = startup_records(table, ["A"], 1.25)
    assert len(records) == 2
    assert records[0]["versions"] == summary
    assert lines(*many)[1:] == ["300 versions of 300 models: 300 are ready, none is not; RepositoryIndex has all"]


def test_executors_that_share_threads_are_counted_by_these() -> None:
    free = place(read_topology(range(4)), executor_cpus=1, processing_cores=1, intra_threads=1, pinned=False)
    shared = [ready(f"m{number}") for number in range(100)]
    for model in shared:
        served = model.versions[1].served
        assert served is not None
        statistics = replace(served.servable.statistics(), pooled=True)
        served.servable.statistics = Mock(return_value=statistics)  # type: ignore[method-assign]
    with_own = ready("own")
    table = ModelTable({model.name: model for model in (*shared, with_own)})
    assert placement_table(free, table, 8) == "1 worker, 10 executors; threads are not pinned to cores"
    assert placement_table(free, ModelTable({"own": with_own}), 8).startswith("1 worker, 2 executors;")


def test_programs_get_the_same_as_records() -> None:
    broken = ModelEntry("broken", {2: VersionEntry(2, ModelState.UNAVAILABLE, "first\nsecond")})
    table = ModelTable({model.name: model for model in (ready("m"), broken, ModelEntry("empty", {}, "nothing"))})
    process, *versions = startup_records(table, ["A", "B"], 1.25)
    assert (process["event"], process["providers"], process["seconds"]) == ("the models are loaded", "A, B", 1.2)
    start = {"event": "model version", "model": "broken", "version": "2", "state": "UNAVAILABLE"}
    assert versions == [
        {**start, "reason": "first"},
        {**start, "reason": "second"},
        {"event": "model version", "model": "empty", "version": "-", "state": "UNAVAILABLE", "reason": "nothing"},
        {
            "event": "model version",
            "model": "m",
            "version": "1",
            "state": "READY",
            "inputs": "points FP32[-1,2,-1], text BYTES[-1,1]",
            "outputs": "softmax FP16[-1,8]",
            "batch": "32",
            "capacity": "5",
            "executors": "2",
        },
    ]


def placed(root: Path, machine: str, executors: int, workers: int, *, intra: int = 1, pinned: bool = True) -> list[str]:
    topology = read_topology(range(16), install(root, machine))
    placement = place(topology, executor_cpus=executors, processing_cores=workers, intra_threads=intra, pinned=pinned)
    broken = ModelEntry("broken", {1: VersionEntry(1, ModelState.UNAVAILABLE, "why")})
    models = [ready("a", intra=intra), ready("b", intra=intra), broken]
    return placement_table(placement, ModelTable({model.name: model for model in models})).splitlines()


def test_every_role_is_a_line_with_its_threads_cores_and_nodes(tmp_path: Path) -> None:
    assert placed(tmp_path, XEON, 2, 7, intra=3) == [
        "ROLE     THREADS CORES (NUMA NODE)",
        "manager  1       15 (1)",
        "executor 4       0-1 (0)",
        "worker   7       2-3,8-11 (0), 4 (1)",
        "intra-op 8       5-7,12-14 (1)",
    ]


def test_cores_that_nobody_uses_are_shown_and_a_role_without_cores_is_not(tmp_path: Path) -> None:
    assert placed(tmp_path / "some", LAPTOP, 1, 2)[-1] == "intra-op 0       3-6 (0)"
    assert [line.split()[0] for line in placed(tmp_path / "all", LAPTOP, 1, 6)] == [
        "ROLE",
        "manager",
        "executor",
        "worker",
    ]


def test_threads_that_are_not_pinned_are_counted_in_one_line(tmp_path: Path) -> None:
    topology = read_topology(range(16), install(tmp_path / "records", XEON))
    free = place(topology, executor_cpus=2, processing_cores=7, intra_threads=3, pinned=False)
    table = ModelTable({"a": ready("a", intra=3)})
    assert placement_records(free, table) == [
        {"event": "threads are not pinned to cores", "workers": 7, "executors": 2, "intra_op_threads": 4}
    ]
    pinned = place(topology, executor_cpus=2, processing_cores=7, intra_threads=3, pinned=True)
    said = "threads are pinned to cores"
    assert {"event": said, "role": "executor", "threads": 2, "cores": "0-1 (0)"} in placement_records(pinned, table)
    [line] = placed(tmp_path / "one", LAPTOP, 1, 1, pinned=False)
    assert line == "1 worker, 4 executors; threads are not pinned to cores"
    [line] = placed(tmp_path / "two", LAPTOP, 1, 2, intra=3, pinned=False)
    assert line == "2 workers, 4 executors, 8 intra-op threads; threads are not pinned to cores"

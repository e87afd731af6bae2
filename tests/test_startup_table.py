"""The table printed at start."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import onnxruntime

from tests.machines import LAPTOP, XEON, install
from toutates.interpreter import describe_interpreter
from toutates.models.settings import ModelSettings
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.placement import place
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.startup_table import placement_table, startup_table
from toutates.topology import read_topology

SIGNATURE = Signature(
    inputs=(TensorSpec("points", BY_NAME["FP32"], (2, -1)), TensorSpec("text", BY_NAME["BYTES"], (1,))),
    outputs=(TensorSpec("softmax", BY_NAME["FP16"], (8,)),),
    batched=True,
)


def ready(name: str, number: int = 1, signature: Signature = SIGNATURE) -> ModelEntry:
    settings = ModelSettings(batch_size=32, capacity=5, num_executors=2)
    nothing = cast(Any, None)
    served = ServedVersion(name, number, signature, settings, nothing, nothing, nothing)
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


def test_reasons_of_several_lines_and_unprintable_names_stay_on_one_line() -> None:
    broken = ModelEntry("a\x1b[31mb", {2: VersionEntry(2, ModelState.UNAVAILABLE, "first\nsecond")})
    rows = lines(broken)
    assert len(rows) == 3
    assert rows[2].split() == ["a?[31mb", "2", "UNAVAILABLE", "first;", "second"]


def placed(root: Path, machine: str, executors: int, workers: int, *, intra: int = 1, pinned: bool = True) -> list[str]:
    topology = read_topology(range(16), install(root, machine))
    placement = place(topology, executor_cores=executors, processing_cores=workers, intra_threads=intra, pinned=pinned)
    models = [ready("a"), ready("b"), ModelEntry("broken", {1: VersionEntry(1, ModelState.UNAVAILABLE, "why")})]
    return placement_table(placement, ModelTable({model.name: model for model in models}), intra).splitlines()


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
    [line] = placed(tmp_path / "one", LAPTOP, 1, 1, pinned=False)
    assert line == "1 worker, 4 executors; threads are not pinned to cores"
    [line] = placed(tmp_path / "two", LAPTOP, 1, 2, intra=3, pinned=False)
    assert line == "2 workers, 4 executors, 8 intra-op threads; threads are not pinned to cores"
